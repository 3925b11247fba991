//! Counters of a pool.

use std::sync::Arc;

/// A pool's counters at one moment. Exact while no other thread is inside the
/// pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Blocks taken back since the start.
    pub frees: u64,
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
