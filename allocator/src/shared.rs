//! A pool's core: the bins that every thread reaches without a lock, and the
//! ranges and slabs under one.
//!
//! The lock is held for bookkeeping only. Sources, backends and fences are
//! called without it: a [`DriverToken`] cannot be had while it is held.
//!
//! Who keeps the core: the pool's handles; each thread that has magazines of it;
//! and, once the last handle is gone, the worker that waits for the last block
//! (`worker.rs`). So a block in use implies that the core stands.
#![allow(unsafe_code)]

use crate::block::BlockRef;
use crate::classes::{self, Class};
use crate::coming::PoolRequests;
use crate::counters::{Counters, Counts};
use crate::cut::Cut;
use crate::deferred::Deferred;
use crate::exit;
use crate::fence::Fence;
use crate::fork;
use crate::growing::Growing;
use crate::magazine::{Bins, Cache};
use crate::poison::Poison;
use crate::ranges::Ranges;
use crate::requests::guarded;
use crate::slab::Slab;
use crate::sleep::Sleep;
use crate::source::DriverToken;
use crate::span::Kind;
use crate::stats::{Observer, PoolStats};
use crate::sync::heavy_fence;
use crate::threads;
use crate::trace::{self, Traced};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pinyard_trace::counters::{self, Publisher};
use pinyard_worker::ThreadId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

pub(crate) struct Core {
    pub(crate) bins: Bins,
    pub(crate) deferred: Deferred,
    /// The largest class that slabs of this pool are cut into.
    pub(crate) largest: Class,
    /// What threads did that have no magazines here, or none any more.
    pub(crate) counters: Counters,
    pub(crate) registrations: AtomicU64,
    /// Allocations that took the lock.
    pub(crate) slow: AtomicU64,
    /// No handle is left, so nobody allocates.
    pub(crate) closed: AtomicBool,
    /// Looks for writes to freed memory.
    pub(crate) poison: Option<Box<Poison>>,
    /// The pool's place in the process's trace.
    pub(crate) traced: Option<Traced>,
    /// One of the two: what an allocation asks, and a free finds in its span.
    pub(crate) watched: bool,
    /// The fork generation of the process that made the pool.
    forks: u32,
    /// Asks fences, and waits for the last block of a closed pool (`worker.rs`).
    pub(crate) worker: OnceLock<Thread>,
    /// The same thread's, for `is_worker`.
    pub(crate) worker_id: OnceLock<ThreadId>,
    pub(crate) sleep: Sleep,
    /// The worker was started, or is being.
    pub(crate) has_worker: Mutex<bool>,
    /// The pool is the worker's to end.
    pub(crate) left_to_worker: AtomicBool,
    /// Allocations that wait without a thread.
    pub(crate) requests: PoolRequests,
    /// Told of shortages.
    pub(crate) observers: Mutex<Vec<Observer>>,
    /// Signalled when a thread has ended its attempt to add a slab.
    pub(crate) grown: Condvar,
    cold: Mutex<Cold>,
}

/// What the lock guards.
#[derive(Default)]
pub(crate) struct Cold {
    pub(crate) ranges: Ranges,
    /// By address.
    pub(crate) slabs: BTreeMap<usize, Slab>,
    /// Free, but somebody else has a lease of each.
    pub(crate) leased: Vec<Slab>,
    /// Threads' magazines.
    pub(crate) caches: Vec<Arc<Cache>>,
    /// Blocks of the arena that have no place.
    pub(crate) unplaced: Vec<BlockRef>,
    /// Bytes of slabs, those coming and going included.
    pub(crate) reserved: usize,
    pub(crate) peak_reserved: usize,
    /// What the slabs are cut into.
    pub(crate) cut: Cut,
    /// The thread that adds a slab, without the lock.
    pub(crate) growing: Growing,
}

impl Core {
    pub(crate) fn new(largest: Class, poison: bool, traced: Option<Traced>) -> Arc<Core> {
        Arc::new(Core {
            bins: Bins::new(),
            deferred: Deferred::default(),
            largest,
            counters: Counters::default(),
            registrations: AtomicU64::new(0),
            slow: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            poison: poison.then(|| Box::new(Poison::new())),
            traced,
            watched: poison || traced.is_some(),
            forks: fork::generation(),
            worker: OnceLock::new(),
            worker_id: OnceLock::new(),
            sleep: Sleep::new(),
            has_worker: Mutex::new(false),
            left_to_worker: AtomicBool::new(false),
            requests: PoolRequests::default(),
            observers: Mutex::default(),
            grown: Condvar::new(),
            cold: Mutex::new(Cold::default()),
        })
    }

