//! Atomics, locks and fences: the real ones, or loom's when the models are built.
//!
//! The only file of this crate that knows about `cfg(loom)` for types; the
//! modules that talk to the kernel are left out of the models in `lib.rs`.

#[cfg(not(loom))]
mod chosen {
    pub(crate) use crate::shards::{SHARDS, SHARED, ever_used, is_alone, order_all_counts};
    pub(crate) use parking_lot::{Mutex, MutexGuard};
    pub(crate) use pinyard_hooks::fork_generation;
    pub(crate) use std::sync::atomic::{AtomicI64, AtomicU32};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// Between a plain store of a shard of one's own and a load: the other side
    /// is `order_all_counts`.
    #[inline(always)]
    pub(crate) fn light_fence() {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// See the models' version.
    #[inline(always)]
    pub(crate) fn store_load_barrier() {}
}

#[cfg(loom)]
mod chosen {
    pub(crate) use loom::sync::atomic::{AtomicI64, AtomicU32};
    pub(crate) use loom::sync::{Mutex, MutexGuard};

    pub(crate) const SHARDS: usize = 3;
    /// Shards 0 and 1 are a thread's own.
    pub(crate) const SHARED: u32 = 2;

    pub(crate) fn ever_used() -> impl Iterator<Item = u32> {
        0..SHARDS as u32
    }

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        match mutex.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }

    pub(crate) fn is_alone() -> bool {
        true
    }

    pub(crate) fn fork_generation() -> u32 {
        0
    }

    /// What the kernel's barrier makes of the pair, in the language's terms.
    pub(crate) fn order_all_counts() -> bool {
        store_load_barrier();
        true
    }

    /// See `order_all_counts`.
    pub(crate) fn light_fence() {
        store_load_barrier();
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
pub(crate) use pinyard_hooks::MAX_COMING;
