//! The writer's side of the directory: which leaves are in use, and how a region
//! is entered and taken out. Readers and hooks walk the other side
//! (`pinyard_hooks::map`) at any time, so every store leaves it whole.

use crate::range::PageRange;
use crate::sync::AtomicU32;
use pinyard_hooks::PAGE_SHIFT;
use pinyard_hooks::map::{
    CHUNK_SHIFT, Directory, FANOUT, IS_SLOT, Next, SECTION_SHIFT, SlotId, next_boundary,
};
use std::sync::atomic::Ordering::{Relaxed, Release};

const CHUNK: usize = 1 << CHUNK_SHIFT;

/// Kept by the writer under its lock.
pub(crate) struct Leaves {
    free: Vec<u32>,
    next: u32,
    limit: u32,
    /// Entries in use, per leaf.
    used: Vec<u16>,
}

/// Leaves that `regions` regions can need: a region begins and ends in at most
/// two of its own.
pub(crate) fn leaves_for(regions: usize) -> usize {
    (2 * regions).min(IS_SLOT as usize / 2)
}

/// The lowest region that has a page in the range, or `None`.
#[inline]
pub(crate) fn first_in(directory: &Directory, range: PageRange) -> Option<SlotId> {
    let chunk = range.start >> CHUNK_SHIFT;
    if chunk != (range.end - 1) >> CHUNK_SHIFT {
        return first_in_chunks(directory, range);
    }
    match directory.chunks.get(chunk)?.load(Relaxed) {
        0 => None,
        slot if slot & IS_SLOT != 0 => Some(slot & !IS_SLOT),
        leaf => {
            let entries = entries_of(directory, leaf, range).iter();
            entries.map(|entry| entry.load(Relaxed)).find(|&slot| slot != 0)
        }
    }
}

/// A leaf's entries for `range`, which lies in the leaf's chunk.
fn entries_of(directory: &Directory, leaf: u32, range: PageRange) -> &[AtomicU32] {
    let first = leaf as usize * FANOUT + (range.start >> PAGE_SHIFT) % FANOUT;
    &directory.leaves[first..first + (range.len() >> PAGE_SHIFT)]
}

#[inline(never)]
fn first_in_chunks(directory: &Directory, range: PageRange) -> Option<SlotId> {
    let mut at = range.start;
    match directory.next(&mut at, range.end - 1, &mut u32::MAX.clone()) {
        Next::Slot(slot) => Some(slot),
        Next::End | Next::Tired => None,
    }
}

impl Leaves {
    /// At most `limit` leaves, leaf 0 not counted.
    pub(crate) fn new(limit: usize) -> Leaves {
        Leaves { free: Vec::new(), next: 1, limit: limit as u32, used: vec![0] }
    }

    /// Leaves below this have been in use.
    pub(crate) fn taken(&self) -> u32 {
        self.next
    }

    /// One past the last leaf.
    pub(crate) fn limit(&self) -> u32 {
        self.limit + 1
    }

    /// Enters a region; no page of it is in the directory. `false`, and nothing
    /// entered, where the leaves ran out or the range ends above the directory.
    #[must_use]
    pub(crate) fn insert(&mut self, directory: &Directory, range: PageRange, slot: SlotId) -> bool {
        let left = self.free.len() + (self.limit + 1 - self.next) as usize;
        if left < 2 || range.end > directory.chunks.len() << CHUNK_SHIFT {
            return false;
        }
        self.write(directory, range, slot);
        true
    }

    /// Takes a region out.
    pub(crate) fn remove(&mut self, directory: &Directory, range: PageRange) {
        self.write(directory, range, 0);
    }

    /// Sets every entry of `range`, all of them 0, to `slot`; or clears them, all of
    /// one region, where `slot` is 0.
    #[inline]
    fn write(&mut self, directory: &Directory, range: PageRange, slot: SlotId) {
        let in_one = range.start >> CHUNK_SHIFT == (range.end - 1) >> CHUNK_SHIFT;
        match in_one && range.len() != CHUNK {
            true => self.write_pages(directory, range, slot),
            false => self.write_chunks(directory, range, slot),
        }
    }

    #[inline(never)]
    fn write_chunks(&mut self, directory: &Directory, range: PageRange, slot: SlotId) {
        let mut at = range.start;
        while at < range.end {
            let chunk_end = next_boundary(at, CHUNK_SHIFT).min(range.end);
            if chunk_end - at == CHUNK {
                set_chunk(directory, at, if slot == 0 { 0 } else { slot | IS_SLOT });
            } else {
                self.write_pages(directory, PageRange { start: at, end: chunk_end }, slot);
            }
            at = chunk_end;
        }
    }

    /// As `write`, for a part of one chunk.
    #[inline]
    fn write_pages(&mut self, directory: &Directory, range: PageRange, slot: SlotId) {
        let leaf = match directory.chunks[range.start >> CHUNK_SHIFT].load(Relaxed) {
            0 => self.take(directory, range.start),
            leaf => leaf,
        };
        let entries = entries_of(directory, leaf, range);
        for entry in entries {
            // Release: pairs with the Acquire in `find`; the slot's fields are there.
            entry.store(slot, Release);
        }
        let (used, count) = (&mut self.used[leaf as usize], entries.len() as u16);
        *used = if slot == 0 { used.wrapping_sub(count) } else { used.wrapping_add(count) };
        if *used == 0 {
            set_chunk(directory, range.start, 0);
            self.free.push(leaf);
        }
    }

