//! Slots for events, each a word, with a bit for every group of them that may hold some.

use crate::event::Event;
use crate::map::{CHUNK_SHIFT, SECTION_SHIFT};
use crate::sync::{AtomicU64, FANOUT_SHIFT, const_unless_loom, zeroed_atomics};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;

/// Slots that a push looks at.
const PROBES: usize = 8;
/// How often a push that lost its slot to another looks again.
const ATTEMPTS: usize = 8;
/// Slots per summary bit.
const GROUP: usize = 64;

/// Where the slots of a chunk begin, and how many bytes are rather covered for nothing than
/// a free one taken there. Chunks that follow each other have slots that do, so neighbours
/// meet; sections begin far from each other. Where the slots are full of another
/// section's events there is a second choice.
fn homes(chunk: usize) -> [(usize, usize); 2] {
    let section = chunk >> FANOUT_SHIFT;
    let home = |spread: usize| chunk.wrapping_add(section.wrapping_mul(spread));
    [(home(0x9e37_79b9), 1 << CHUNK_SHIFT), (home(0x85eb_ca6b), 1 << SECTION_SHIFT)]
}

/// `N` is a power of two up to 4096.
pub(crate) struct Slots<const N: usize> {
    summary: CachePadded<AtomicU64>,
    slots: [AtomicU64; N],
}

impl<const N: usize> Slots<N> {
    const_unless_loom! {
        /// All free.
        pub(crate) fn new() -> Self {
            assert!(N.is_power_of_two() && N <= GROUP * 64);
            Slots { summary: CachePadded::new(AtomicU64::new(0)), slots: zeroed_atomics!(AtomicU64) }
        }
    }

    /// Puts the event into a slot of its own, unless it is pending already. `false` where
    /// none of those that its hash leads to is free.
    #[inline]
    pub(crate) fn store(&self, event: Event) -> bool {
        let word = event.word();
        let home = (word >> 28).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        for probe in 0..PROBES {
            let index = (home as usize).wrapping_add(probe) & (N - 1);
            // Release on success: pairs with the Acquire swap in `take`.
            let taken = match self.slots[index].compare_exchange(0, word, AcqRel, Acquire) {
                Ok(_) => true,
                // The same event is pending here. Writing it again proves, by
                // the slot's modification order, that its drainer comes later.
                Err(pending) if pending == word => {
                    self.slots[index].compare_exchange(word, word, AcqRel, Acquire).is_ok()
                }
                Err(_) => false,
            };
            if taken {
                self.sum_up(index);
                return true;
            }
        }
        false
    }

    /// Puts the event into the slot, of those that its address leads to, where least is
    /// covered for nothing: a free one, or one whose event is widened until it covers both.
    /// `false` where no such union fits into one word, or others were always faster.
    #[cold]
    pub(crate) fn widen(&self, event: Event) -> bool {
        let chunk = event.start() >> CHUNK_SHIFT;
        let near = |(home, free): (usize, usize)| {
            // To both sides: 0, 1, -1, 2, and so on.
            let offset =
                |probe: usize| if probe % 2 == 1 { probe / 2 + 1 } else { (probe / 2).wrapping_neg() };
            let probes = (0..PROBES.min(N)).map(move |probe| home.wrapping_add(offset(probe)) & (N - 1));
            probes.filter_map(move |index| {
                let pending = self.slots[index].load(Relaxed);
                match Event::from_word(pending) {
                    None => Some((free, index, pending, event)),
                    Some(other) => Some((event.gap(other), index, pending, event.union(other)?)),
                }
            })
        };
        (0..ATTEMPTS).any(|_| {
            let choices = homes(chunk).into_iter().flat_map(near);
            let Some((_, index, pending, wide)) = choices.min_by_key(|choice| choice.0) else { return false };
            // Against the word that was read: a drainer that has taken it, or another push,
            // makes this fail. A union that is pending already is written all the same, as
            // in `store`. Release on success: pairs with the Acquire swap in `take`.
            let taken = self.slots[index].compare_exchange(pending, wide.word(), AcqRel, Relaxed).is_ok();
            if taken {
                self.sum_up(index);
            }
            taken
        })
    }

