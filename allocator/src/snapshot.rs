//! A host pool at one moment, as data: for a file, another program, or a test.

use crate::classes::{self, CLASSES, Class};
use crate::pool::Pool;
use crate::shared::{Cold, Core};
use crate::source::DriverToken;
use crate::stats::{PoolStats, part};
use serde::{Deserialize, Serialize};

/// What a host pool's slabs are cut into. All sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// The pool's counters.
    pub stats: PoolStats,
    /// The longest range that is free for any size.
    pub largest_free_bytes: u64,
    /// 1 less `largest_free_bytes` by `stats.free_bytes`: 0 if all that is free for any size is one
    /// range (or nothing is), near 1 if it is in crumbs.
    pub fragmentation: f64,
    /// By address.
    pub slabs: Vec<SlabUse>,
    /// By size, those of which there are blocks.
    pub sizes: Vec<SizeUse>,
}

/// A slab of a host pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SlabUse {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// Of these, bytes that are free for any size.
    pub free_bytes: u64,
}

/// The blocks of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SizeUse {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Blocks in use, those included that wait for a fence.
    pub live_blocks: u64,
    /// Free blocks, which serve this size alone until their neighbours are free as well.
    pub free_blocks: u64,
}

impl Pool {
    /// Slabs and sizes. Takes back what threads keep, and the pool's lock: not for hot paths. Exact
    /// while no other thread is inside the pool. Empty in a forked child.
    pub fn snapshot(&self) -> PoolSnapshot {
        self.handle.core.snapshot()
    }
}

impl Core {
    fn snapshot(&self) -> PoolSnapshot {
        if self.is_forked() {
            return PoolSnapshot::default();
        }
        let mut token = DriverToken::at_entry();
        let mut cold = self.lock(&mut token);
        let sizes = self.sizes(&mut cold);
        let stats = self.stats_of(&cold);
        let longest = cold.ranges.longest() as u64;
        let fragmentation = if stats.free_bytes == 0 { 0.0 } else { 1.0 - part(longest, stats.free_bytes) };
        let slab = |(&address, slab): (&usize, &crate::slab::Slab)| {
            let bounds = slab.bounds();
            let free_bytes = cold.ranges.free_bytes_of(bounds) as u64;
            SlabUse { address: address as u64, bytes: bounds.bytes as u64, free_bytes }
        };
        let slabs = cold.slabs.iter().map(slab).collect();
        PoolSnapshot { stats, largest_free_bytes: longest, fragmentation, slabs, sizes }
    }

    /// Under the lock: the blocks of each size, after what threads keep was taken back.
    pub(crate) fn sizes(&self, cold: &mut Cold) -> Vec<SizeUse> {
        self.gather_all(cold, true);
        let of_class = |class: Class| {
            // A block that is freed at this moment may be in neither.
            let free_blocks = self.free_blocks(class).min(cold.cut.of(class));
            let live_blocks = cold.cut.of(class) - free_blocks;
            SizeUse { block_bytes: classes::size_of(class) as u64, live_blocks, free_blocks }
        };
        let of_pages =
            |(bytes, live_blocks)| SizeUse { block_bytes: bytes as u64, live_blocks, free_blocks: 0 };
        let sizes = (0..CLASSES as Class).map(of_class).chain(cold.cut.of_pages().map(of_pages));
        sizes.filter(|size| size.live_blocks + size.free_blocks > 0).collect()
    }

    /// Under the lock: blocks in the class's bin. Who finds it empty meanwhile waits for the lock.
    fn free_blocks(&self, class: Class) -> u64 {
        let mut magazines = Vec::new();
        let mut blocks = 0;
        loop {
            let magazine = self.bins.pop(class);
            if magazine.count() == 0 {
                break;
            }
            blocks += u64::from(magazine.count());
            magazines.push(magazine);
        }
        magazines.into_iter().rev().for_each(|magazine| self.bins.push(class, magazine));
        blocks
    }
}
