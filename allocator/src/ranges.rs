//! Free ranges of slabs: best fit, neighbours merged, O(log n).
//!
//! Only slow paths come here, under the pool's lock. Lengths and addresses are
//! whole pages. Slabs that happen to be neighbours are never merged: each is a
//! registration of its own.

use pinyard_hooks::PAGE_SIZE;
use std::collections::{BTreeMap, BTreeSet};

/// Ranges looked at for a large alignment before one is taken that surely fits.
const CANDIDATES: usize = 16;

#[derive(Default)]
pub(crate) struct Ranges {
    /// Start of each free range to its length and its slab's bounds.
    by_start: BTreeMap<usize, Range>,
    /// Length and start of each.
    by_length: BTreeSet<(usize, usize)>,
    free_bytes: usize,
}

#[derive(Clone, Copy)]
struct Range {
    bytes: usize,
    slab: Bounds,
}

/// The slab that a range lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
}

impl Ranges {
    /// Free bytes in all ranges.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Bytes of the longest range.
    pub(crate) fn longest(&self) -> usize {
        self.by_length.last().map_or(0, |&(bytes, _)| bytes)
    }

    /// Free bytes of one slab.
    pub(crate) fn free_bytes_of(&self, slab: Bounds) -> usize {
        self.by_start.range(slab.start..slab.start + slab.bytes).map(|(_, range)| range.bytes).sum()
    }

