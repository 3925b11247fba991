//! A pool's core: the bins that every thread reaches without a lock, and the
//! ranges and slabs under one.
//!
//! The lock is held for bookkeeping only. Sources, backends and fences are
//! called without it: a [`DriverToken`] cannot be had while it is held.
//!
//! Who keeps the core: the pool's handles; each thread that has magazines of it;
//! and, once the last handle is gone, the drain that waits for the last block
//! (`close.rs`). So a block in use implies that the core stands.
#![allow(unsafe_code)]

use crate::block::{BlockRef, Magazine, Place};
use crate::classes::{self, CLASSES, Class, OVERSIZE};
use crate::counters::{Counters, Counts};
use crate::deferred::Deferred;
use crate::error::AllocError;
use crate::fence::Fence;
use crate::magazine::{Bins, Cache};
use crate::ranges::{Bounds, Ranges};
use crate::slab::Slab;
use crate::source::DriverToken;
use crate::span::{Kind, Span};
use crate::stats::PoolStats;
use crate::sync::heavy_fence;
use crate::threads;
use parking_lot::{Condvar, Mutex, MutexGuard};
use pinyard_hooks::PAGE_SIZE;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{Thread, ThreadId};

pub(crate) struct Core {
    pub(crate) bins: Bins,
    pub(crate) deferred: Deferred,
    /// The largest class that slabs of this pool are cut into.
    pub(crate) largest: Class,
    /// What threads did that have no magazines here, or none any more.
    pub(crate) counters: Counters,
    pub(crate) registrations: AtomicU64,
    /// No handle is left, so nobody allocates.
    pub(crate) closed: AtomicBool,
    /// Waits for the last block of a closed pool.
    pub(crate) drain: OnceLock<Thread>,
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
    /// Threads' magazines.
    pub(crate) caches: Vec<Arc<Cache>>,
    /// Blocks of the arena that have no place.
    unplaced: Vec<BlockRef>,
    /// Bytes of slabs, those coming and going included.
    pub(crate) reserved: usize,
    pub(crate) peak_reserved: usize,
    /// The thread that adds a slab, without the lock.
    pub(crate) growing: Option<ThreadId>,
}

// SAFETY: blocks, spans and magazines that are reachable from here are used by
// their owner alone (block.rs), and everything under the lock by its holder.
unsafe impl Send for Core {}
// SAFETY: as above.
unsafe impl Sync for Core {}

/// What an allocation needs.
#[derive(Clone, Copy)]
pub(crate) enum Want {
    Class(Class),
    /// A span of its own: whole pages, aligned.
    Pages {
        bytes: usize,
        align: usize,
    },
}

impl Want {
    /// Bytes of a range that can hold it.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Want::Class(class) => classes::size_of(class) * classes::span_blocks(class),
            Want::Pages { bytes, .. } => bytes,
        }
    }

    /// Bytes of the block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Want::Class(class) => classes::size_of(class),
            Want::Pages { bytes, .. } => bytes,
        }
    }

    fn align(self) -> usize {
        match self {
            Want::Class(_) => PAGE_SIZE,
            Want::Pages { align, .. } => align,
        }
    }
}

impl Core {
    pub(crate) fn new(largest: Class) -> Arc<Core> {
        Arc::new(Core {
            bins: Bins::new(),
            deferred: Deferred::new(),
            largest,
            counters: Counters::default(),
            registrations: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            drain: OnceLock::new(),
            grown: Condvar::new(),
            cold: Mutex::new(Cold::default()),
        })
    }

