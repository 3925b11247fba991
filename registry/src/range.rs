//! Byte ranges that callers name, and the whole pages that get registered.

use crate::error::RangeError;
use pinyard_hooks::PAGE_SIZE;

/// One past the highest address that can be registered: the user space of
/// 5-level page tables. What lies above [`CACHED_LIMIT`] is registered anew by
/// every `get`.
pub const ADDRESS_LIMIT: usize = 1 << 56;

/// One past the highest address whose registrations are cached: the 47-bit user
/// space that a program has unless it hints mmap beyond it.
pub const CACHED_LIMIT: usize = 1 << 47;

/// Something that names memory by address and length. The memory is not read.
pub trait AsRange {
    /// First byte and length in bytes.
    fn as_range(&self) -> (usize, usize);
}

macro_rules! slices {
    ($([$($generics:tt)*] $type:ty),*) => {$(
        impl<$($generics)*> AsRange for $type {
            fn as_range(&self) -> (usize, usize) {
                (self.as_ptr().addr(), std::mem::size_of_val(&self[..]))
            }
        }
    )*};
}
slices!([T] &[T], [T] &mut [T], [T] &Vec<T>, [T] &mut Vec<T>, [T, const N: usize] &[T; N], [T, const N: usize] &mut [T; N]);

/// An address and a length in bytes (not in elements).
impl<T> AsRange for (*const T, usize) {
    fn as_range(&self) -> (usize, usize) {
        (self.0.addr(), self.1)
    }
}

/// An address and a length in bytes (not in elements).
impl<T> AsRange for (*mut T, usize) {
    fn as_range(&self) -> (usize, usize) {
        (self.0.addr(), self.1)
    }
}

/// Bytes as a caller names them: only [`pages`](ByteRange::pages) checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl From<(usize, usize)> for ByteRange {
    fn from((start, len): (usize, usize)) -> ByteRange {
        ByteRange { start, len }
    }
}

impl ByteRange {
    /// The pages that the bytes touch, if they are not empty, not null and do not
    /// wrap around.
    pub(crate) fn pages(self) -> Result<PageRange, RangeError> {
        match self.start.checked_add(self.len) {
            Some(end) if self.start != 0 && self.len != 0 && end <= ADDRESS_LIMIT => {
                let start = self.start & !(PAGE_SIZE - 1);
                Ok(PageRange { start, end: end.next_multiple_of(PAGE_SIZE) })
            }
            _ => Err(RangeError::of(self.start, self.len)),
        }
    }
}

/// Whole pages: `start..end` in bytes, both multiples of 4096, not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// First byte of the first page.
    pub start: usize,
    /// One past the last byte of the last page.
    pub end: usize,
}

impl PageRange {
    /// Every page that can be registered.
    pub(crate) const ALL: PageRange = PageRange { start: 0, end: ADDRESS_LIMIT };

    /// Bytes covered.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(self) -> usize {
        self.end - self.start
    }

    /// `start..end`, unless that is empty.
    pub(crate) fn from(start: usize, end: usize) -> Option<PageRange> {
        (start < end).then_some(PageRange { start, end })
    }

    /// The pages that the two share.
    pub(crate) fn intersection(self, other: PageRange) -> Option<PageRange> {
        PageRange::from(self.start.max(other.start), self.end.min(other.end))
    }

    /// The pages that are not in `other`: up to two ranges.
    pub(crate) fn without(self, other: PageRange) -> impl Iterator<Item = PageRange> {
        let below = PageRange::from(self.start, self.end.min(other.start));
        let above = PageRange::from(self.start.max(other.end), self.end);
        below.into_iter().chain(above)
    }

    /// Whether the two share a page.
    pub fn overlaps(self, other: PageRange) -> bool {
        self.start < other.end && other.start < self.end
    }

    /// Whether all of `other` lies within.
    pub fn contains(self, other: PageRange) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The smallest range that holds both.
    pub fn union(self, other: PageRange) -> PageRange {
        PageRange { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

impl std::fmt::Display for PageRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x} + {} bytes", self.start, self.len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_the_pages_they_touch() {
        let pages = |start, len| ByteRange { start, len }.pages().unwrap();
        assert_eq!(pages(0x1000, 1), PageRange { start: 0x1000, end: 0x2000 });
        assert_eq!(pages(0x1fff, 2), PageRange { start: 0x1000, end: 0x3000 });
        assert_eq!(pages(0x1000, 0x1000), PageRange { start: 0x1000, end: 0x2000 });
    }

    #[test]
    fn what_names_no_memory_is_refused_with_its_reason() {
        let refused = |start, len| ByteRange { start, len }.pages().unwrap_err();
        assert!(matches!(refused(0x1000, 0), RangeError::Empty { .. }));
        assert!(matches!(refused(0, 10), RangeError::Null { len: 10 }));
        assert!(matches!(refused(usize::MAX - 5, 10), RangeError::WrapsAround { .. }));
        assert!(matches!(refused(ADDRESS_LIMIT - 1, 2), RangeError::AboveLimit { .. }));
    }

    #[test]
    fn what_is_left_of_a_range_without_another() {
        let range = |start, end| PageRange { start, end };
        let left = |a: PageRange, b| a.without(b).collect::<Vec<_>>();
        let whole = range(10, 20);
        assert_eq!(left(whole, range(12, 15)), [range(10, 12), range(15, 20)]);
        assert_eq!(left(whole, range(5, 15)), [range(15, 20)]);
        assert_eq!(left(whole, range(15, 25)), [range(10, 15)]);
        assert_eq!(left(whole, range(0, 30)), []);
        assert_eq!(left(whole, range(20, 30)), [whole]);
        assert_eq!(left(whole, range(0, 10)), [whole]);
        assert_eq!(whole.intersection(range(5, 12)), Some(range(10, 12)));
        assert_eq!(whole.intersection(range(20, 30)), None);
    }

    #[test]
    fn slices_name_their_bytes() {
        let array = [0u32; 5];
        assert_eq!((&array).as_range(), (array.as_ptr().addr(), 20));
        assert_eq!((&array[1..3]).as_range(), (array.as_ptr().addr() + 4, 8));
        assert_eq!((array.as_ptr(), 7).as_range().1, 7);
    }
}