    /// Whether this process is a fork of the one that made the pool.
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != fork::generation()
    }

    /// For a thread that may not wait: `None` while the lock is held.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Cold>> {
        self.cold.try_lock()
    }

    /// Where a thread may have ended that held the lock: `None`.
    pub(crate) fn lock_at_exit(&self) -> Option<MutexGuard<'_, Cold>> {
        self.cold.try_lock_for(exit::PATIENCE)
    }

    /// The pool's lock. The token is not to be had while it is held.
    pub(crate) fn lock<'a>(&'a self, _: &'a mut DriverToken) -> MutexGuard<'a, Cold> {
        self.cold.lock()
    }

    /// A free block of `class` from the thread's magazines or the class's bin.
    #[inline(always)]
    pub(crate) fn alloc_fast(self: &Arc<Self>, class: Class) -> Option<BlockRef> {
        threads::with(self, |cache| {
            // SAFETY: the thread's own cache; the section pops magazines, without
            // waiting or unwinding.
            let entered = unsafe {
                cache.biased().enter(|magazines| {
                    let block = magazines.pop(class, &self.bins)?;
                    cache.counters.own_allocation(classes::size_of(class));
                    Some(block)
                })
            };
            entered.flatten()
        })
        .flatten()
    }

    /// Takes `block`, which is in use, back from its owner. Waits for no lock and
    /// calls no driver, whoever calls.
    #[inline(always)]
    pub(crate) fn free(block: BlockRef) {
        // SAFETY: a block in use has a span. Copied, because it may go once the block
        // is pushed.
        let Kind { core, class, rounds, block_bytes, watched } = unsafe { block.place().span.as_ref() }.kind;
        if watched {
            Core::look_at_free(block);
        }
        let done = threads::with_existing(core, |core, cache| {
            // SAFETY: the thread's own cache; the section pushes to magazines,
            // without waiting or unwinding.
            let entered = unsafe {
                cache.biased().enter(|magazines| {
                    cache.counters.own_free(block_bytes);
                    magazines.push(class, rounds, block, &core.bins);
                })
            };
            entered.is_some()
        });
        if done != Some(true) {
            Core::free_slow(block);
        }
    }

    /// Of a pool that is watched: the block is free and still ours.
    #[cold]
    #[inline(never)]
    fn look_at_free(block: BlockRef) {
        // SAFETY: as in `free`.
        let span = unsafe { block.place().span.as_ref() };
        let Kind { core, block_bytes, .. } = span.kind;
        // SAFETY: the core stands while the block is in use, which it is until it is pushed.
        let core = unsafe { &*core };
        if let Some(poison) = &core.poison
            && !core.is_forked()
        {
            // SAFETY: the block's memory, which its owner has given up and nobody has yet.
            unsafe { poison.freed(block.place().address, block_bytes) };
        }
        if let Some(traced) = core.traced {
            traced.block(trace::Kind::Free, block.place().address, 0, block_bytes, span.slab.start);
        }
    }

    /// A thread that has no magazines here (yet, or any more), or whose magazines
    /// are revoked: to the bin.
    #[cold]
    fn free_slow(block: BlockRef) {
        // SAFETY: as in `free`.
        let Kind { core, class, block_bytes, .. } = unsafe { block.place().span.as_ref() }.kind;
        // SAFETY: the core lives in an Arc (`Core::new`), and stands while the block
        // is in use, which it is until it is pushed.
        unsafe { Arc::increment_strong_count(core) };
        // SAFETY: takes over the count just added.
        let core = unsafe { Arc::from_raw(core) };
        if core.is_forked() {
            return;
        }
        threads::adopt(&core);
        core.put_in_bin(class, block, block_bytes);
    }

    fn put_in_bin(&self, class: Class, block: BlockRef, block_bytes: usize) {
        self.counters.add(Counts::free(block_bytes));
        self.bins.push_one(class, block);
        self.wake_of_closed();
    }

    /// As `free`, for a thread that shall keep nothing, of a pool that is not forked.
    pub(crate) fn free_for_all(&self, block: BlockRef) {
        // SAFETY: as in `free`.
        let Kind { class, block_bytes, watched, .. } = unsafe { block.place().span.as_ref() }.kind;
        if watched {
            Core::look_at_free(block);
        }
        self.put_in_bin(class, block, block_bytes);
    }

    /// After blocks went to a bin: whoever waits for a closed pool's looks for them.
    pub(crate) fn wake_of_closed(&self) {
        // Pairs with the fence in `close`: either it finds the blocks, or we find that
        // the pool is closed.
        fence(SeqCst);
        if self.closed.load(Relaxed) {
            self.sleep.wake(self.worker.get());
        }
    }

    /// Gives up a block, which is in use, until `fence` has passed.
    pub(crate) fn defer(fence: Fence, block: BlockRef) {
        // SAFETY: as in `free`.
        let Kind { core, block_bytes, .. } = unsafe { block.place().span.as_ref() }.kind;
        // SAFETY: as in `free_slow`; with this count it stands until the worker is woken.
        unsafe { Arc::increment_strong_count(core) };
        // SAFETY: takes over the count just added.
        let core = unsafe { Arc::from_raw(core) };
        if core.is_forked() {
            return;
        }
        if let Some(traced) = core.traced {
            // SAFETY: as in `free`.
            let span = unsafe { block.place().span.as_ref() };
            traced.block(trace::Kind::Fence, block.place().address, 0, block_bytes, span.slab.start);
        }
        core.deferred.push(fence, block, block_bytes);
        core.sleep.wake(core.worker.get());
    }

    /// Releases slabs that hold no block, and those that were leased before; their bytes.
    pub(crate) fn release(&self, mut slabs: Vec<Slab>, token: &mut DriverToken) -> usize {
        let fresh = slabs.len();
        slabs.append(&mut self.lock(token).leased);
        if slabs.is_empty() {
            return 0;
        }
        let (mut bytes, mut leased) = (0, Vec::new());
        for (at, slab) in slabs.into_iter().enumerate() {
            let bounds = slab.bounds();
            if let Some(poison) = self.poison.as_ref().filter(|_| at < fresh) {
                // SAFETY: the slab is ours, and mapped until it is released.
                guarded("an alarm", || unsafe { poison.released(bounds.start, bounds.bytes) });
            }
            // SAFETY: `detach_free_slabs` found the slab free from end to end.
            match unsafe { slab.release(token) } {
                Ok(()) => {
                    bytes += bounds.bytes;
                    if let Some(traced) = self.traced {
                        traced.slab(trace::Kind::Trim, bounds.start, bounds.bytes);
                    }
                }
                Err(slab) => leased.push(slab),
            }
        }
        let mut cold = self.lock(token);
        cold.reserved -= bytes;
        cold.leased.append(&mut leased);
        bytes
    }

    /// Under the lock: takes every thread's magazines away and empties them into
    /// the bins. `false`: the kernel refused; nothing was taken.
    #[must_use]
    pub(crate) fn revoke(&self, cold: &Cold) -> bool {
        for cache in &cold.caches {
            cache.biased().revoke();
        }
        if !heavy_fence() {
            self.restore(cold);
            return false;
        }
        for cache in &cold.caches {
            cache.biased().wait();
            // SAFETY: revoked, fenced and waited for; the lock serialises revokers.
            unsafe { cache.biased().with_revoked(|magazines| magazines.empty_into(&self.bins)) };
        }
        true
    }

    /// A thread ends: its magazines go to the bins.
    pub(crate) fn retire(&self, cache: &Arc<Cache>) {
        if self.is_forked() {
            return;
        }
        let mut token = DriverToken::at_entry();
        let mut cold = self.lock(&mut token);
        // Not there: the pool was closed, and the magazines were taken.
        let Some(at) = cold.caches.iter().position(|other| Arc::ptr_eq(other, cache)) else { return };
        cold.caches.swap_remove(at);
        // SAFETY: the owning thread, outside any section; the lock keeps revokers out.
        let _ = unsafe { cache.biased().enter(|magazines| magazines.empty_into(&self.bins)) };
        self.counters.add(cache.counters.counts());
        drop(cold);
        self.wake_of_closed();
    }

    pub(crate) fn restore(&self, cold: &Cold) {
        for cache in &cold.caches {
            cache.biased().restore();
        }
    }

    /// Under the lock: all that was ever handed out and taken back.
    pub(crate) fn counts(&self, cold: &Cold) -> Counts {
        cold.caches.iter().fold(self.counters.counts(), |sum, cache| sum + cache.counters.counts())
    }

    /// Under the lock: bytes of free blocks, in bins and magazines.
    pub(crate) fn cached_bytes(&self, cold: &Cold) -> usize {
        cold.cut.bytes().saturating_sub(self.counts(cold).live_bytes as usize)
    }

    pub(crate) fn stats(&self) -> PoolStats {
        if self.is_forked() {
            return PoolStats::default();
        }
        let mut token = DriverToken::at_entry();
        let cold = self.lock(&mut token);
        self.stats_of(&cold)
    }

    /// Under the lock.
    pub(crate) fn stats_of(&self, cold: &Cold) -> PoolStats {
        // First: it is never more than all.
        let slow_allocations = self.slow.load(Relaxed);
        let counts = self.counts(cold);
        PoolStats {
            slabs: cold.slabs.len() as u64,
            registrations: self.registrations.load(Relaxed),
            reserved_bytes: cold.reserved as u64,
            peak_reserved_bytes: cold.peak_reserved as u64,
            peak_block_bytes: cold.cut.peak() as u64,
            live_bytes: counts.live_bytes,
            live_blocks: counts.live_blocks(),
            deferred_blocks: self.deferred.count() as u64,
            free_bytes: cold.ranges.free_bytes() as u64,
            cached_bytes: self.cached_bytes(cold) as u64,
            allocations: counts.allocations,
            slow_allocations,
            frees: counts.frees,
        }
    }
}

impl Publisher for Core {
    fn publish(&self, to: &mut counters::Counters) {
        let stats = self.stats();
        to.pool_bytes += stats.reserved_bytes;
        to.live_bytes += stats.live_bytes;
        to.allocations += stats.allocations;
        to.frees += stats.frees;
    }
}
