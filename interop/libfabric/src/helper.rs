//! The thread that does what no callback may: it asks whether the hooks are still
//! in place, tells libfabric about stale entries, and does what others ask of it.
#![allow(unsafe_code)]

use pinyard_hooks::{fork_generation, stack_size};
use pinyard_worker::caught;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

/// Between two rounds. A stale entry that nobody looks up leaves libfabric's cache in
/// the second round after its change.
pub const PERIOD: Duration = Duration::from_millis(50);
/// How long an exiting process waits for a round that is under way.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of stack that the thread needs itself. It calls libfabric.
const STACK: usize = 128 << 10;
const NOBODY: u32 = u32::MAX;

/// No round starts any more.
static QUIET: AtomicBool = AtomicBool::new(false);
/// A round is under way.
static BUSY: AtomicBool = AtomicBool::new(false);
/// The process that has the thread, as a fork generation: a forked child has not,
/// and waits for none.
static OWNER: AtomicU32 = AtomicU32::new(NOBODY);
static TASKS: boxcar::Vec<fn(bool)> = boxcar::Vec::new();

/// Has the helper thread call `task` every [`PERIOD`], for as long as the process
/// lasts, with whether every change of a mapping still reaches the hooks. Starts the
/// thread where this process has none. A task that is there already is not added, unless
/// two threads add it at once.
///
/// Under no lock: starting a thread may wait for the loader. So of two threads that come
/// at once, one hears of a thread that could not be started.
///
/// # Errors
/// pthread_create's. The task stays, for a thread that a later call starts.
pub fn every_round(task: fn(bool)) -> std::io::Result<()> {
    if !TASKS.iter().any(|(_, known)| core::ptr::fn_addr_eq(*known, task)) {
        TASKS.push(task);
    }
    let (before, here) = (OWNER.load(SeqCst), fork_generation());
    if before == here || OWNER.compare_exchange(before, here, SeqCst, SeqCst).is_err() {
        return Ok(());
    }
    // A parent's round that the fork has cut off.
    BUSY.store(false, SeqCst);
    // Nothing is logged here: what the panic hook prints is all.
    let spawned = pinyard_worker::spawn("pinyard-fabric", stack_size(STACK), (), |()| rounds(), |_| ());
    if let Err(error) = spawned {
        OWNER.store(before, SeqCst);
        return Err(error);
    }
    if before == NOBODY {
        // SAFETY: a plain function. Were it refused for want of memory, a round
        // could run beside libfabric's destructor, as any thread's call could.
        unsafe { libc::atexit(stop_at_exit) };
    }
    Ok(())
}

fn rounds() {
    while !QUIET.load(Acquire) {
        std::thread::sleep(PERIOD);
        // SeqCst, both: either this round sees QUIET, or `stop_at_exit` sees BUSY.
        BUSY.store(true, SeqCst);
        if !QUIET.load(SeqCst) {
            let _ = caught(round);
        }
        BUSY.store(false, SeqCst);
    }
}

/// A task that panics keeps no other from its turn, and has its own in the next round.
fn round() {
    let complete = pinyard_hooks::verify();
    for (_, task) in TASKS.iter() {
        let _ = caught(|| task(complete));
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::panic_any;

    /// A payload whose own drop panics.
    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("the payload's drop")
        }
    }

    static FIRST: AtomicU32 = AtomicU32::new(0);
    static SECOND: AtomicU32 = AtomicU32::new(0);

    #[test]
    fn the_helper_outlives_a_task_that_panics() {
        fn first(_: bool) {
            // The list is the process's: it leaves the tests that follow alone.
            if FIRST.fetch_add(1, SeqCst) < 3 {
                panic_any(Bomb)
            }
        }
        fn second(_: bool) {
            SECOND.fetch_add(1, SeqCst);
        }
        every_round(first).unwrap();
        every_round(second).unwrap();
        let has_gone_on = (0..200).any(|_| {
            std::thread::sleep(PERIOD);
            FIRST.load(SeqCst) >= 4 && SECOND.load(SeqCst) >= 4
        });
        assert!(has_gone_on, "{} and {} rounds", FIRST.load(SeqCst), SECOND.load(SeqCst));
    }
}
