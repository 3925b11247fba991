//! From an address to a slot: two dependent loads, no lock.
//!
//! An entry per chunk of 2 MiB is a slot (the region covers all of the chunk) or
//! the number of a leaf of 512 pages. The array of chunks spans the whole address
//! space: 256 MiB of addresses, of which a page is resident per 2 GiB in use.
//! Leaves lie in one array that is never unmapped, so a walk never touches freed
//! memory. A leaf that ran empty is used again for another chunk: whoever is
//! still on it compares bounds, or marks a region needlessly. Regions never
//! overlap.

use crate::array::Array;
use crate::event::PAGE_SHIFT;
use crate::map::slot::SlotId;
use crate::sync::{AtomicU32, FANOUT_SHIFT};
use core::sync::atomic::Ordering::Acquire;

/// Pages of a chunk, and chunks of a section.
pub const FANOUT: usize = 1 << FANOUT_SHIFT;
/// log2 of a chunk's bytes.
pub const CHUNK_SHIFT: u32 = PAGE_SHIFT + FANOUT_SHIFT;
/// log2 of a section's bytes.
pub const SECTION_SHIFT: u32 = CHUNK_SHIFT + FANOUT_SHIFT;
/// Set in a chunk's entry that is a slot, not a leaf's number.
pub const IS_SLOT: u32 = 1 << 31;

/// The entries. The registry writes them under its lock (Release), in the order
/// in which a walk may meet them; anybody reads.
pub struct Directory {
    /// Chunks in use, per section (1 GiB): lets a wide event skip what is empty.
    pub sections: Array<AtomicU32>,
    /// See [`IS_SLOT`]; 0 is leaf 0, which stays empty.
    pub chunks: Array<AtomicU32>,
    /// [`FANOUT`] slots a leaf.
    pub leaves: Array<AtomicU32>,
}

/// What a walk met.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A region has the page that the walk stands on.
    Slot(SlotId),
    /// The range holds no further region.
    End,
    /// The walk has read as many entries as it may.
    Tired,
}

impl Directory {
    /// A directory of `leaves` leaves for addresses below `limit`.
    ///
    /// The error is mmap's errno.
    pub fn new(leaves: usize, limit: usize) -> Result<Directory, i32> {
        Ok(Directory {
            sections: Array::new(limit.div_ceil(1 << SECTION_SHIFT))?,
            chunks: Array::new(limit.div_ceil(1 << CHUNK_SHIFT))?,
            leaves: Array::new(leaves * FANOUT)?,
        })
    }

    /// The slot whose region may hold `address`, or 0. The caller checks bounds.
    #[inline]
    pub fn find(&self, address: usize) -> SlotId {
        // Acquire, both: pairs with the Release store that linked what it names.
        let entry = self.chunks.get(address >> CHUNK_SHIFT).map_or(0, |entry| entry.load(Acquire));
        if entry & IS_SLOT != 0 { entry & !IS_SLOT } else { self.page(entry, address) }
    }

    #[inline]
    fn page(&self, leaf: u32, address: usize) -> SlotId {
        let index = leaf as usize * FANOUT + (address >> PAGE_SHIFT) % FANOUT;
        self.leaves.get(index).map_or(0, |entry| entry.load(Acquire))
    }

    /// Goes on from `at` to the next region that has a page up to `last`, and
    /// stands on that page. Reads at most `loads` entries, which it takes off.
    pub fn next(&self, at: &mut usize, last: usize, loads: &mut u32) -> Next {
        while *at <= last {
            let Some(entry) = self.chunks.get(*at >> CHUNK_SHIFT) else { return Next::End };
            if *loads == 0 {
                return Next::Tired;
            }
            *loads -= 1;
            let entry = entry.load(Acquire);
            if entry & IS_SLOT != 0 {
                return Next::Slot(entry & !IS_SLOT);
            }
            if entry == 0 {
                *at = self.behind_empty_chunk(*at);
                continue;
            }
            let chunk_last = last.min(next_boundary(*at, CHUNK_SHIFT) - 1);
            while *at <= chunk_last {
                let slot = self.page(entry, *at);
                if slot != 0 {
                    return Next::Slot(slot);
                }
                *loads = loads.saturating_sub(1);
                *at = next_boundary(*at, PAGE_SHIFT);
            }
        }
        Next::End
    }

    #[inline]
    fn behind_empty_chunk(&self, at: usize) -> usize {
        let section = self.sections.get(at >> SECTION_SHIFT).map_or(0, |used| used.load(Acquire));
        next_boundary(at, if section == 0 { SECTION_SHIFT } else { CHUNK_SHIFT })
    }

    #[cfg(not(loom))]
    pub(crate) fn clear(&self) {
        self.sections.clear();
        self.chunks.clear();
        self.leaves.clear();
    }
}

/// The next multiple of `1 << shift` above `address`.
#[inline]
pub fn next_boundary(address: usize, shift: u32) -> usize {
    ((address >> shift) + 1) << shift
}
