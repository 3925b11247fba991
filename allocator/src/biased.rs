//! A value that one thread uses without waiting, and that another may take away.
//!
//! The owner enters with a store and a load; nothing it does is a
//! read-modify-write. Somebody else revokes it, waits until the owner is out of
//! its section (a few dozen instructions, never a lock or a system call), uses
//! the value, and restores it. An owner who finds it revoked does without.
//!
//! The proof is Dekker's: owner `busy = true; light; load revoked`, revoker
//! `revoked = true; heavy; load busy`. One of them sees the other (model in
//! `models.rs`).
#![allow(unsafe_code)]

use crate::sync::{AtomicBool, UnsafeCell, light_fence, yield_now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

pub(crate) struct Biased<T> {
    /// Written by the owner: it is in its section.
    busy: AtomicBool,
    /// Written by the revoker, of which there is one at a time.
    revoked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `enter` and `with_revoked` give access to one thread at a time, as the
// protocol above shows; the value moves between threads, so it must be Send.
unsafe impl<T: Send> Sync for Biased<T> {}

impl<T> Biased<T> {
    pub(crate) fn new(value: T) -> Self {
        Biased {
            busy: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Runs `section` on the value, or answers `None` if it is revoked.
    ///
    /// # Safety
    /// Only the owning thread enters, and not from within `section`. `section`
    /// does not wait for anything, nor unwind.
    #[inline(always)]
    pub(crate) unsafe fn enter<R>(&self, section: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.busy.store(true, Relaxed);
        light_fence();
        // Acquire: pairs with `restore`; the owner sees what the revoker did.
        let result = if self.revoked.load(Acquire) {
            None
        } else {
            // SAFETY: not revoked after `busy` was published: a revoker that
            // comes now waits. The owner is one thread and does not nest.
            Some(self.value.with_mut(|value| section(unsafe { &mut *value })))
        };
        // Release: pairs with the Acquire in `wait`.
        self.busy.store(false, Release);
        result
    }

    /// Begins to take the value away. `heavy_fence` and then [`wait`](Self::wait)
    /// before it is used. Revokers are serialised by the caller.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Relaxed);
    }

    /// Waits until the owner is out of its section.
    pub(crate) fn wait(&self) {
        // Acquire: pairs with the end of `enter`.
        while self.busy.load(Acquire) {
            yield_now();
        }
    }

    /// Uses the value.
    ///
    /// # Safety
    /// Between `wait` and `restore`, by the revoker.
    pub(crate) unsafe fn with_revoked<R>(&self, section: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the owner is out and, seeing `revoked`, stays out.
        self.value.with_mut(|value| section(unsafe { &mut *value }))
    }

    /// Gives the value back to its owner.
    pub(crate) fn restore(&self) {
        // Release: pairs with the Acquire in `enter`.
        self.revoked.store(false, Release);
    }
}
