//! The filter: could anything be registered there?
//!
//! Allocator churn outside registered memory must cost a load or two and must
//! not fill the inbox. Registration counts the 2 MiB granules that it touches
//! *before* the backend pins a page; a hook whose range touches no counted
//! granule pushes nothing. Granules are folded into `N` counters, so distinct
//! ranges may share one: that costs a needless event, never a lost one.

use crate::sync::{AtomicU32, const_unless_loom, zeroed_atomics};
use core::sync::atomic::Ordering::{AcqRel, Acquire};

const GRANULE_SHIFT: u32 = 21;
/// Granules that a hook looks at before it says "maybe".
const PROBES: usize = 16;

/// Counting filter over address granules; `N` is a power of two.
pub struct Filter<const N: usize> {
    /// Ranges counted at the moment, however wide.
    ranges: AtomicU32,
    /// Ranges that span more granules than there are counters.
    wide: AtomicU32,
    granules: [AtomicU32; N],
}

impl<const N: usize> Default for Filter<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Filter<N> {
    const_unless_loom! {
        /// A filter that lets nothing through.
        pub fn new() -> Self {
            assert!(N.is_power_of_two());
            Filter { ranges: AtomicU32::new(0), wide: AtomicU32::new(0), granules: zeroed_atomics!(AtomicU32) }
        }
    }

    /// Counts `start..end` (bytes, not empty). Call before the pages are pinned.
    pub fn add(&self, start: usize, end: usize) {
        // AcqRel: ordered before the `BEGUN` increment that hooks read (monitor.rs).
        self.each(start, end, |counter| {
            counter.fetch_add(1, AcqRel);
        });
    }

    /// Takes back one `add` of the same range. Call after the pages are unpinned
    /// or nobody can find the registration any more.
    pub fn remove(&self, start: usize, end: usize) {
        self.each(start, end, |counter| {
            counter.fetch_sub(1, AcqRel);
        });
    }

    fn each(&self, start: usize, end: usize, count: impl Fn(&AtomicU32)) {
        count(&self.ranges);
        let (first, last) = (start >> GRANULE_SHIFT, (end - 1) >> GRANULE_SHIFT);
        if last - first >= N {
            count(&self.wide);
        } else {
            for granule in first..=last {
                count(&self.granules[granule & (N - 1)]);
            }
        }
    }

    /// Whether a counted range may overlap `start..=last` (bytes).
    #[inline]
    pub fn may_overlap(&self, start: usize, last: usize) -> bool {
        // Acquire: pairs with the AcqRel in `add`.
        if self.ranges.load(Acquire) == 0 {
            return false;
        }
        let (first, last) = (start >> GRANULE_SHIFT, last >> GRANULE_SHIFT);
        if self.wide.load(Acquire) != 0 || last.wrapping_sub(first) >= PROBES {
            return true;
        }
        let mut granule = first;
        loop {
            if self.granules[granule & (N - 1)].load(Acquire) != 0 {
                return true;
            }
            if granule == last {
                return false;
            }
            granule += 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    const MIB: usize = 1 << 20;

    #[test]
    fn lets_through_only_what_may_overlap() {
        let filter = Filter::<64>::new();
        assert!(!filter.may_overlap(0, usize::MAX));
        filter.add(4 * MIB, 5 * MIB);
        assert!(filter.may_overlap(4 * MIB, 4 * MIB));
        assert!(filter.may_overlap(0, 4 * MIB));
        assert!(!filter.may_overlap(2 * MIB, 4 * MIB - 1));
        assert!(!filter.may_overlap(6 * MIB, 7 * MIB));
        assert!(filter.may_overlap(4 * MIB + 128 * MIB, 4 * MIB + 128 * MIB), "folded granules say maybe");
        filter.remove(4 * MIB, 5 * MIB);
        assert!(!filter.may_overlap(4 * MIB, 4 * MIB));
    }

    #[test]
    fn wide_ranges_and_wide_events_say_maybe() {
        let filter = Filter::<64>::new();
        filter.add(0, 1 << 40);
        assert!(filter.may_overlap(1 << 45, 1 << 45));
        filter.remove(0, 1 << 40);
        filter.add(1 << 40, (1 << 40) + 1);
        assert!(filter.may_overlap(0, 1 << 39), "an event wider than the probes is let through");
        filter.remove(1 << 40, (1 << 40) + 1);
        assert!(!filter.may_overlap(0, 1 << 39));
    }
}
