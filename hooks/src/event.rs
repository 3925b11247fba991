//! One change of a mapping, packed into one word.
//!
//! A one-word event is either absent or whole: there is no gap between claiming
//! a place for it and publishing it, so no consumer ever waits for a preempted
//! producer.

use core::num::NonZeroU64;

/// log2 of the page size in bytes (x86-64 has 4 KiB base pages).
pub const PAGE_SHIFT: u32 = 12;
/// The page size in bytes.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;

const PAGES_BITS: u32 = 28;
const PAGES_MASK: u64 = (1 << PAGES_BITS) - 1;
const INDEX_LIMIT: u64 = 1 << (64 - PAGES_BITS);

/// A range of whole pages whose contents are about to change.
///
/// Packed as `page index << 28 | page count`: 48-bit addresses, up to 1 TiB
/// less one page. The count is never zero, so neither is the word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event(NonZeroU64);

impl Event {
    /// The pages that `start..start + len` (bytes) touches, rounded outwards.
    ///
    /// `None` where the range does not fit into one word: it is empty, wraps
    /// around, spans 1 TiB or more, or lies above 48 bits. A caller that knows
    /// the range not to be empty then publishes "everything".
    #[inline]
    pub fn new(start: usize, len: usize) -> Option<Event> {
        if len == 0 {
            return None;
        }
        let last = start.checked_add(len - 1)?;
        let first_page = (start >> PAGE_SHIFT) as u64;
        let pages = (last >> PAGE_SHIFT) as u64 - first_page + 1;
        if pages > PAGES_MASK || first_page >= INDEX_LIMIT {
            return None;
        }
        NonZeroU64::new(first_page << PAGES_BITS | pages).map(Event)
    }

    /// First byte of the first page.
    #[inline]
    pub fn start(self) -> usize {
        ((self.0.get() >> PAGES_BITS) as usize) << PAGE_SHIFT
    }

    /// Bytes covered; a multiple of the page size.
    #[inline]
    pub fn len(self) -> usize {
        ((self.0.get() & PAGES_MASK) as usize) << PAGE_SHIFT
    }

    /// One past the last byte.
    #[inline]
    pub fn end(self) -> usize {
        self.start() + self.len()
    }

    /// Always false: an event covers at least one page.
    #[inline]
    pub fn is_empty(self) -> bool {
        false
    }

    /// The smallest event that covers both; `None` where it does not fit into one word.
    pub(crate) fn union(self, other: Event) -> Option<Event> {
        let start = self.start().min(other.start());
        Event::new(start, self.end().max(other.end()) - start)
    }

    /// Bytes between the two, which their union would cover for nothing.
    pub(crate) fn gap(self, other: Event) -> usize {
        self.start().max(other.start()).saturating_sub(self.end().min(other.end()))
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0.get()
    }

    #[inline]
    pub(crate) fn from_word(word: u64) -> Option<Event> {
        NonZeroU64::new(word).map(Event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_outwards_to_pages() {
        let event = Event::new(0x1fff, 2).unwrap();
        assert_eq!((event.start(), event.len(), event.end()), (0x1000, 0x2000, 0x3000));
    }

    #[test]
    fn first_and_last_representable() {
        let low = Event::new(0, 1).unwrap();
        assert_eq!((low.start(), low.len()), (0, PAGE_SIZE));
        let top = (1usize << 48) - PAGE_SIZE;
        let high = Event::new(top, PAGE_SIZE).unwrap();
        assert_eq!((high.start(), high.end()), (top, 1 << 48));
        let widest = ((1usize << PAGES_BITS) - 1) << PAGE_SHIFT;
        assert_eq!(Event::new(0x1000, widest).unwrap().len(), widest);
    }

    #[test]
    fn what_does_not_fit_is_none() {
        assert_eq!(Event::new(0x1000, 0), None);
        assert_eq!(Event::new(usize::MAX, 2), None);
        assert_eq!(Event::new(0, 1 << 40), None);
        assert_eq!(Event::new(1 << 48, 1), None);
    }

    #[test]
    fn a_union_covers_both_and_the_gap() {
        let event = |page: usize, pages: usize| Event::new(page * PAGE_SIZE, pages * PAGE_SIZE).unwrap();
        let cases = [((1, 2), (5, 1), (1, 5), 2), ((1, 2), (3, 1), (1, 3), 0), ((1, 9), (3, 1), (1, 9), 0)];
        for ((a, of_a), (b, of_b), (start, pages), gap) in cases {
            let (one, other) = (event(a, of_a), event(b, of_b));
            assert_eq!((one.union(other), one.gap(other)), (Some(event(start, pages)), gap * PAGE_SIZE));
            assert_eq!((other.union(one), other.gap(one)), (Some(event(start, pages)), gap * PAGE_SIZE));
        }
        assert_eq!(event(0, 1).union(event((1 << 28) - 1, 1)), None, "1 TiB");
        let top = Event::new((1 << 48) - PAGE_SIZE, 1).unwrap();
        assert_eq!(top.union(event((1 << 36) - 2, 1)).unwrap().end(), 1 << 48);
    }

    #[test]
    fn survives_the_word() {
        let event = Event::new(0x7f12_3456_7000, 5 * PAGE_SIZE).unwrap();
        assert_eq!(Event::from_word(event.word()), Some(event));
        assert_eq!(Event::from_word(0), None);
    }
}
