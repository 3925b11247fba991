//! The process's recorder: on or off from the first registry, pool or communicator on.

use crate::counters::{self, Counters, Publisher};
use crate::file::create;
use crate::process::Process;
use crate::ring::{Record, Ring};
use crate::settings::{SettingError, Settings};
use crate::thread::thread_number;
use crate::writer::{self, Output, Writer};
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::Thread;
use std::time::Instant;
use thiserror::Error;

static ON: AtomicBool = AtomicBool::new(false);
static RECORDER: OnceLock<Result<Option<Recorder>, StartError>> = OnceLock::new();

/// Why there is no trace although one was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StartError {
    /// A variable is refused.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// A file or its folder could not be made.
    #[error("PINYARD_TRACE: {call}({}) failed: {reason}; name a folder in which this user can make files, or unset it", path.display())]
    File {
        /// The system call.
        call: &'static str,
        /// Its path.
        path: PathBuf,
        /// The cause, as the system words it.
        reason: String,
    },
    /// The thread that writes was refused.
    #[error("PINYARD_TRACE: the thread that writes the trace could not be started: {reason}")]
    Thread {
        /// The cause, as the system words it.
        reason: String,
    },
}

/// What a process records. Made once, and never gone.
#[derive(Debug)]
pub struct Recorder {
    pub(crate) ring: Ring,
    /// Events are recorded, not only counters published.
    records: bool,
    began: Instant,
    forks: u32,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) publishers: Mutex<Vec<Weak<dyn Publisher>>>,
    thread: OnceLock<Thread>,
    numbers: AtomicU32,
}

/// Whether this process records events: one relaxed load. Not for hooks, which record
/// nothing.
#[inline(always)]
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// The recorder, while it records. In a forked child there is none: the file is the
/// parent's.
#[inline(always)]
pub fn recorder() -> Option<&'static Recorder> {
    if is_on() { made().filter(|recorder| !recorder.is_forked()) } else { None }
}

#[cold]
fn made() -> Option<&'static Recorder> {
    RECORDER.get()?.as_ref().ok()?.as_ref()
}

/// Begins to record if `PINYARD_TRACE` says so; for whoever makes a registry, a pool or a
/// communicator. The first call decides for the process; later ones cost a load.
pub fn start_from_environment() -> Result<(), &'static StartError> {
    let made = RECORDER.get_or_init(|| match Settings::from_environment()? {
        None => Ok(None),
        Some(settings) => Recorder::new(&settings).map(Some),
    });
    // Its thread needs it in its place.
    static STARTED: OnceLock<Option<StartError>> = OnceLock::new();
    match made {
        Ok(None) => Ok(()),
        Err(error) => Err(error),
        Ok(Some(recorder)) => match STARTED.get_or_init(|| recorder.start().err()) {
            None => Ok(()),
            Some(error) => Err(error),
        },
    }
}

/// Shows the counters of `publisher` to `pinyard top`, for as long as it lives. Nothing
/// where no trace is asked for.
pub(crate) fn publish(publisher: Weak<dyn Publisher>) {
    if let Some(recorder) = made().filter(|recorder| !recorder.is_forked()) {
        let mut publishers = recorder.publishers.lock();
        publishers.retain(|publisher| publisher.strong_count() > 0);
        publishers.push(publisher);
    }
}

impl Recorder {
    fn new(settings: &Settings) -> Result<Recorder, StartError> {
        crate::hooks::notice_forks();
        make_folder(&settings.folder)?;
        let began = Instant::now();
        let process = Process::this();
        let stem = process.file_stem();
        let events = match settings.events {
            0 => None,
            _ => Some(new_file(&settings.folder, &stem, "trace")?),
        };
        let counters = new_file(&settings.folder, &stem, "counters")?;
        let output = events.map(|file| Output::new(file, &process, settings.bytes));
        Ok(Recorder {
            ring: Ring::new(settings.events, 0),
            records: settings.events > 0,
            began,
            forks: crate::hooks::fork_generation(),
            writer: Mutex::new(Writer::new(output, counters::File::new(counters, process))),
            publishers: Mutex::new(Vec::new()),
            thread: OnceLock::new(),
            numbers: AtomicU32::new(0),
        })
    }

    fn start(&'static self) -> Result<(), StartError> {
        let thread =
            writer::spawn(self).map_err(|source| StartError::Thread { reason: source.to_string() })?;
        let _ = self.thread.set(thread);
        writer::at_exit();
        ON.store(self.records, Relaxed);
        Ok(())
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.forks != crate::hooks::fork_generation()
    }

    /// Nanoseconds since the trace began.
    pub fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// A number for a pool, a registry or a communicator, from 1.
    pub fn number(&self) -> u32 {
        self.numbers.fetch_add(1, Relaxed) + 1
    }

    /// Records what happens now, on this thread.
    pub fn record(&self, record: Record) {
        self.push(Record { time_ns: self.now(), ..record });
    }

    /// Records what began at `began` ([`now`](Recorder::now)) and is over.
    pub fn record_since(&self, began: u64, record: Record) {
        let duration_ns = self.now().saturating_sub(began);
        self.push(Record { time_ns: began, duration_ns, ..record });
    }

    fn push(&self, record: Record) {
        let number = self.ring.push(Record { thread: thread_number(), ..record }, &[]);
        // A quarter full, as far as this thread can tell.
        let quarter = (self.ring.capacity() / 4).max(1) as u64;
        if number % quarter == quarter - 1
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// The sum of what is published.
    pub(crate) fn counters(&self) -> Counters {
        // Not under the lock: a pool may be made meanwhile.
        let publishers = self.publishers.lock().clone();
        let mut counters = Counters::default();
        for publisher in publishers.iter().filter_map(Weak::upgrade) {
            publisher.publish(&mut counters);
        }
        counters
    }
}

/// Nothing is recorded any more.
pub(crate) fn stop() {
    ON.store(false, Relaxed);
}

pub(crate) fn the_recorder() -> Option<&'static Recorder> {
    made().filter(|recorder| !recorder.is_forked())
}

/// For its owner alone, if it is not there.
fn make_folder(folder: &Path) -> Result<(), StartError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| refused("mkdir", folder, &error))
}

/// `node-r3-4711.trace`, with a number if there is one of a process that had the same.
fn new_file(folder: &Path, stem: &str, kind: &str) -> Result<File, StartError> {
    const MOST: u32 = 100;
    for number in 0..MOST {
        let again = if number == 0 { String::new() } else { format!(".{number}") };
        let path = folder.join(format!("{stem}{again}.{kind}"));
        match create(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number + 1 < MOST => {}
            Err(error) => return Err(refused("open", &path, &error)),
            Ok(file) => return Ok(file),
        }
    }
    Err(refused("open", &folder.join(stem), &ErrorKind::AlreadyExists.into()))
}

fn refused(call: &'static str, path: &Path, error: &io::Error) -> StartError {
    StartError::File { call, path: path.to_owned(), reason: error.to_string() }
}
