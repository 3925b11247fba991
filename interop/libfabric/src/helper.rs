//! The thread that does what no callback may: it asks whether the hooks are still
//! in place, tells libfabric about stale entries, and does what others ask of it.
#![allow(unsafe_code)]

use pinyard_hooks::{fork_generation, stack_size};
use pinyard_worker::caught;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use std::sync::{Mutex, MutexGuard};
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
static TASKS: Mutex<Vec<fn(bool)>> = Mutex::new(Vec::new());

fn tasks() -> MutexGuard<'static, Vec<fn(bool)>> {
    TASKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Has the helper thread call `task` every [`PERIOD`], for as long as the process
/// lasts, with whether every change of a mapping still reaches the hooks. Starts the
/// thread where this process has none. A task that is there already is not added.
///
/// # Errors
/// pthread_create's.
pub fn every_round(task: fn(bool)) -> std::io::Result<()> {
    // Asks the loader: before the lock.
    let stack = stack_size(STACK);
    let mut tasks = tasks();
    if OWNER.load(SeqCst) != fork_generation() {
        spawn(stack)?;
    }
    if !tasks.iter().any(|known| core::ptr::fn_addr_eq(*known, task)) {
        tasks.push(task);
    }
    Ok(())
}

fn spawn(stack: usize) -> std::io::Result<()> {
    // A parent's round that the fork has cut off.
    BUSY.store(false, SeqCst);
    // Nothing is logged here: what the panic hook prints is all.
    pinyard_worker::spawn("pinyard-fabric", stack, (), |()| rounds(), |_| ())?;
    if OWNER.swap(fork_generation(), SeqCst) == NOBODY {
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
    // A copy: a task may wait for libfabric, and nobody for the list then.
    let tasks = tasks().clone();
    for task in tasks {
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
            FIRST.fetch_add(1, SeqCst);
            panic_any(Bomb)
        }
        fn second(_: bool) {
            SECOND.fetch_add(1, SeqCst);
        }
        every_round(first).unwrap();
        every_round(second).unwrap();
        let has_gone_on = (0..200).any(|_| {
            std::thread::sleep(PERIOD);
            FIRST.load(SeqCst) >= 3 && SECOND.load(SeqCst) >= 3
        });
        assert!(has_gone_on, "{} and {} rounds", FIRST.load(SeqCst), SECOND.load(SeqCst));
        tasks().retain(|task| !core::ptr::fn_addr_eq(*task, first as fn(bool)));
    }
}
