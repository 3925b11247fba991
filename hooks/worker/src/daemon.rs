//! Whether a thread is one that [`spawn`](crate::spawn) has made: see [`pinyard_hooks::daemon`].

use pinyard_hooks::at_thread_end;
use pinyard_hooks::daemon::{ends_last, is_busy, is_idle};
use std::cell::Cell;

thread_local! {
    /// A daemon that is not in the program's code. Without a destructor: it is there until the thread's last step.
    static IS_IDLE: Cell<bool> = const { Cell::new(false) };
    /// Rounds of destructors (pthread_key_create(3)) until this thread, which ends, checks the count.
    static STEPS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread begins.
pub(crate) fn begins() {
    IS_IDLE.set(true);
}

/// The calling thread ends. What follows is destructors, the program's too, of data that its code has left there.
pub(crate) fn ends() {
    /// Of every thread that has asked for something at its end.
    fn destructors_run() {
        match STEPS.replace(0) {
            0 => {}
            1 => ends_last(),
            // Those of thread-specific data run in any order, and then once more where there is new data.
            more => STEPS.set(if at_thread_end(destructors_run) { more - 1 } else { 0 }),
        }
    }
    std::mem::forget(InTheProgram::enter());
    STEPS.set(if at_thread_end(destructors_run) { 2 } else { 0 });
}

/// While it is there, the calling thread is in the program's code. The outermost one counts: where a thread forks
/// inside, or leaves an inner one by longjmp(3), that is what is undone.
pub(crate) struct InTheProgram {
    was_idle: bool,
}

impl InTheProgram {
    #[inline]
    pub(crate) fn enter() -> InTheProgram {
        let was_idle = IS_IDLE.replace(false);
        if was_idle {
            is_busy();
        }
        InTheProgram { was_idle }
    }
}

impl Drop for InTheProgram {
    #[inline]
    fn drop(&mut self) {
        if self.was_idle {
            IS_IDLE.set(true);
            is_idle();
        }
    }
}
