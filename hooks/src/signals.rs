//! Threads of pinyard's own take no signals: those are for the program's.
#![allow(unsafe_code)]

/// Blocks every signal of the calling thread until it is dropped. A thread that
/// is made meanwhile starts with all of them blocked, and keeps them so.
pub struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    /// Blocks from now on. Not for hooks.
    #[must_use = "signals are unblocked again when this is dropped"]
    pub fn now() -> SignalsBlocked {
        // SAFETY: all-zero is a valid signal set; both are filled by the calls,
        // which cannot fail with these arguments.
        unsafe {
            let mut all: libc::sigset_t = core::mem::zeroed();
            let mut before: libc::sigset_t = core::mem::zeroed();
            if !cfg!(miri) {
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            }
            SignalsBlocked { before }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if cfg!(miri) {
            return; // it has no signals
        }
        // SAFETY: the calling thread's own earlier mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, core::ptr::null_mut()) };
    }
}
