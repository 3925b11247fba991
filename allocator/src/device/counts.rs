//! What a stream handed out and took back, counted under its cache's lock: no
//! atomics, a handful of instructions per block.

use super::block::BlockRef;
use super::classes::{CLASSES, Class, LARGEST_SMALL};

/// A place for every class of small blocks, and one per doubling above.
pub(super) const SLOTS: usize = CLASSES + (46 - LARGEST_SMALL.ilog2() as usize);

/// Allocations by size. As long as a power of two, so that a place needs no check.
#[derive(Clone, Copy)]
pub(super) struct Sizes([u64; PLACES]);

const PLACES: usize = SLOTS.next_power_of_two();

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes([0; PLACES])
    }
}

impl Sizes {
    #[inline(always)]
    pub(super) fn count(&mut self, slot: usize) {
        self.0[slot % PLACES] += 1;
    }

    pub(super) fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(super) fn of(&self, slot: usize) -> u64 {
        self.0[slot % PLACES]
    }
}

impl std::ops::AddAssign for Sizes {
    fn add_assign(&mut self, other: Sizes) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, of_other)| *sum += of_other);
    }
}

/// Of one stream, or a sum; wrapping, as a sum may be short of what is being freed.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// The sum of a cache's sizes, which count each.
    pub(super) allocations: u64,
    pub(super) frees: u64,
    /// Bytes in use, rounded as handed out.
    pub(super) live_bytes: u64,
    /// Bytes in use, as asked for.
    pub(super) wanted_bytes: u64,
    /// The most that `live_bytes` ever was; in a sum an upper bound.
    pub(super) peak_bytes: u64,
}

impl Counts {
    #[inline(always)]
    pub(super) fn allocated(&mut self, block: BlockRef, wanted: usize) {
        block.wanted.set(wanted);
        self.wanted_bytes = self.wanted_bytes.wrapping_add(wanted as u64);
        let live = self.live_bytes.wrapping_add(block.bytes.get() as u64);
        self.live_bytes = live;
        if live > self.peak_bytes {
            self.peak_bytes = live;
        }
    }

    #[inline(always)]
    pub(super) fn freed(&mut self, block: BlockRef) {
        self.frees += 1;
        self.live_bytes = self.live_bytes.wrapping_sub(block.bytes.get() as u64);
        self.wanted_bytes = self.wanted_bytes.wrapping_sub(block.wanted.take() as u64);
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.allocations += other.allocations;
        self.frees += other.frees;
        self.live_bytes = self.live_bytes.wrapping_add(other.live_bytes);
        self.wanted_bytes = self.wanted_bytes.wrapping_add(other.wanted_bytes);
        self.peak_bytes = self.peak_bytes.saturating_add(other.peak_bytes);
    }
}

/// Where blocks of `class`, or without one and of `bytes`, are counted.
#[inline(always)]
pub(super) fn slot_of(class: Class, bytes: usize) -> usize {
    if (class as usize) < CLASSES {
        return class as usize;
    }
    // Longer than the largest small block.
    CLASSES - LARGEST_SMALL.ilog2() as usize + (usize::BITS - 1 - bytes.leading_zeros()) as usize
}

/// Bytes of the longest block that is counted there.
pub(super) fn most_of(slot: usize) -> usize {
    match slot.checked_sub(CLASSES) {
        None => super::classes::size_of(slot as Class),
        Some(doubling) => (2 << (LARGEST_SMALL.ilog2() as usize + doubling)) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::block::NO_CLASS;
    use crate::device::classes::{class_of, rounded};

    #[test]
    fn every_block_is_counted_where_its_length_belongs() {
        for bytes in 1..=LARGEST_SMALL {
            let slot = slot_of(class_of(bytes), bytes);
            assert!(bytes <= most_of(slot) && (slot == 0 || bytes > most_of(slot - 1)), "{bytes}");
        }
        let mut bytes = LARGEST_SMALL + 1;
        while let Some(length) = rounded(bytes) {
            let slot = slot_of(NO_CLASS, length);
            assert!(length <= most_of(slot) && slot < SLOTS, "{length}");
            assert!(slot == CLASSES || length > most_of(slot - 1), "{length}");
            bytes += bytes / 13;
        }
    }
}
