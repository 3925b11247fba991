//! Counters of a pool.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A pool's counters at one moment. Exact while no other thread is inside the
/// pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// Slabs now.
    pub slabs: u64,
    /// Slabs registered since the start.
    pub registrations: u64,
    /// Bytes of all slabs, all of them registered.
    pub reserved_bytes: u64,
    /// Most bytes of slabs that there ever were.
    pub peak_reserved_bytes: u64,
    /// The most bytes that blocks ever had at a time, in use or kept for their class: no less than
    /// what was in use at its peak, and more by what threads and bins kept then. (The peak itself
    /// would cost each allocation a word of all threads;
    /// [`Statistics`](crate::adaptors::Statistics) has it.)
    pub peak_block_bytes: u64,
    /// Bytes of blocks in use, as handed out: rounded up to their class.
    pub live_bytes: u64,
    /// Blocks in use, those included that wait for a fence.
    pub live_blocks: u64,
    /// Of these, blocks that wait for a fence.
    pub deferred_blocks: u64,
    /// Bytes that are in no block: free for any size.
    pub free_bytes: u64,
    /// Bytes of free blocks, kept for their class in magazines and bins.
    pub cached_bytes: u64,
    /// Blocks handed out since the start.
    pub allocations: u64,
    /// Of these, the ones that took the pool's lock: the thread's magazines did not have them.
    pub slow_allocations: u64,
    /// Blocks taken back since the start.
    pub frees: u64,
}

impl PoolStats {
    /// The part of all allocations that took no lock; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        if self.allocations == 0 { 0.0 } else { 1.0 - part(self.slow_allocations, self.allocations).min(1.0) }
    }

    /// Bytes in use by bytes reserved, 0 to 1; 0 of an empty pool.
    pub fn efficiency(&self) -> f64 {
        part(self.live_bytes, self.reserved_bytes).min(1.0)
    }
}

/// 0 of nothing.
pub(crate) fn part(one: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { one as f64 / all as f64 }
}

/// What a pool knows when an allocation is about to fail: [`Pool::on_shortage`](crate::Pool::on_shortage).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PoolShortage {
    /// Bytes that the allocation needs.
    pub wanted: usize,
    /// The limit given to the builder.
    pub limit: usize,
    /// Who holds what.
    pub stats: PoolStats,
}

/// Told of shortages.
pub(crate) type Observer = Arc<dyn Fn(&PoolShortage) + Send + Sync>;
