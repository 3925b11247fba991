//! Threads of pinyard's own take no signals: those are for the program's.
#![allow(unsafe_code)]

use core::mem::{size_of, zeroed};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
            let mut all: libc::sigset_t = zeroed();
            let mut before: libc::sigset_t = zeroed();
            if !cfg!(miri) {
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            }
            SignalsBlocked { before }
        }
    }
}

const NONE: u64 = u64::MAX;
/// The mask that the program's thread had which made the process's first daemon. The kernel has 64 signals, and
/// glibc never blocks all of them.
static REMEMBERED: AtomicU64 = AtomicU64::new(NONE);
const _: () = assert!(size_of::<libc::sigset_t>() >= size_of::<u64>());

pub(crate) fn remember(blocked: &SignalsBlocked) {
    // SAFETY: a set is words of bits, the first signals' in the first.
    let mask = unsafe { (&raw const blocked.before).cast::<u64>().read() };
    let _ = REMEMBERED.compare_exchange(NONE, mask, Relaxed, Relaxed);
}

/// Gives the calling thread the mask that was remembered.
pub(crate) fn restore_remembered() {
    let mask = REMEMBERED.load(Relaxed);
    if mask != NONE {
        // SAFETY: all-zero is a valid set, whose first word is written; the calling thread's mask.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            (&raw mut set).cast::<u64>().write(mask);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, null_mut());
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if cfg!(miri) {
            return; // it has no signals
        }
        // SAFETY: the calling thread's own earlier mask.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, null_mut()) };
    }
}
