//! Counts what passes, with the exact peak over all threads and streams: one lock's worth of
//! shared writes per block, which a pool by itself does not pay.

use super::{Allocate, Held};
use parking_lot::Mutex;
use std::sync::Arc;

/// Counters of one adaptor. Those of adaptors within each other differ by what lies
/// between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatisticsCounts {
    /// Blocks handed out.
    pub allocations: u64,
    /// Of these, blocks dropped.
    pub frees: u64,
    /// Allocations that failed.
    pub failures: u64,
    /// Bytes in use, as asked for.
    pub live_bytes: u64,
    /// The most that ever were.
    pub peak_bytes: u64,
    /// The most blocks that ever were in use.
    pub peak_blocks: u64,
    /// Bytes of all allocations.
    pub total_bytes: u64,
}

/// Counts.
#[derive(Debug)]
pub struct Statistics<A> {
    upstream: A,
    counts: Arc<Mutex<StatisticsCounts>>,
}

impl<A> Statistics<A> {
    /// Counts what passes to `upstream`.
    pub fn new(upstream: A) -> Statistics<A> {
        Statistics { upstream, counts: Arc::default() }
    }

    /// The counters now, of one moment.
    pub fn counts(&self) -> StatisticsCounts {
        *self.counts.lock()
    }

    /// What it is around.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }
}

/// Counts the end of a block.
#[derive(Debug)]
pub struct Counted {
    bytes: u64,
    counts: Arc<Mutex<StatisticsCounts>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        counts.frees += 1;
        counts.live_bytes -= self.bytes;
    }
}

impl<A: Allocate> Allocate for Statistics<A> {
    type Block = Held<A::Block, (), Counted>;
    type Terms = A::Terms;
    type Error = A::Error;

    fn alloc(&self, bytes: usize, terms: &A::Terms) -> Result<Self::Block, A::Error> {
        // The upstream is called without the lock.
        let block = self.upstream.alloc(bytes, terms).inspect_err(|_| self.counts.lock().failures += 1)?;
        let bytes = bytes as u64;
        let mut counts = self.counts.lock();
        counts.allocations += 1;
        counts.total_bytes += bytes;
        counts.live_bytes += bytes;
        counts.peak_bytes = counts.peak_bytes.max(counts.live_bytes);
        counts.peak_blocks = counts.peak_blocks.max(counts.allocations - counts.frees);
        drop(counts);
        // Given up before the block is: who is given its memory next is not counted with it.
        Ok(Held::counted(block, Counted { bytes, counts: self.counts.clone() }))
    }
}