    /// Links a leaf whose entries are all 0 for the chunk at `at`; `insert` saw that
    /// there is one.
    #[cold]
    fn take(&mut self, directory: &Directory, at: usize) -> u32 {
        let leaf = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.used.push(0);
            self.next - 1
        });
        set_chunk(directory, at, leaf);
        leaf
    }
}

#[cold]
fn set_chunk(directory: &Directory, at: usize, value: u32) {
    let entry: &AtomicU32 = &directory.chunks[at >> CHUNK_SHIFT];
    let section = &directory.sections[at >> SECTION_SHIFT];
    let (old, used) = (entry.load(Relaxed), section.load(Relaxed));
    // The section counts a chunk before it is there and until it is gone, so a
    // walk never skips one in use. Release: pairs with the walk's Acquire.
    if old == 0 && value != 0 {
        section.store(used + 1, Release);
    }
    entry.store(value, Release);
    if old != 0 && value == 0 {
        section.store(used - 1, Release);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = 1 << PAGE_SHIFT;
    const GIB: usize = 1 << SECTION_SHIFT;

    /// Page ranges of every shape that the levels distinguish, within 8 GiB.
    fn ranges() -> impl Strategy<Value = PageRange> {
        let small = (0..8 * GIB / PAGE, 1..6usize);
        let dense = (0..64usize, 1..6usize);
        let large = (0..2048usize, 1..4usize).prop_map(|(start, len)| (start * FANOUT, len * FANOUT));
        let ragged = (0..8 * GIB / PAGE, 500..3000usize);
        let huge = (0..3 * FANOUT * FANOUT, 1..FANOUT * FANOUT);
        prop_oneof![small, dense, large, ragged, huge].prop_map(|(start, pages)| {
            let start = start * PAGE;
            PageRange { start, end: (start + pages * PAGE).min(8 * GIB).max(start + PAGE) }
        })
    }

    fn directory(regions: usize) -> (Directory, Leaves) {
        let leaves = leaves_for(regions);
        (Directory::new(leaves + 1, 8 * GIB).unwrap(), Leaves::new(leaves))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Inserts what overlaps nothing, removes what overlaps the next range,
        /// and compares every edge with a list.
        #[test]
        fn agrees_with_a_list(ranges in prop::collection::vec(ranges(), 1..40)) {
            let (directory, mut leaves) = directory(64);
            let mut list: Vec<(PageRange, SlotId)> = Vec::new();
            for (number, &range) in ranges.iter().enumerate() {
                while let Some(at) = list.iter().position(|(other, _)| other.overlaps(range)) {
                    let lowest = list.iter().filter(|(other, _)| other.overlaps(range)).min_by_key(|(other, _)| other.start);
                    prop_assert_eq!(first_in(&directory, range), Some(lowest.unwrap().1));
                    leaves.remove(&directory, list.swap_remove(at).0);
                }
                prop_assert_eq!(first_in(&directory, range), None);
                let slot = number as SlotId + 1;
                prop_assert!(leaves.insert(&directory, range, slot));
                list.push((range, slot));
                for &(other, slot) in &list {
                    for inside in [other.start, other.end - 1, other.start + other.len() / 2] {
                        prop_assert_eq!(directory.find(inside), slot);
                    }
                    for edge in [other.start.wrapping_sub(1), other.end] {
                        let expected = list.iter().find(|(r, _)| r.start <= edge && edge < r.end);
                        prop_assert_eq!(directory.find(edge), expected.map_or(0, |&(_, slot)| slot));
                    }
                }
            }
            for (range, _) in list {
                leaves.remove(&directory, range);
            }
            prop_assert_eq!(first_in(&directory, PageRange { start: 0, end: 8 * GIB }), None);
            prop_assert!(leaves.used.iter().all(|&used| used == 0), "leaves leaked");
            prop_assert_eq!(leaves.free.len() as u32, leaves.next - 1);
            prop_assert!(directory.sections.iter().all(|used| used.load(Relaxed) == 0));
        }
    }

    #[test]
    fn runs_out_of_leaves_without_entering_anything() {
        let (directory, mut leaves) = directory(1);
        let mut entered = 0;
        for gib in 0..8 {
            let range = PageRange { start: gib * GIB + PAGE, end: gib * GIB + 2 * PAGE };
            let fits = leaves.insert(&directory, range, 7);
            assert_eq!(directory.find(range.start), if fits { 7 } else { 0 });
            entered += fits as usize;
        }
        assert!((1..8).contains(&entered), "{entered}");
    }

    #[test]
    fn what_ends_above_the_directory_is_not_entered() {
        let (directory, mut leaves) = directory(1);
        assert!(!leaves.insert(&directory, PageRange { start: 8 * GIB - PAGE, end: 8 * GIB + PAGE }, 7));
        assert_eq!(directory.find(8 * GIB - PAGE), 0);
        assert_eq!(directory.find(8 * GIB), 0);
    }
}
