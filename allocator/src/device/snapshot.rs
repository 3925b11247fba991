//! A pool at one moment, as data: for a file, another program, or a test.

use super::block::NO_CLASS;
use super::census::Census;
use super::classes::Class;
use super::core::Core;
use super::counts::{SLOTS, most_of, slot_of};
use super::stats::{DeviceStats, Hits};
use crate::source::DriverToken;
use crate::stats::part;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The name of the format.
pub(crate) const FORMAT: &str = "pinyard-snapshot";
/// Raised when a field changes its meaning; new fields do not raise it.
pub(crate) const VERSION: u32 = 1;

/// All slabs and blocks of a device pool at one moment. As JSON it is the format
/// `pinyard-snapshot`, version 1: these fields by these names, all sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// `pinyard-snapshot`.
    pub format: String,
    /// 1.
    pub version: u32,
    /// What is counted. The blocks below add up to it, but for blocks that are
    /// [`Moving`](BlockState::Moving), which are in no sum of the counters.
    pub statistics: Statistics,
    /// By address.
    pub slabs: Vec<SlabSnapshot>,
    /// By address; without gaps or overlaps within a slab.
    pub blocks: Vec<BlockSnapshot>,
}

/// A piece of memory from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SlabSnapshot {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// A registrar knows it.
    pub registered: bool,
}

/// A block, or a free range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BlockSnapshot {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// Bytes asked for; 0 unless it is in use.
    pub wanted: u64,
    /// Its class, if it is of 32 KiB or less.
    pub class: Option<u16>,
    /// What it is.
    pub state: BlockState,
    /// `cuStreamGetId` of the stream that it was allocated on, or that may have it; none
    /// if any may.
    pub stream: Option<u64>,
    /// How long ago it was allocated, if the pool was watched then
    /// ([`start_trace`](super::DevicePool::start_trace)).
    pub age_ns: Option<u64>,
}

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BlockState {
    /// In use.
    Live,
    /// Dropped; other streams or fences have not passed. Counts as in use.
    Dropped,
    /// Kept for its size, by a stream or for all.
    Cached,
    /// A free range, of one stream or of all.
    Free,
    /// Taken from a stream that has not passed.
    Waiting,
    /// In the hands of a thread that moves it. Not at quiet points.
    Moving,
}

/// Everything that a pool counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Statistics {
    /// The pool's sums.
    pub sums: DeviceStats,
    /// Bytes of the longest free block or range, whoever may have it.
    pub largest_free_bytes: u64,
    /// 1 less `largest_free_bytes` by `sums.free_bytes`: 0 if all free memory is one
    /// range (or none is free), near 1 if it is in crumbs. Memory that waits is not in it.
    pub fragmentation: f64,
    /// `sums.wanted_bytes` by `sums.reserved_bytes`.
    pub efficiency: f64,
    /// By stream, in no order. One may be the pool's own, which keeps what busy streams share
    /// and allocates nothing. A retired one that has nothing left goes from here, but from no
    /// sum, when other streams come.
    pub streams: Vec<StreamStatistics>,
    /// By size, those sizes that were asked for.
    pub sizes: Vec<SizeStatistics>,
    /// Calls of the driver since the pool was made, by function, those of its own sources
    /// included. A source that was passed in has a driver of its own.
    pub driver_calls: BTreeMap<String, u64>,
}

/// A stream's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StreamStatistics {
    /// `cuStreamGetId`.
    pub id: u64,
    /// Blocks allocated on it.
    pub allocations: u64,
    /// Of these, blocks taken back.
    pub frees: u64,
    /// Bytes of its blocks in use, rounded up.
    pub live_bytes: u64,
    /// The same as asked for.
    pub wanted_bytes: u64,
    /// The most that `live_bytes` ever was.
    pub peak_live_bytes: u64,
    /// Free bytes that only it may have now.
    pub kept_bytes: u64,
    /// Where its allocations found their memory.
    pub hits: Hits,
}

/// The blocks of a class, or of a doubling of lengths above 32 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SizeStatistics {
    /// The longest block that is counted here; the entry before has the shorter ones.
    pub most_bytes: u64,
    /// Blocks handed out.
    pub allocations: u64,
    /// Blocks taken back.
    pub frees: u64,
    /// Bytes of blocks in use, rounded up.
    pub live_bytes: u64,
    /// The same as asked for.
    pub wanted_bytes: u64,
}

impl Core {
    /// Empty in a forked child.
    pub(super) fn snapshot(&self) -> Snapshot {
        // In a fork the locks may be held for ever.
        let mut census =
            if self.is_forked() { Census::default() } else { self.census(&mut DriverToken::at_entry()) };
        // Descriptors come in no order.
        census.blocks.sort_unstable_by_key(|block| block.address);
        if self.watch.is_on() {
            for block in census.blocks.iter_mut().filter(|block| block.wanted > 0) {
                block.age_ns = self.watch.age_of(block.address);
            }
        }
        let driver_calls =
            self.counted.calls().iter().map(|(call, count)| (call.to_string(), count)).collect();
        Snapshot {
            format: FORMAT.to_owned(),
            version: VERSION,
            statistics: statistics(&census, driver_calls),
            slabs: census.slabs,
            blocks: census.blocks,
        }
    }
}

fn statistics(census: &Census, driver_calls: BTreeMap<String, u64>) -> Statistics {
    let sums = census.stats;
    let free =
        census.blocks.iter().filter(|block| matches!(block.state, BlockState::Free | BlockState::Cached));
    let largest = free.map(|block| block.bytes).max().unwrap_or(0);
    let mut sizes: [SizeStatistics; SLOTS] = std::array::from_fn(|slot| SizeStatistics {
        most_bytes: most_of(slot) as u64,
        ..SizeStatistics::default()
    });
    for (slot, size) in sizes.iter_mut().enumerate() {
        size.allocations = census.sizes.of(slot);
    }
    let mut in_use = [0u64; SLOTS];
    for block in census.blocks.iter().filter(|block| block.wanted > 0) {
        let slot = slot_of(block.class.unwrap_or(NO_CLASS as Class), block.bytes as usize);
        in_use[slot] += 1;
        sizes[slot].live_bytes += block.bytes;
        sizes[slot].wanted_bytes += block.wanted;
    }
    for (size, live) in sizes.iter_mut().zip(in_use) {
        size.frees = size.allocations.saturating_sub(live);
    }
    Statistics {
        sums,
        largest_free_bytes: largest,
        fragmentation: if sums.free_bytes == 0 { 0.0 } else { 1.0 - part(largest, sums.free_bytes) },
        efficiency: sums.efficiency(),
        streams: census
            .streams
            .iter()
            .map(|stream| StreamStatistics {
                id: stream.id,
                allocations: stream.counts.allocations,
                frees: stream.counts.frees,
                live_bytes: stream.counts.live_bytes,
                wanted_bytes: stream.counts.wanted_bytes,
                peak_live_bytes: stream.counts.peak_bytes,
                kept_bytes: stream.kept_bytes as u64,
                hits: stream.hits,
            })
            .collect(),
        sizes: sizes.into_iter().filter(|size| size.allocations > 0).collect(),
        driver_calls,
    }
}
