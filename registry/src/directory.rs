//! From an address to a slot: three dependent loads, no lock.
//!
//! A root entry per GiB leads to a table of 512 entries of 2 MiB each; such an
//! entry is a slot (the region covers all 2 MiB) or leads to a leaf of 512
//! pages. Tables lie in one array that lives as long as the registry, so a
//! reader never touches freed memory. A leaf that ran empty is used again
//! elsewhere: a reader that is still on it finds a slot whose bounds do not hold
//! its address, which is a miss. Regions never overlap.

use crate::array::Array;
use crate::range::{ADDRESS_LIMIT, PageRange};
use crate::regions::SlotId;
use crate::sync::{AtomicU32, FANOUT_SHIFT};
use pinyard_hooks::PAGE_SHIFT;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FANOUT: usize = 1 << FANOUT_SHIFT;
const LARGE_SHIFT: u32 = PAGE_SHIFT + FANOUT_SHIFT;
const LARGE: usize = 1 << LARGE_SHIFT;
const ROOT_SHIFT: u32 = LARGE_SHIFT + FANOUT_SHIFT;
/// Set in an entry of a middle table that is a slot, not a leaf's number.
const IS_SLOT: u32 = 1 << 31;

/// The part that readers walk.
pub(crate) struct Directory {
    root: Array<AtomicU32>,
    tables: Array<AtomicU32>,
}

/// The part that the writer keeps under its lock: which tables are in use.
pub(crate) struct Tables {
    free: Vec<u32>,
    next: u32,
    limit: u32,
    /// Entries in use, per table.
    used: Vec<u16>,
}

impl Directory {
    /// A directory for `regions` regions below `limit` (an address).
    pub(crate) fn new(regions: usize, limit: usize) -> Result<(Directory, Tables), i32> {
        debug_assert!(limit <= ADDRESS_LIMIT);
        let roots = limit.div_ceil(1 << ROOT_SHIFT);
        // A region begins and ends in at most two leaves of its own, and all
        // GiB together have a middle table each. Number 0 is none.
        let limit = (2 * regions + roots.min(4 * regions) + 2).min(IS_SLOT as usize - 1);
        let directory = Directory { root: Array::new(roots)?, tables: Array::new(limit * FANOUT)? };
        Ok((directory, Tables { free: Vec::new(), next: 1, limit: limit as u32, used: vec![0] }))
    }

    #[inline]
    fn entry(&self, table: u32, index: usize) -> Option<&AtomicU32> {
        self.tables.get(table as usize * FANOUT + index % FANOUT)
    }

    /// The slot whose region may hold `address`, or 0. The caller checks bounds.
    #[inline]
    pub(crate) fn find(&self, address: usize) -> SlotId {
        // Acquire, each: pairs with the Release store that linked what it names.
        let Some(middle) = self.root.get(address >> ROOT_SHIFT).map(|entry| entry.load(Acquire)) else {
            return 0;
        };
        if middle == 0 {
            return 0;
        }
        let entry = self.entry(middle, address >> LARGE_SHIFT).map_or(0, |entry| entry.load(Acquire));
        if entry == 0 {
            return 0;
        }
        if entry & IS_SLOT != 0 {
            return entry & !IS_SLOT;
        }
        self.entry(entry, address >> PAGE_SHIFT).map_or(0, |entry| entry.load(Acquire))
    }

    /// The lowest region that has a page in `start..end`, or 0.
    pub(crate) fn first_in(&self, start: usize, end: usize) -> SlotId {
        let end = end.min(self.root.len() << ROOT_SHIFT);
        let mut address = start;
        while address < end {
            let middle = self.root[address >> ROOT_SHIFT].load(Relaxed);
            if middle == 0 {
                address = next_boundary(address, ROOT_SHIFT);
                continue;
            }
            let entry = self.entry(middle, address >> LARGE_SHIFT).map_or(0, |entry| entry.load(Relaxed));
            if entry & IS_SLOT != 0 {
                return entry & !IS_SLOT;
            }
            let chunk_end = next_boundary(address, LARGE_SHIFT);
            while entry != 0 && address < chunk_end.min(end) {
                let slot = self.entry(entry, address >> PAGE_SHIFT).map_or(0, |entry| entry.load(Relaxed));
                if slot != 0 {
                    return slot;
                }
                address = next_boundary(address, PAGE_SHIFT);
            }
            address = chunk_end;
        }
        0
    }

    /// Enters a region; no page of it is in the directory. `false`, and nothing
    /// entered, where the tables ran out.
    #[must_use]
    pub(crate) fn insert(&self, tables: &mut Tables, range: PageRange, slot: SlotId) -> bool {
        if !tables.can_hold(range) {
            return false;
        }
        self.write(tables, range, slot);
        true
    }

    /// Takes a region out.
    pub(crate) fn remove(&self, tables: &mut Tables, range: PageRange) {
        self.write(tables, range, 0);
    }

