//! The inbox: where a hook leaves an event, and where nothing ever waits.
//!
//! Claim: any number of threads and signal handlers push; one drainer at a time
//! takes. A push is a bounded number of atomic operations whatever is pending:
//! no allocation, no lock, no thread-local, no retry loop. Nothing is lost: an
//! event that finds no place raises `overflow`, which the drainer reads as
//! "everything changed".
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
use crate::sync::{AtomicBool, AtomicU64, const_unless_loom, zeroed_atomics};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;

/// Slots that a push looks at before it raises `overflow`.
const PROBES: usize = 8;
/// Slots per summary bit.
const GROUP: usize = 64;

/// Both words that a hit reads, on one cache line.
struct News {
    pushed: AtomicU64,
    drained: AtomicU64,
}

/// A set of at most `N` pending events; `N` is a power of two up to 4096.
pub struct Inbox<const N: usize> {
    news: CachePadded<News>,
    summary: CachePadded<AtomicU64>,
    overflow: CachePadded<AtomicBool>,
    slots: [AtomicU64; N],
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
            assert!(N.is_power_of_two() && N <= GROUP * 64);
            Inbox {
                news: CachePadded::new(News { pushed: AtomicU64::new(0), drained: AtomicU64::new(0) }),
                summary: CachePadded::new(AtomicU64::new(0)),
                overflow: CachePadded::new(AtomicBool::new(false)),
                slots: zeroed_atomics!(AtomicU64),
            }
        }
    }

    /// Publishes `event`. Callable from a signal handler and inside malloc.
    ///
    /// Must return before the mapping changes.
    #[inline]
    pub fn push(&self, event: Event) {
        let stored = !self.overflow.load(Relaxed) && self.store(event.word());
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

    /// False where no slot near the event's own is free.
    #[inline]
    fn store(&self, word: u64) -> bool {
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
                // Release: pairs with the Acquire swap in `take`, which then
                // finds the word. Unconditional: a bit seen set may have been
                // taken before our word was there.
                self.summary.fetch_or(1 << (index / GROUP), Release);
                return true;
            }
        }
        false
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
        Event::new(index << 12, 1).unwrap()
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

    /// Invariant 4: a full inbox over-invalidates, it drops nothing.
    #[test]
    fn a_full_inbox_orders_a_flush_and_recovers() {
        let inbox = Inbox::<64>::new();
        for index in 1..=10_000 {
            inbox.push(page(index));
        }
        let (got, everything) = drain(&inbox);
        assert!(everything && got.len() <= 64);
        inbox.push(page(3));
        assert_eq!(drain(&inbox), ([page(3)].to_vec(), false));
    }
}
