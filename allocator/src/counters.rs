//! What was handed out and taken back, counted where it happens.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How many blocks were handed out and taken back. Only differences of sums mean
/// anything: a block may be freed by another thread than allocated it.
#[derive(Default)]
pub(crate) struct Counters {
    allocations: AtomicU64,
    frees: AtomicU64,
    /// Bytes allocated less bytes freed, wrapping.
    live_bytes: AtomicU64,
}

/// A sum of [`Counters`].
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    pub(crate) live_bytes: u64,
}

impl Counters {
    /// By the owning thread: no read-modify-write.
    #[inline(always)]
    pub(crate) fn own_allocation(&self, bytes: usize) {
        self.allocations.store(self.allocations.load(Relaxed).wrapping_add(1), Relaxed);
        self.live_bytes.store(self.live_bytes.load(Relaxed).wrapping_add(bytes as u64), Relaxed);
    }

    /// By the owning thread.
    #[inline(always)]
    pub(crate) fn own_free(&self, bytes: usize) {
        self.frees.store(self.frees.load(Relaxed).wrapping_add(1), Relaxed);
        self.live_bytes.store(self.live_bytes.load(Relaxed).wrapping_sub(bytes as u64), Relaxed);
    }

    /// By any thread.
    pub(crate) fn add(&self, counts: Counts) {
        self.allocations.fetch_add(counts.allocations, Relaxed);
        self.frees.fetch_add(counts.frees, Relaxed);
        self.live_bytes.fetch_add(counts.live_bytes, Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            allocations: self.allocations.load(Relaxed),
            frees: self.frees.load(Relaxed),
            live_bytes: self.live_bytes.load(Relaxed),
        }
    }
}

impl Counts {
    pub(crate) fn allocation(bytes: usize) -> Counts {
        Counts { allocations: 1, frees: 0, live_bytes: bytes as u64 }
    }

    pub(crate) fn free(bytes: usize) -> Counts {
        Counts { allocations: 0, frees: 1, live_bytes: (bytes as u64).wrapping_neg() }
    }

    pub(crate) fn live_blocks(self) -> u64 {
        self.allocations.wrapping_sub(self.frees)
    }
}

impl std::ops::Add for Counts {
    type Output = Counts;
    fn add(self, other: Counts) -> Counts {
        Counts {
            allocations: self.allocations.wrapping_add(other.allocations),
            frees: self.frees.wrapping_add(other.frees),
            live_bytes: self.live_bytes.wrapping_add(other.live_bytes),
        }
    }
}
