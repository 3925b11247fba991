//! The thread that does what no callback may: it tells libfabric about stale
//! entries and asks whether the hooks are still in place.
#![allow(unsafe_code)]

use super::import::Imported;
use pinyard_hooks::{SignalsBlocked, fork_generation};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

/// How long a stale entry that nobody looks up stays in libfabric's cache.
const PERIOD: Duration = Duration::from_millis(100);
/// How long an exiting process waits for a round that is under way.
const PATIENCE: Duration = Duration::from_secs(1);

/// No round starts any more.
static QUIET: AtomicBool = AtomicBool::new(false);
/// A round is under way.
static BUSY: AtomicBool = AtomicBool::new(false);
/// The process that has the thread: a forked child has not, and waits for none.
static OWNER: AtomicU32 = AtomicU32::new(0);

pub(super) struct Helper;

impl Helper {
    /// Starts the thread, which lasts as long as the process.
    pub(super) fn spawn(imported: &'static Imported) -> std::io::Result<()> {
        OWNER.store(fork_generation(), SeqCst);
        // The program's signals are for its own threads: a new thread starts
        // with its creator's mask.
        let _blocked = SignalsBlocked::now();
        let spawned = std::thread::Builder::new()
            .name("pinyard-fabric".into())
            .stack_size(128 << 10)
            .spawn(move || rounds(imported));
        spawned?;
        // SAFETY: a plain function. Were it refused for want of memory, a round
        // could run beside libfabric's destructor, as any thread's call could.
        unsafe { libc::atexit(stop_at_exit) };
        Ok(())
    }
}

fn rounds(imported: &Imported) {
    while !QUIET.load(Acquire) {
        std::thread::sleep(PERIOD);
        // SeqCst, both: either this round sees QUIET, or `stop_at_exit` sees BUSY.
        BUSY.store(true, SeqCst);
        if !QUIET.load(SeqCst) {
            imported.monitor().trust(pinyard_hooks::verify());
            imported.deliver();
        }
        BUSY.store(false, SeqCst);
    }
}

/// Runs before the destructors of libraries: libfabric's takes its locks apart.
extern "C" fn stop_at_exit() {
    QUIET.store(true, SeqCst);
    let start = Instant::now();
    let here = OWNER.load(SeqCst) == fork_generation();
    while here && BUSY.load(SeqCst) && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
}
