//! The inbox: where a hook leaves an event, and where nothing ever waits.
//!
//! Claim: any number of threads and signal handlers push; one drainer at a time
//! takes. A push is a bounded number of atomic operations whatever is pending:
//! no allocation, no lock, no thread-local. Nothing is lost: an event that finds no
//! place widens one that is pending nearby, until it covers both. Only where that
//! fails as well, `overflow` is raised, which the drainer reads as "everything changed".
//!
//! ```text
//! push -> exact: a free slot, or the same event
//!      -> near:  the slot of a neighbourhood in which the union covers least for nothing
//!      -> overflow
//! ```
//!
//! The order that carries the proof (models in `tests/loom_inbox.rs`):
//! a push stores its word, then its group's summary bit, then increments
//! `pushed`; whoever sees `pushed` therefore sees the bit, and whoever takes the
//! bit sees the word. The drainer reads `pushed` *before* it takes bits and
//! publishes that value as `drained` after it has applied what it took.
//!
//! Other queues were rejected: sequence-number rings (Vyukov's, crossbeam's
//! `ArrayQueue`) let the consumer spin behind a producer that was preempted
//! between claiming and publishing; `SegQueue` allocates.

use crate::event::Event;
use crate::slots::Slots;
use crate::sync::{AtomicBool, AtomicU64, NEAR, const_unless_loom};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;

/// Both words that a hit reads, on one cache line.
struct News {
    pushed: AtomicU64,
    drained: AtomicU64,
}

/// A set of at most `N` pending events as they came, and some that have been widened
/// over others; `N` is a power of two up to 4096.
pub struct Inbox<const N: usize> {
    news: CachePadded<News>,
    overflow: CachePadded<AtomicBool>,
    exact: Slots<N>,
    near: Slots<NEAR>,
}

/// How far a drain has read; given back to [`Inbox::finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the inbox has news until `finish` is called with this"]
pub struct Mark(u64);

impl<const N: usize> Default for Inbox<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Inbox<N> {
    const_unless_loom! {
        /// An empty inbox.
        pub fn new() -> Self {
            Inbox {
                news: CachePadded::new(News { pushed: AtomicU64::new(0), drained: AtomicU64::new(0) }),
                overflow: CachePadded::new(AtomicBool::new(false)),
                exact: Slots::new(),
                near: Slots::new(),
            }
        }
    }

    /// Publishes `event`. Callable from a signal handler and inside malloc.
    ///
    /// Must return before the mapping changes.
    #[inline]
    pub fn push(&self, event: Event) {
        let stored = !self.overflow.load(Relaxed) && (self.exact.store(event) || self.near.widen(event));
        if stored { self.announce() } else { self.push_everything() }
    }

    /// Publishes "everything changed", for a change that no event describes.
    #[inline]
    pub fn push_everything(&self) {
        // Stored even when it is set already: a drainer may just have taken it.
        // Release: pairs with the AcqRel swap in `take`.
        self.overflow.store(true, Release);
        self.announce();
    }

    #[inline]
    fn announce(&self) {
        // Release: pairs with the Acquire in `has_news` and `begin`. Whoever
        // sees the count sees the word and its summary bit, or `overflow`.
        self.news.pushed.fetch_add(1, Release);
    }

    /// Whether anything was pushed that no drain has applied yet.
    #[inline]
    pub fn has_news(&self) -> bool {
        // Acquire on `drained`: pairs with `finish`; the reader sees all that
        // the drain changed. Acquire on `pushed`: pairs with `announce`.
        self.news.pushed.load(Acquire) != self.news.drained.load(Acquire)
    }

    /// Events pushed since the start, those that overflowed included.
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.news.pushed.load(Relaxed)
    }

    /// Starts a drain. The caller serialises drains (begin to finish).
    pub fn begin(&self) -> Mark {
        Mark(self.news.pushed.load(Acquire))
    }

    /// Takes every pending event. `true`: some found no place, so treat all
    /// memory as changed.
    #[must_use = "true orders a flush of everything"]
    pub fn take(&self, mut each: impl FnMut(Event)) -> bool {
        // Before the slots: a push that saw `overflow` set stores it again, so
        // taking it early never hides an event that comes later.
        let everything = self.overflow.load(Relaxed) && self.overflow.swap(false, AcqRel);
        self.exact.take(&mut each);
        self.near.take(&mut each);
        everything
    }

    /// Ends a drain: what `begin` saw has been applied.
    pub fn finish(&self, mark: Mark) {
        // Release: pairs with the Acquire in `has_news`.
        self.news.drained.store(mark.0, Release);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    fn page(index: usize) -> Event {
        pages(index, 1)
    }

    fn pages(index: usize, count: usize) -> Event {
        Event::new(index << 12, count << 12).unwrap()
    }

    fn drain<const N: usize>(inbox: &Inbox<N>) -> (Vec<Event>, bool) {
        let mut got = Vec::new();
        let mark = inbox.begin();
        let everything = inbox.take(|event| got.push(event));
        inbox.finish(mark);
        (got, everything)
    }

    #[test]
    fn what_is_pushed_is_taken_once() {
        let inbox = Inbox::<64>::new();
        assert!(!inbox.has_news());
        inbox.push(page(7));
        assert!(inbox.has_news());
        assert_eq!(drain(&inbox), ([page(7)].to_vec(), false));
        assert!(!inbox.has_news());
        assert_eq!(drain(&inbox), (Vec::new(), false));
    }

    #[test]
    fn a_repeated_event_takes_one_slot() {
        let inbox = Inbox::<64>::new();
        for _ in 0..1000 {
            inbox.push(page(7));
        }
        assert_eq!(inbox.pushed(), 1000);
        assert_eq!(drain(&inbox), ([page(7)].to_vec(), false));
    }

    /// Invariant 4: a full inbox over-invalidates, it drops nothing; and it does so near
    /// by what changed. Two areas of 200 MiB, 100 GiB from each other.
    #[test]
    fn a_full_inbox_widens_what_is_near_and_recovers() {
        const AREA: usize = 50_000;
        let area = |number: usize| (1 << 35) + number * 25_000_000;
        let inbox = Inbox::<64>::new();
        for step in 0..200_000 {
            let start = step * 7919 % (AREA - 500);
            inbox.push(pages(area(step % 2) + start, 1 + step % 500));
        }
        let (got, everything) = drain(&inbox);
        assert!(!everything && got.len() <= 64 + NEAR, "{everything}, {}", got.len());
        let covers = |event: Event| got.iter().any(|wide| wide.union(event) == Some(*wide));
        for step in 0..200_000 {
            let start = step * 7919 % (AREA - 500);
            assert!(covers(pages(area(step % 2) + start, 1 + step % 500)), "{step} was dropped");
        }
        let within = |event: &Event, number| {
            pages(area(number), AREA).union(*event) == Some(pages(area(number), AREA))
        };
        assert!(got.iter().all(|event| within(event, 0) || within(event, 1)), "covers what lies between");
        inbox.push(page(3));
        assert_eq!(drain(&inbox), ([page(3)].to_vec(), false));
    }

    /// What cannot be one event with anything that is pending is "everything".
    #[test]
    fn a_full_inbox_orders_a_flush_where_nothing_is_near_and_recovers() {
        let inbox = Inbox::<64>::new();
        for index in 0..10_000 {
            // Far from each other, and of one neighbourhood or another.
            inbox.push(page(index * 6_871_947));
        }
        let (got, everything) = drain(&inbox);
        assert!(everything && got.len() <= 64 + NEAR);
        inbox.push(page(3));
        assert_eq!(drain(&inbox), ([page(3)].to_vec(), false));
    }
}