    /// Takes `bytes` at a multiple of `align` out of the shortest range that has
    /// them; the lowest of several. Returns the address and its slab.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> Option<(usize, Bounds)> {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(PAGE_SIZE) && align.is_power_of_two());
        let fits =
            |&(length, start): &(usize, usize)| start.next_multiple_of(align) + bytes <= start + length;
        // However its start is aligned, a range this long has room.
        let surely = bytes + align.saturating_sub(PAGE_SIZE);
        let mut longer = self.by_length.range((bytes, 0)..);
        let (length, start) = longer
            .by_ref()
            .take(CANDIDATES)
            .find(|range| fits(range))
            .or_else(|| self.by_length.range((surely, 0)..).next())
            .or_else(|| longer.find(|range| fits(range)))
            .copied()?;
        let range = self.remove(start, length)?;
        let taken = start.next_multiple_of(align);
        self.insert(start, taken - start, range.slab);
        self.insert(taken + bytes, start + length - (taken + bytes), range.slab);
        Some((taken, range.slab))
    }

    /// Gives a range of `slab` back and merges it with its free neighbours.
    pub(crate) fn give(&mut self, start: usize, bytes: usize, slab: Bounds) {
        let (mut first, mut end) = (start, start + bytes);
        if let Some((&below, &range)) = self.by_start.range(..start).next_back()
            && below + range.bytes == start
            && range.slab == slab
        {
            first = below;
            self.remove(below, range.bytes);
        }
        if let Some(&range) = self.by_start.get(&end)
            && range.slab == slab
        {
            self.remove(end, range.bytes);
            end += range.bytes;
        }
        self.insert(first, end - first, slab);
    }

    /// Slabs that are free from end to end.
    fn whole_slabs(&self) -> impl Iterator<Item = Bounds> {
        let whole = self
            .by_start
            .iter()
            .filter(|&(&start, range)| range.slab == Bounds { start, bytes: range.bytes });
        whole.map(|(_, range)| range.slab)
    }

    /// Their bytes.
    pub(crate) fn whole_slab_bytes(&self) -> usize {
        self.whole_slabs().map(|slab| slab.bytes).sum()
    }

    /// Takes out slabs that are free from end to end: the shortest that has `bytes`, or
    /// the longest until they do.
    pub(crate) fn take_whole_slabs(&mut self, bytes: usize) -> Vec<Bounds> {
        let mut whole: Vec<Bounds> = self.whole_slabs().collect();
        whole.sort_unstable_by_key(|slab| (slab.bytes, slab.start));
        let suffices = whole.partition_point(|slab| slab.bytes < bytes);
        if suffices < whole.len() {
            whole = vec![whole[suffices]];
        } else {
            let mut left = bytes;
            whole.reverse();
            whole.retain(|slab| {
                let wanted = left > 0;
                left = left.saturating_sub(slab.bytes);
                wanted
            });
        }
        for slab in &whole {
            self.remove(slab.start, slab.bytes);
        }
        whole
    }

    fn insert(&mut self, start: usize, bytes: usize, slab: Bounds) {
        if bytes > 0 {
            self.by_start.insert(start, Range { bytes, slab });
            self.by_length.insert((bytes, start));
            self.free_bytes += bytes;
        }
    }

    fn remove(&mut self, start: usize, bytes: usize) -> Option<Range> {
        self.by_length.remove(&(bytes, start));
        let range = self.by_start.remove(&start)?;
        self.free_bytes -= range.bytes;
        Some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const P: usize = PAGE_SIZE;
    const SLAB: Bounds = Bounds { start: 1 << 21, bytes: 512 * P };
    const NEXT: Bounds = Bounds { start: SLAB.start + SLAB.bytes, bytes: 512 * P };

    fn two_slabs() -> Ranges {
        let mut ranges = Ranges::default();
        ranges.give(SLAB.start, SLAB.bytes, SLAB);
        ranges.give(NEXT.start, NEXT.bytes, NEXT);
        ranges
    }

    #[test]
    fn neighbouring_slabs_stay_apart() {
        let mut ranges = two_slabs();
        assert_eq!(ranges.take(513 * P, P), None);
        assert_eq!(ranges.take(512 * P, P), Some((SLAB.start, SLAB)));
        ranges.give(SLAB.start, 512 * P, SLAB);
        assert_eq!(ranges.take_whole_slabs(usize::MAX), [NEXT, SLAB]);
        assert_eq!(ranges.free_bytes(), 0);
    }

    #[test]
    fn slabs_are_taken_out_until_they_suffice() {
        let slab = |index: usize, pages: usize| Bounds { start: index << 30, bytes: pages * P };
        let slabs = [slab(1, 512), slab(2, 1024), slab(3, 512), slab(4, 2048)];
        let taken = |pages: usize| {
            let mut ranges = Ranges::default();
            slabs.iter().for_each(|slab| ranges.give(slab.start, slab.bytes, *slab));
            let taken = ranges.take_whole_slabs(pages * P);
            let left: usize = taken.iter().map(|slab| slab.bytes).sum();
            assert_eq!(ranges.free_bytes() + left, 4096 * P);
            taken
        };
        assert_eq!(taken(1), [slabs[0]]);
        assert_eq!(taken(513), [slabs[1]]);
        assert_eq!(taken(2048), [slabs[3]]);
        assert_eq!(taken(2049), [slabs[3], slabs[1]]);
        assert_eq!(taken(4096).len(), 4);
    }

    #[test]
    fn the_shortest_range_that_fits_is_taken() {
        let mut ranges = two_slabs();
        let hole = |pages| ranges.take(pages * P, P).unwrap().0;
        let taken: Vec<usize> = [8, 1, 4, 1, 6, 1].map(hole).to_vec();
        for (at, pages) in [(taken[0], 8), (taken[2], 4), (taken[4], 6)] {
            ranges.give(at, pages * P, SLAB);
        }
        assert_eq!(ranges.take(5 * P, P), Some((taken[4], SLAB)));
        assert_eq!(ranges.take(4 * P, P), Some((taken[2], SLAB)));
        assert_eq!(ranges.take(7 * P, P), Some((taken[0], SLAB)));
    }

    #[test]
    fn a_large_alignment_is_found_behind_ranges_that_cannot_serve_it() {
        let mut ranges = Ranges::default();
        ranges.give(NEXT.start, NEXT.bytes, NEXT);
        // Many ranges of the right length at the wrong place.
        let slab = Bounds { start: P, bytes: 400 * P };
        for index in 0..100 {
            ranges.give(slab.start + index * 4 * P, 2 * P, slab);
        }
        let (at, from) = ranges.take(2 * P, 64 * P).unwrap();
        assert_eq!((at % (64 * P), from), (0, NEXT));
    }

    #[test]
    fn a_slab_that_fits_only_from_its_start_is_found_behind_many_that_do_not() {
        let mut ranges = Ranges::default();
        let huge = 512 * P;
        for index in 0..40 {
            // The first page is in use.
            let slab = Bounds { start: (index + 1) * huge, bytes: huge };
            ranges.give(slab.start + P, huge - P, slab);
        }
        assert_eq!(ranges.take(2 * P, huge), None);
        let whole = Bounds { start: 100 * huge, bytes: huge };
        ranges.give(whole.start, huge, whole);
        assert_eq!(ranges.take(2 * P, huge), Some((whole.start, whole)));
    }

    proptest! {
        /// Against a map of pages: nothing is handed out twice, nothing is lost,
        /// and giving all back makes the slabs whole again.
        #[test]
        fn as_a_map_of_pages(ops in prop::collection::vec((any::<bool>(), 1usize..40, 0u32..6, any::<prop::sample::Index>()), 1..200)) {
            let mut ranges = two_slabs();
            let mut live: Vec<(usize, usize, Bounds)> = Vec::new();
            for (take, pages, shift, which) in ops {
                if take {
                    let align = P << shift;
                    if let Some((at, slab)) = ranges.take(pages * P, align) {
                        prop_assert_eq!(at % align, 0);
                        prop_assert!(at >= slab.start && at + pages * P <= slab.start + slab.bytes);
                        for &(other, length, _) in &live {
                            prop_assert!(at + pages * P <= other || other + length <= at);
                        }
                        live.push((at, pages * P, slab));
                    }
                } else if !live.is_empty() {
                    let (at, length, slab) = live.swap_remove(which.index(live.len()));
                    ranges.give(at, length, slab);
                }
                let used: usize = live.iter().map(|&(_, length, _)| length).sum();
                prop_assert_eq!(ranges.free_bytes() + used, SLAB.bytes + NEXT.bytes);
            }
            for (at, length, slab) in live {
                ranges.give(at, length, slab);
            }
            prop_assert_eq!(ranges.take_whole_slabs(usize::MAX), [NEXT, SLAB]);
        }
    }
}
