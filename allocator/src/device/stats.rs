//! Counters of a device pool.

use super::core::{Central, Core};
use crate::source::DriverToken;
use crate::stats::part;
use pinyard_trace::counters::{Counters, Publisher};
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering::Relaxed;

/// A device pool's counters at one moment. Exact while no other thread is inside the
/// pool. All bytes and blocks in use are zero once everything is freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Slabs now.
    pub slabs: u64,
    /// Bytes of all slabs.
    pub reserved_bytes: u64,
    /// Most bytes of slabs that there ever were.
    pub peak_reserved_bytes: u64,
    /// Bytes of blocks in use, rounded up as handed out; dropped ones that wait for
    /// other users included.
    pub live_bytes: u64,
    /// The same as asked for.
    pub wanted_bytes: u64,
    /// The most that `live_bytes` ever was: of one stream exact, of several the sum of
    /// what each had at its own time, so an upper bound; of a retired one and the one that
    /// has its place the more. (A pool that knew the moment
    /// would write to a word of all streams at each allocation:
    /// [`Statistics`](crate::adaptors::Statistics) does.)
    pub peak_live_bytes: u64,
    /// Blocks in use.
    pub live_blocks: u64,
    /// Blocks handed out since the start.
    pub allocations: u64,
    /// Blocks taken back since the start.
    pub frees: u64,
    /// Free bytes, for anybody or for one stream.
    pub free_bytes: u64,
    /// Free bytes that wait for the streams that freed them.
    pub waiting_bytes: u64,
    /// Dropped blocks that wait for other users.
    pub waiting_blocks: u64,
    /// Slabs made since the start.
    pub growths: u64,
    /// Slabs given back.
    pub releases: u64,
    /// Times that a stream's free memory was taken for others.
    pub steals: u64,
    /// Times that a stream was made to wait for another's memory, or all that are behind
    /// for each other's.
    pub holds: u64,
    /// Times that an allocation found no memory at first; of requests
    /// ([`PoolStream::alloc_async`](super::PoolStream::alloc_async)), which try again and
    /// again, those that were served so.
    pub squeezes: u64,
    /// Where allocations found their memory.
    pub hits: Hits,
}

impl DeviceStats {
    /// Bytes asked for by bytes reserved, 0 to 1; 0 of an empty pool.
    pub fn efficiency(&self) -> f64 {
        part(self.wanted_bytes, self.reserved_bytes)
    }
}

/// How many allocations each level of the pool served, the nearest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hits {
    /// What the stream had freed itself.
    pub cache: u64,
    /// Ranges and blocks that are the stream's or anybody's, under the pool's lock.
    pub pool: u64,
    /// Dropped blocks whose other users had passed.
    pub settled: u64,
    /// What other streams had kept, or had brought together.
    pub others: u64,
    /// A new slab.
    pub growth: u64,
    /// What was found while memory was short.
    pub squeeze: u64,
    /// Nothing: allocations that failed.
    pub failures: u64,
}

impl Hits {
    /// The part of all allocations, the failed ones included, that needed neither a new
    /// slab nor the squeeze; 0 before the first.
    pub fn rate(&self) -> f64 {
        let warm = self.cache + self.pool + self.settled + self.others;
        part(warm, warm + self.growth + self.squeeze + self.failures)
    }

    pub(super) fn add(&mut self, other: Hits) {
        self.cache += other.cache;
        self.pool += other.pool;
        self.settled += other.settled;
        self.others += other.others;
        self.growth += other.growth;
        self.squeeze += other.squeeze;
        self.failures += other.failures;
    }
}

impl Publisher for Core {
    fn publish(&self, to: &mut Counters) {
        let stats = self.stats(&mut DriverToken::at_entry());
        to.pool_bytes += stats.reserved_bytes;
        to.live_bytes += stats.live_bytes;
        to.allocations += stats.allocations;
        to.frees += stats.frees;
    }
}

impl Core {
    pub(super) fn stats(&self, token: &mut DriverToken) -> DeviceStats {
        if self.is_forked() {
            return DeviceStats::default();
        }
        let mut central = self.lock(token);
        let mut kept = 0;
        let mut hits = central.departed.hits;
        for state in central.streams.clone().iter() {
            let local = state.local_within(&mut central);
            kept += local.cached();
            hits.add(state.levels.hits(local.counts().allocations));
        }
        let counts = central.counts();
        self.stats_of(&central, counts, kept, hits)
    }

    pub(super) fn stats_of(
        &self,
        central: &Central,
        counts: super::counts::Counts,
        kept: usize,
        hits: Hits,
    ) -> DeviceStats {
        let tallies = &self.tallies;
        DeviceStats {
            slabs: central.heap.slab_count() as u64,
            reserved_bytes: central.reserved as u64,
            peak_reserved_bytes: central.peak_reserved as u64,
            live_bytes: counts.live_bytes,
            wanted_bytes: counts.wanted_bytes,
            peak_live_bytes: counts.peak_bytes,
            live_blocks: counts.allocations.wrapping_sub(counts.frees),
            allocations: counts.allocations,
            frees: counts.frees,
            free_bytes: (central.heap.all_free_bytes() + central.bin_bytes + kept) as u64,
            waiting_bytes: central.waiting.stolen_bytes as u64,
            waiting_blocks: central.waiting.used_blocks as u64,
            growths: tallies.growths.load(Relaxed),
            releases: tallies.releases.load(Relaxed),
            steals: tallies.steals.load(Relaxed),
            holds: tallies.holds.load(Relaxed),
            squeezes: tallies.squeezes.load(Relaxed),
            hits,
        }
    }
}
