//! Turns a hang into a stack: when nothing has moved for a while, the stuck
//! thread is made to write down what it is in, and the process ends.
//!
//! The watching thread allocates nothing while it watches: in a program whose
//! allocator can hang it would hang as well.
#![allow(unsafe_code)]

use crate::cache::{Counts, Failure};
use crate::progress::Progress;
use pinyard_cli::demo::{Frame, Outcome, RankReport};
use std::backtrace::Backtrace;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Duration;

/// Exit status of a rank that hung.
pub const HUNG: i32 = 42;
/// How often the watchdog looks.
const LOOK: Duration = Duration::from_millis(100);
/// How long the stuck thread gets to write its report.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How long a hung rank waits for the others' reports: mpirun ends them all
/// when the first one exits.
const COMPANY: Duration = Duration::from_secs(2);

/// What is watched, and what the report of a hang needs.
pub struct Watched {
    /// What must move.
    pub progress: &'static Progress,
    /// For how long it may stand still.
    pub patience: Duration,
    /// The report but for what the hang adds.
    pub report: RankReport,
    /// Where reports go.
    pub folder: PathBuf,
    /// Called first: makes the allocator and the hooks harmless.
    pub quieten: fn(),
    /// The cache's counters. Must take no lock that may be held by a hung thread.
    pub counts: fn() -> Counts,
}

static WATCHED: OnceLock<Watched> = OnceLock::new();
static WATCHING: AtomicBool = AtomicBool::new(false);
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Watches the calling thread from now on. Once per process.
pub fn start(watched: Watched) -> Result<(), Failure> {
    install_handler()?;
    let watched = WATCHED.get_or_init(|| watched);
    // SAFETY: no preconditions.
    let stuck = unsafe { libc::pthread_self() };
    // SAFETY: no preconditions.
    let parent = unsafe { libc::getppid() };
    std::thread::Builder::new()
        .name("watchdog".into())
        .spawn(move || watch(watched, stuck, parent))
        .map_err(|error| Failure::new(format!("pthread_create(watchdog): {error}")))?;
    // A thread allocates as it starts; if this one hung meanwhile, so would that.
    while !WATCHING.load(Acquire) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The rounds are over: the rest may take its time.
pub fn stop() {
    STOPPED.store(true, Release);
}

fn watch(watched: &Watched, stuck: libc::pthread_t, parent: libc::pid_t) {
    let mut last = watched.progress.beat.load(Relaxed);
    let mut still = Duration::ZERO;
    WATCHING.store(true, Release);
    while !STOPPED.load(Acquire) {
        std::thread::sleep(LOOK);
        // SAFETY: no preconditions.
        if unsafe { libc::getppid() } != parent {
            // The launcher is gone; nobody wants the result.
            // SAFETY: no preconditions.
            unsafe { libc::_exit(1) };
        }
        let beat = watched.progress.beat.load(Relaxed);
        still = if beat == last { still + LOOK } else { Duration::ZERO };
        last = beat;
        if still >= watched.patience {
            (watched.quieten)();
            // SAFETY: the watched thread is the main thread, which lives as long
            // as the process.
            unsafe { libc::pthread_kill(stuck, libc::SIGALRM) };
            std::thread::sleep(LAST_WORDS);
            finish(watched, Vec::new());
        }
    }
}

fn install_handler() -> Result<(), Failure> {
    // SAFETY: all-zero is a valid sigaction: default mask, no flags.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_stuck as *const () as usize;
    // SAFETY: `action` is initialised, and the handler has a handler's signature.
    if unsafe { libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Failure::new(format!("sigaction(SIGALRM): {error}")));
    }
    Ok(())
}

/// Runs on the stuck thread, on top of whatever it waits for, and never
/// returns there. It allocates, which a signal handler must not do in general:
/// the thread waits for a lock or for a message and is in no allocator's
/// critical section, and if it were, the watchdog reports without a stack.
extern "C" fn on_stuck(_signal: i32) {
    if let Some(watched) = WATCHED.get() {
        finish(watched, frames(&Backtrace::force_capture().to_string()));
    }
}

/// Writes the report of the hang and ends the process. Called on the stuck
/// thread; if that gets nowhere either, on the watchdog's.
fn finish(watched: &Watched, stack: Vec<Frame>) {
    let mut report = watched.report.clone();
    report.rounds = watched.progress.rounds.load(Relaxed);
    report.stale = watched.progress.stale.load(Relaxed);
    report.counts = (watched.counts)();
    report.outcome = Outcome::Hung { round: report.rounds, seconds: watched.patience.as_secs_f64(), stack };
    let _ = write(&watched.folder, &report); // without it, the launcher reports the exit status
    await_others(watched);
    // SAFETY: no preconditions; nothing of this process can be saved.
    unsafe { libc::_exit(HUNG) };
}

fn await_others(watched: &Watched) {
    let all_reported = || (0..watched.report.ranks).all(|rank| report_path(&watched.folder, rank).exists());
    let mut waited = Duration::ZERO;
    while waited < COMPANY && !all_reported() {
        std::thread::sleep(LOOK);
        waited += LOOK;
    }
}

/// Where the report of `rank` goes.
pub fn report_path(folder: &Path, rank: i32) -> PathBuf {
    folder.join(format!("rank-{rank}.json"))
}

/// Writes a report, whole or not at all.
pub fn write(folder: &Path, report: &RankReport) -> Result<(), Failure> {
    let path = report_path(folder, report.rank);
    let unfinished = path.with_extension("unfinished");
    let failed = |error: String| Failure::new(format!("write {}: {error}", path.display()));
    let text = serde_json::to_vec_pretty(report).map_err(|error| failed(error.to_string()))?;
    std::fs::write(&unfinished, text)
        .and_then(|()| std::fs::rename(&unfinished, &path))
        .map_err(|error| failed(error.to_string()))
}

/// The frames of a printed backtrace, from the one that the signal interrupted.
fn frames(backtrace: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for line in backtrace.lines().map(str::trim) {
        if let Some(at) = line.strip_prefix("at ") {
            if let Some(frame) = frames.last_mut() {
                frame.at = Some(at.to_owned());
            }
        } else if let Some((_, call)) = line.split_once(": ") {
            frames.push(Frame { call: call.to_owned(), at: None });
        }
    }
    let handler = frames.iter().rposition(|frame| frame.call.ends_with("on_stuck"));
    // After the handler comes the frame that the kernel made for the signal.
    frames.drain(..handler.map_or(0, |handler| (handler + 2).min(frames.len())));
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_backtrace_becomes_frames() {
        let printed = "   0: std::backtrace::Backtrace::create\n   1: pinyard_mpi_tests::watchdog::on_stuck\n             \
                       at /src/watchdog.rs:9:1\n   2: <unknown>\n   3: __lll_lock_wait\n   4: madvise\n             \
                       at ./src/bin/rounds-naive.rs:20:5\n";
        let frame = |call: &str, at: Option<&str>| Frame { call: call.into(), at: at.map(str::to_owned) };
        assert_eq!(
            frames(printed),
            [frame("__lll_lock_wait", None), frame("madvise", Some("./src/bin/rounds-naive.rs:20:5"))]
        );
    }

    #[test]
    fn this_thread_has_frames() {
        let frames = frames(&Backtrace::force_capture().to_string());
        assert!(frames.iter().any(|frame| frame.call.contains("this_thread_has_frames")), "{frames:?}");
    }
}
