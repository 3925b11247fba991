//! Counters of a process for others to look at: one small file, `HOST-rRANK-PID.counters`,
//! beside the trace, written anew in place when something has changed, or every five
//! seconds as a sign of life.
//!
//! The format `pinyard-counters`, version 1: one document of JSON, padded with spaces to
//! [`BYTES`] and written by one pwrite(2), so that a reader on another node of a shared file
//! system gets a whole one or, seldom, what does not parse and is read again.

use crate::process::{Process, now_since_1970};
use crate::recorder;
use pinyard_worker::{Descriptor, say};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Weak;
use std::time::{Duration, Instant};

/// Bytes of a file.
pub const BYTES: usize = 2048;
/// How often a process gives a sign of life, though nothing has changed.
pub const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// The name of the format.
const FORMAT: &str = "pinyard-counters";

/// Sums over the registries, pools and communicators of a process. Those that are gone
/// have taken theirs with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)] // as in the statistics that they come from
pub struct Counters {
    pub hits: u64,
    pub misses: u64,
    pub registrations: u64,
    pub deregistrations: u64,
    pub invalidations: u64,
    pub evictions: u64,
    pub pinned_bytes: u64,
    /// Bytes of pools' slabs.
    pub pool_bytes: u64,
    /// Of these, in use.
    pub live_bytes: u64,
    pub allocations: u64,
    pub frees: u64,
}

/// What a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Document {
    /// `pinyard-counters`.
    pub format: String,
    /// 1.
    pub version: u32,
    /// The process.
    pub process: Process,
    /// When it was written, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The process has ended of itself.
    pub ended: bool,
    /// The counters.
    pub counters: Counters,
}

impl Document {
    /// Reads a file, which anybody may have written.
    pub fn read(path: &Path) -> io::Result<Document> {
        let mut options = fs::OpenOptions::new();
        // Not to wait for whoever else has a pipe open.
        let file = options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
        let mut text = Vec::new();
        file.take(BYTES as u64).read_to_end(&mut text)?;
        let document: Document = serde_json::from_slice(&text)?;
        if (document.format.as_str(), document.version) != (FORMAT, 1) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not of the format pinyard-counters 1"));
        }
        Ok(document)
    }
}

/// Who has counters. Asked by the thread that writes, every half second: it may take
/// locks for a moment.
pub trait Publisher: Send + Sync {
    /// Adds its own.
    fn publish(&self, to: &mut Counters);
}

/// Shows the counters of `publisher` to `pinyard top`, for as long as it lives. Nothing
/// where no trace is asked for.
pub fn publish(publisher: Weak<dyn Publisher>) {
    recorder::publish(publisher);
}

#[derive(Debug)]
pub(crate) struct File {
    file: Option<Descriptor>,
    document: Document,
    written: Option<Instant>,
}

impl File {
    pub(crate) fn new(file: fs::File, process: Process) -> File {
        let document = Document { format: FORMAT.to_owned(), version: 1, process, ..Document::default() };
        File { file: Some(Descriptor::new(file)), document, written: None }
    }

    /// Writes, if there is anything new.
    pub(crate) fn write(&mut self, counters: &Counters, ended: bool) {
        let fresh = self.written.is_some_and(|at| at.elapsed() < SIGN_OF_LIFE);
        if fresh && !ended && self.document.counters == *counters {
            return;
        }
        self.document.counters = *counters;
        self.document.time_ns = now_since_1970();
        self.document.ended = ended;
        self.written = Some(Instant::now());
        let Some(file) = &self.file else { return };
        let text = serde_json::to_vec(&self.document).map_err(io::Error::from).and_then(|mut text| {
            text.resize(BYTES.max(text.len()), b' ');
            file.file()?.write_all_at(&text, 0)
        });
        if let Err(error) = text {
            say(format_args!("counters are shown no more: write failed: {error}"));
            self.file = None;
        }
    }

    pub(crate) fn end(&mut self) {
        let counters = self.document.counters;
        self.write(&counters, true);
    }
}
