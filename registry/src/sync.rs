//! Atomics and locks: the real ones, or loom's when the models are built.
//!
//! The only file of this crate that knows about `cfg(loom)` for types; the
//! modules that talk to the kernel are left out of the models in `lib.rs`.

#[cfg(not(loom))]
mod chosen {
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// log2 of the entries of a directory table.
    pub(crate) const FANOUT_SHIFT: u32 = 9;

    /// See the models' version.
    #[inline(always)]
    pub(crate) fn store_load_barrier() {}
}

#[cfg(loom)]
mod chosen {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    /// Two entries a table: every level is reached with four pages.
    pub(crate) const FANOUT_SHIFT: u32 = 1;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        match mutex.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    /// Stands between a SeqCst read-modify-write of one word and a SeqCst load of
    /// another. The language orders those by their total order; loom takes
    /// SeqCst accesses for acquire-release ones and only knows the total order of
    /// fences, so the models say it with a fence.
    pub(crate) fn store_load_barrier() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }
}

pub(crate) use chosen::*;

/// A word that a fresh mapping's zero bytes represent.
pub(crate) trait Zero: Sized {
    /// The value that all-zero bytes have.
    #[cfg_attr(not(loom), allow(dead_code))]
    fn zero() -> Self;
}

impl Zero for AtomicU32 {
    fn zero() -> Self {
        AtomicU32::new(0)
    }
}

impl Zero for AtomicU64 {
    fn zero() -> Self {
        AtomicU64::new(0)
    }
}
