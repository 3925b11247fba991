//! After a fork: a pool is the parent's.
//!
//! A child has one thread and a copy of a pool that other threads may have been
//! using: its lock may be held for ever, and its registrations are not the child's.
//! There, an allocation fails, a drop does nothing, and nothing waits.
#![allow(unsafe_code)]

use crate::threads;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between this process and the first that made a pool.
#[inline]
pub(crate) fn generation() -> u32 {
    // Relaxed: written by a child's only thread before fork returns.
    GENERATION.load(Relaxed)
}

/// Runs in the child, before fork returns: plain stores only.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Relaxed);
    // The fast path goes by this; everything behind it compares the generation.
    threads::forget_last();
}

/// Before the first pool is made.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if cfg!(miri) {
            return; // it has no fork
        }
        // SAFETY: the handler is a plain function of this library, which takes its
        // handlers with it when it is unloaded. ENOMEM would cost a child its notice.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}
