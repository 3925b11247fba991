//! Whether a thread is one that [`spawn`](crate::spawn) has made: see [`pinyard_hooks::daemon`].

use pinyard_hooks::at_thread_end;
use pinyard_hooks::daemon::{is_busy, is_idle};
use std::cell::Cell;

thread_local! {
    /// Without a destructor: it is there until the thread's last step.
    static IS_DAEMON: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread begins. Without a place to be told of its end it is counted, as the program's are.
pub(crate) fn begins() {
    fn ends() {
        if IS_DAEMON.replace(false) {
            is_busy();
        }
    }
    IS_DAEMON.set(at_thread_end(ends));
    if !IS_DAEMON.get() {
        is_busy();
    }
}

/// While it is there, the calling thread is in the program's code.
pub(crate) struct InTheProgram {
    is_daemon: bool,
}

impl InTheProgram {
    #[inline]
    pub(crate) fn enter() -> InTheProgram {
        let is_daemon = IS_DAEMON.get();
        if is_daemon {
            is_busy();
        }
        InTheProgram { is_daemon }
    }
}

impl Drop for InTheProgram {
    #[inline]
    fn drop(&mut self) {
        if self.is_daemon {
            is_idle();
        }
    }
}