    /// Sets every entry of `range` to `slot`, or clears it where `slot` is 0.
    fn write(&self, tables: &mut Tables, range: PageRange, slot: SlotId) {
        let mut address = range.start;
        while address < range.end {
            let middle = self.child(tables, &self.root[address >> ROOT_SHIFT], None);
            let chunk_end = next_boundary(address, LARGE_SHIFT).min(range.end);
            let Some(entry) = self.entry(middle, address >> LARGE_SHIFT) else { return };
            if chunk_end - address == LARGE {
                let value = if slot == 0 { 0 } else { slot | IS_SLOT };
                self.set(tables, middle, entry, value);
            } else {
                let leaf = self.child(tables, entry, Some(middle));
                for page in (address..chunk_end).step_by(1 << PAGE_SHIFT) {
                    if let Some(entry) = self.entry(leaf, page >> PAGE_SHIFT) {
                        self.set(tables, leaf, entry, slot);
                    }
                }
                if tables.used[leaf as usize] == 0 {
                    self.set(tables, middle, entry, 0);
                    tables.free.push(leaf);
                }
            }
            if tables.used[middle as usize] == 0 {
                self.root[address >> ROOT_SHIFT].store(0, Release);
                tables.free.push(middle);
            }
            address = chunk_end;
        }
    }

    fn set(&self, tables: &mut Tables, table: u32, entry: &AtomicU32, value: u32) {
        let old = entry.load(Relaxed);
        let used = &mut tables.used[table as usize];
        *used =
            used.wrapping_add((old == 0 && value != 0) as u16).wrapping_sub((old != 0 && value == 0) as u16);
        // Release: pairs with the Acquire in `find`.
        entry.store(value, Release);
    }

    /// The table that `entry` leads to, taken from the free ones if need be.
    fn child(&self, tables: &mut Tables, entry: &AtomicU32, parent: Option<u32>) -> u32 {
        let child = entry.load(Relaxed);
        if child != 0 {
            return child;
        }
        let child = tables.take();
        match parent {
            Some(parent) => self.set(tables, parent, entry, child),
            None => entry.store(child, Release),
        }
        child
    }
}

impl Tables {
    /// Whether enough tables are left for any region of this range.
    fn can_hold(&self, range: PageRange) -> bool {
        let middles = ((range.end - 1) >> ROOT_SHIFT) - (range.start >> ROOT_SHIFT) + 1;
        self.free.len() + (self.limit - self.next) as usize >= middles + 2
    }

    /// A table whose entries are all 0; `can_hold` said that there is one.
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.used.push(0);
            self.next - 1
        })
    }
}

fn next_boundary(address: usize, shift: u32) -> usize {
    ((address >> shift) + 1) << shift
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: usize = 1 << PAGE_SHIFT;
    const GIB: usize = 1 << ROOT_SHIFT;

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

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        /// Inserts what overlaps nothing, removes what overlaps the next range,
        /// and compares every edge with a list.
        #[test]
        fn agrees_with_a_list(ranges in prop::collection::vec(ranges(), 1..40)) {
            let (directory, mut tables) = Directory::new(64, 8 * GIB).unwrap();
            let mut list: Vec<(PageRange, SlotId)> = Vec::new();
            for (number, &range) in ranges.iter().enumerate() {
                while let Some(at) = list.iter().position(|(other, _)| other.overlaps(range)) {
                    let lowest = list.iter().filter(|(other, _)| other.overlaps(range)).min_by_key(|(other, _)| other.start);
                    prop_assert_eq!(directory.first_in(range.start, range.end), lowest.unwrap().1);
                    directory.remove(&mut tables, list.swap_remove(at).0);
                }
                prop_assert_eq!(directory.first_in(range.start, range.end), 0);
                let slot = number as SlotId + 1;
                prop_assert!(directory.insert(&mut tables, range, slot));
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
                directory.remove(&mut tables, range);
            }
            prop_assert_eq!(directory.first_in(0, 8 * GIB), 0);
            let in_use = tables.used.iter().filter(|&&used| used != 0).count();
            prop_assert_eq!(in_use, 0, "tables leaked");
            prop_assert_eq!(tables.free.len() as u32, tables.next - 1);
        }
    }

    #[test]
    fn runs_out_of_tables_without_entering_anything() {
        let (directory, mut tables) = Directory::new(1, 8 * GIB).unwrap();
        let mut entered = 0;
        for gib in 0..8 {
            let range = PageRange { start: gib * GIB + PAGE, end: gib * GIB + 2 * PAGE };
            let fits = directory.insert(&mut tables, range, 7);
            assert_eq!(directory.find(range.start), if fits { 7 } else { 0 });
            entered += fits as usize;
        }
        assert!((1..8).contains(&entered), "{entered}");
    }
}
