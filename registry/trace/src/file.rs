//! A trace as a file.

use crate::event::Event;
use crate::process::Process;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The name of the format.
pub(crate) const FORMAT: &str = "pinyard-trace";
/// Raised when a field changes its meaning.
pub(crate) const VERSION: u32 = 1;
/// A process's.
pub(crate) const PROCESS: u32 = 2;

/// The first line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Header {
    /// `pinyard-trace`.
    pub format: String,
    /// 1, a pool's; or 2, a process's.
    pub version: u32,
    /// Events that follow, of version 1.
    #[serde(default)]
    pub events: u64,
    /// Events since the start that do not: overwritten by later ones.
    #[serde(default)]
    pub lost: u64,
    /// The process, of version 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
}

/// Events of a pool, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// What stood in the ring.
    pub events: Vec<Event>,
    /// Events since the start that do not stand there any more.
    pub lost: u64,
}

/// Why a trace was not written.
#[derive(Debug, Error)]
#[error("{call}({path}) failed: {source}{hint}")]
pub struct TraceFileError {
    /// The system call.
    pub call: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
    /// What the caller can do, starting with `; `, or nothing.
    pub hint: &'static str,
}

impl Trace {
    /// A trace of events that were made, not recorded.
    pub fn of(events: Vec<Event>) -> Trace {
        Trace { events, lost: 0 }
    }

    /// The same, of which so many are missing.
    pub fn with_lost(events: Vec<Event>, lost: u64) -> Trace {
        Trace { events, lost }
    }

    /// Writes a new file, for its owner alone (mode 0600). A path where something is
    /// already, a symbolic link included, is refused (`O_EXCL`, `O_NOFOLLOW`, open(2)).
    /// What could not be written completely stays, shorter: its header tells.
    pub fn write(&self, path: &Path) -> Result<(), TraceFileError> {
        let failed = |call, source: io::Error| {
            let exists = source.kind() == io::ErrorKind::AlreadyExists;
            let hint = if exists { "; traces overwrite nothing: choose another path" } else { "" };
            TraceFileError { call, path: path.to_owned(), source, hint }
        };
        let file = create(path).map_err(|error| failed("open", error))?;
        self.write_to(BufWriter::new(file)).map_err(|error| failed("write", error))
    }

    fn write_to(&self, mut file: BufWriter<File>) -> io::Result<()> {
        self.lines(&mut file)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }

    /// Writes the lines of a file.
    pub fn lines(&self, to: &mut impl Write) -> io::Result<()> {
        let events = self.events.len() as u64;
        let header =
            Header { format: FORMAT.to_owned(), version: VERSION, events, lost: self.lost, process: None };
        serde_json::to_writer(&mut *to, &header)?;
        to.write_all(b"\n")?;
        for event in &self.events {
            serde_json::to_writer(&mut *to, event)?;
            to.write_all(b"\n")?;
        }
        to.flush()
    }
}

/// A new file, for its owner alone: refused where something is, a symbolic link included
/// (`O_EXCL`, `O_NOFOLLOW`, open(2)).
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options.open(path)
}