    #[inline]
    fn sum_up(&self, index: usize) {
        // Release: pairs with the Acquire swap in `take`, which then finds the word.
        // Unconditional: a bit seen set may have been taken before our word was there.
        self.summary.fetch_or(1 << (index / GROUP), Release);
    }

    /// Takes every event.
    pub(crate) fn take(&self, mut each: impl FnMut(Event)) {
        let mut groups = if self.summary.load(Acquire) == 0 { 0 } else { self.summary.swap(0, AcqRel) };
        while groups != 0 {
            let group = groups.trailing_zeros() as usize;
            groups &= groups - 1;
            let last = N.min((group + 1) * GROUP);
            for slot in &self.slots[group * GROUP..last] {
                if slot.load(Relaxed) != 0
                    && let Some(event) = Event::from_word(slot.swap(0, AcqRel))
                {
                    each(event);
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::event::PAGE_SIZE;
    use crate::sync::NEAR;
    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    const CHUNK_PAGES: usize = 1 << FANOUT_SHIFT;

    fn pages(first: usize, count: usize) -> Event {
        Event::new(first * PAGE_SIZE, count * PAGE_SIZE).unwrap()
    }

    fn chunks(first: usize, count: usize) -> Event {
        pages(first * CHUNK_PAGES, count * CHUNK_PAGES)
    }

    fn taken<const N: usize>(slots: &Slots<N>) -> Vec<Event> {
        let mut got = Vec::new();
        slots.take(|event| got.push(event));
        got.sort_by_key(|event| event.start());
        got
    }

    #[test]
    fn less_than_a_chunk_is_covered_for_nothing_while_there_are_slots() {
        let slots = Slots::<64>::new();
        for event in
            [chunks(10, 2), chunks(30, 5), pages(12 * CHUNK_PAGES + 511, 2), chunks(9, 3), chunks(31, 1)]
        {
            assert!(slots.widen(event));
        }
        assert_eq!(taken(&slots), [pages(9 * CHUNK_PAGES, 4 * CHUNK_PAGES + 1), chunks(30, 5)]);
        assert!(slots.widen(chunks(10, 1)) && slots.widen(chunks(13, 1)));
        assert_eq!(taken(&slots), [chunks(10, 1), chunks(13, 1)]);
        assert_eq!(taken(&slots), []);
    }

    #[test]
    fn where_no_slot_is_free_the_smallest_gap_is_covered() {
        let slots = Slots::<8>::new();
        for number in 0..8 {
            assert!(slots.widen(chunks(100 * number, 1)));
        }
        assert!(slots.widen(chunks(330, 1)) && slots.widen(chunks(690, 1)));
        let got = taken(&slots);
        assert_eq!(
            (got.len(), got[3], got[6], got[7]),
            (8, chunks(300, 31), chunks(600, 1), chunks(690, 11))
        );
        let far = (0..8).all(|number| slots.widen(pages(number << 29, 1)));
        assert!(far && !slots.widen(pages(9 << 29, 1)), "no union fits into a word");
    }

    /// Areas anywhere in the address space, one after the other, whose slots are partly the
    /// same: nothing between two of them is covered.
    #[test]
    fn areas_that_share_slots_stay_apart() {
        const AREA: usize = 40 * CHUNK_PAGES;
        let mut random = 1_u64;
        let mut below = |limit: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % limit
        };
        let mut across = 0; // or found no place
        for _ in 0..8 {
            let slots = Box::new(Slots::<NEAR>::new());
            // Half of them aligned, as arenas are.
            let areas: Vec<usize> = (0..24)
                .map(|number| (below(1 << 17) << 18) + if number % 2 == 0 { 0 } else { below(1 << 18) })
                .collect();
            for &area in &areas {
                for _ in 0..1000 {
                    let first = below(AREA - CHUNK_PAGES);
                    across += usize::from(!slots.widen(pages(area + first, 1 + below(CHUNK_PAGES))));
                }
            }
            across += taken(&slots).iter().filter(|event| event.len() > 2 * AREA * PAGE_SIZE).count();
        }
        assert!(across == 0, "{across} events cover what lies between");
    }
}