    /// For a thread that may not wait: `None` while the lock is held.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Cold>> {
        self.cold.try_lock()
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
        let Kind { core, class, rounds, block_bytes } = unsafe { block.place().span.as_ref() }.kind;
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
        threads::adopt(&core);
        core.counters.add(Counts::free(block_bytes));
        core.bins.push_one(class, block);
        core.wake_drain();
    }

    /// After blocks went to a bin.
    pub(crate) fn wake_drain(&self) {
        // Pairs with the fences in close.rs: either the drain finds the blocks, or we
        // find that the pool is closed, and the drain.
        fence(SeqCst);
        if self.closed.load(Relaxed)
            && let Some(drain) = self.drain.get()
        {
            drain.unpark();
        }
    }

    /// Gives up a block, which is in use, until `fence` has passed.
    pub(crate) fn defer(fence: Fence, block: BlockRef) {
        // SAFETY: as in `free`.
        let core = unsafe { block.place().span.as_ref() }.kind.core;
        // SAFETY: as in `free_slow`; with this count it stands until the drain is woken.
        unsafe { Arc::increment_strong_count(core) };
        // SAFETY: takes over the count just added.
        let core = unsafe { Arc::from_raw(core) };
        core.deferred.push(fence, block);
        core.wake_drain();
    }

    /// Releases slabs that hold no block; their bytes.
    pub(crate) fn release(&self, slabs: Vec<Slab>, token: &mut DriverToken) -> usize {
        if slabs.is_empty() {
            return 0;
        }
        let mut bytes = 0;
        for slab in slabs {
            bytes += slab.bounds().bytes;
            // SAFETY: `detach_free_slabs` found the slab free from end to end.
            unsafe { slab.release(token) };
        }
        self.lock(token).reserved -= bytes;
        bytes
    }

    /// Under the lock: a free block, from a bin or carved.
    pub(crate) fn take(&self, cold: &mut Cold, want: Want) -> Result<Option<BlockRef>, AllocError> {
        if let Want::Class(class) = want {
            // Another thread may have carved, or freed, before we had the lock.
            let mut magazine = self.bins.pop(class);
            if let Some(block) = magazine.pop() {
                self.bins.push(class, magazine);
                return Ok(Some(block));
            }
        }
        self.dissolve_oversize(cold);
        self.carve(cold, want)
    }

    /// Under the lock: a new span, one of whose blocks is returned; the others go
    /// to the bin.
    fn carve(&self, cold: &mut Cold, want: Want) -> Result<Option<BlockRef>, AllocError> {
        let (class, count, block_bytes) = match want {
            Want::Class(class) => (class, classes::span_blocks(class), classes::size_of(class)),
            Want::Pages { bytes, .. } => (OVERSIZE, 1, bytes),
        };
        while cold.unplaced.len() < count {
            let ids = self.bins.arena.grow().ok_or(AllocError::TooManyBlocks { ids: u32::MAX })?;
            cold.unplaced.extend(ids.map(|id| self.bins.arena.get(id)));
        }
        let Some((start, slab)) = cold.ranges.take(want.bytes(), want.align()) else { return Ok(None) };
        let Some(key) = cold.slabs.get(&slab.start).map(Slab::key) else { return Ok(None) };
        let rounds = if class == OVERSIZE { 0 } else { classes::rounds(class) as u32 };
        let blocks = cold.unplaced.split_off(cold.unplaced.len() - count).into_boxed_slice();
        let span = Box::new(Span {
            kind: Kind { core: self, class, rounds, block_bytes },
            key,
            slab,
            start,
            blocks,
            gathered: Cell::new(0),
        });
        let span = NonNull::from(Box::leak(span));
        // SAFETY: just made; nobody frees it before its blocks are gathered.
        let blocks = unsafe { &span.as_ref().blocks };
        let mut magazine = Magazine::EMPTY;
        for (index, &block) in blocks.iter().enumerate() {
            block.set_place(Place { address: start + index * block_bytes, span });
            if index > 0 {
                self.stow(&mut magazine, class, rounds, block);
            }
        }
        self.bins.push(class, magazine);
        Ok(blocks.first().copied())
    }

    /// Adds a block to a magazine that goes to the bin when it is full.
    fn stow(&self, magazine: &mut Magazine, class: Class, rounds: u32, block: BlockRef) {
        magazine.push(block);
        if magazine.count() >= rounds.max(1) {
            self.bins.push(class, magazine.take());
        }
    }

    /// Under the lock: blocks outside every class go back to the ranges.
    fn dissolve_oversize(&self, cold: &mut Cold) {
        if !self.bins.is_empty(OVERSIZE) {
            self.gather(cold, OVERSIZE);
        }
    }

    /// Under the lock: takes the free blocks of `class` out of its bin. Spans whose
    /// blocks are all among them become ranges again; the other blocks go back, or
    /// stay in the lock holder's hands if the pool is closed.
    pub(crate) fn gather(&self, cold: &mut Cold, class: Class) {
        let mut gathered = Vec::new();
        loop {
            let mut magazine = self.bins.pop(class);
            if magazine.count() == 0 {
                break;
            }
            while let Some(block) = magazine.pop() {
                // SAFETY: popped, so ours; the span stands while a block of it is out.
                let span = unsafe { block.place().span.as_ref() };
                span.gathered.set(span.gathered.get() + 1);
                gathered.push(block);
            }
        }
        let mut complete: Vec<NonNull<Span>> = Vec::new();
        let mut magazine = Magazine::EMPTY;
        let closed = self.closed.load(Relaxed);
        for block in gathered {
            let pointer = block.place().span;
            // SAFETY: spans are freed below, after the last block is looked at.
            let span = unsafe { pointer.as_ref() };
            if span.gathered.get() == span.blocks.len() {
                span.gathered.set(COMPLETE);
                complete.push(pointer);
            } else if span.gathered.get() != COMPLETE && !closed {
                span.gathered.set(0);
                self.stow(&mut magazine, class, span.kind.rounds, block);
            }
        }
        self.bins.push(class, magazine);
        for span in complete {
            // SAFETY: made by `carve`; all its blocks are in our hands, none is used
            // again before it has a new place.
            let span = unsafe { Box::from_raw(span.as_ptr()) };
            cold.ranges.give(span.start, span.bytes(), span.slab);
            cold.unplaced.extend(span.blocks);
        }
    }

    /// Under the lock: gathers every class, after taking every thread's magazines
    /// if `everyone`.
    pub(crate) fn gather_all(&self, cold: &mut Cold, everyone: bool) {
        if everyone && self.revoke(cold) {
            self.restore(cold);
        }
        for class in 0..=CLASSES as Class {
            if !self.bins.is_empty(class) {
                self.gather(cold, class);
            }
        }
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
        let mut token = DriverToken::at_entry();
        let mut cold = self.lock(&mut token);
        // Not there: the pool was closed, and the magazines were taken.
        let Some(at) = cold.caches.iter().position(|other| Arc::ptr_eq(other, cache)) else { return };
        cold.caches.swap_remove(at);
        // SAFETY: the owning thread, outside any section; the lock keeps revokers out.
        let _ = unsafe { cache.biased().enter(|magazines| magazines.empty_into(&self.bins)) };
        self.counters.add(cache.counters.counts());
        drop(cold);
        self.wake_drain();
    }

    fn restore(&self, cold: &Cold) {
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
        let live = self.counts(cold).live_bytes as usize;
        cold.reserved.saturating_sub(cold.ranges.free_bytes()).saturating_sub(live)
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let mut token = DriverToken::at_entry();
        let cold = self.lock(&mut token);
        let counts = self.counts(&cold);
        PoolStats {
            slabs: cold.slabs.len() as u64,
            registrations: self.registrations.load(Relaxed),
            reserved_bytes: cold.reserved as u64,
            peak_reserved_bytes: cold.peak_reserved as u64,
            live_bytes: counts.live_bytes,
            live_blocks: counts.allocations.wrapping_sub(counts.frees),
            deferred_blocks: self.deferred.count() as u64,
            free_bytes: cold.ranges.free_bytes() as u64,
            cached_bytes: self.cached_bytes(&cold) as u64,
            allocations: counts.allocations,
            frees: counts.frees,
        }
    }
}

/// Marks a span, in `gather`, as seen to be complete.
const COMPLETE: usize = usize::MAX;

impl Cold {
    /// Takes out the slabs that are free from end to end. They count as reserved
    /// until they are released.
    pub(crate) fn detach_free_slabs(&mut self) -> Vec<Slab> {
        let whole: Vec<Bounds> = self.ranges.take_whole_slabs();
        whole.iter().filter_map(|slab| self.slabs.remove(&slab.start)).collect()
    }
}
