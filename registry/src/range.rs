//! Byte ranges that callers name, and the whole pages that get registered.

use crate::error::RangeError;
use pinyard_hooks::PAGE_SIZE;

/// One past the highest address that can be registered: a 47-bit user space.
pub const ADDRESS_LIMIT: usize = 1 << 47;

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

/// Bytes `start..end`, checked: not empty, not null, no wrap-around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl ByteRange {
    #[inline]
    pub(crate) fn new((start, len): (usize, usize)) -> Result<ByteRange, RangeError> {
        match start.checked_add(len) {
            Some(end) if start != 0 && len != 0 && end <= ADDRESS_LIMIT => Ok(ByteRange { start, end }),
            _ => Err(RangeError::of(start, len)),
        }
    }

    /// The pages that the bytes touch.
    pub(crate) fn pages(self) -> PageRange {
        let start = self.start & !(PAGE_SIZE - 1);
        PageRange { start, end: self.end.next_multiple_of(PAGE_SIZE) }
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
    /// Bytes covered.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(self) -> usize {
        self.end - self.start
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
        let pages = |start, len| ByteRange::new((start, len)).unwrap().pages();
        assert_eq!(pages(0x1000, 1), PageRange { start: 0x1000, end: 0x2000 });
        assert_eq!(pages(0x1fff, 2), PageRange { start: 0x1000, end: 0x3000 });
        assert_eq!(pages(0x1000, 0x1000), PageRange { start: 0x1000, end: 0x2000 });
    }

    #[test]
    fn what_names_no_memory_is_refused_with_its_reason() {
        let refused = |start, len| ByteRange::new((start, len)).unwrap_err();
        assert!(matches!(refused(0x1000, 0), RangeError::Empty { .. }));
        assert!(matches!(refused(0, 10), RangeError::Null { len: 10 }));
        assert!(matches!(refused(usize::MAX - 5, 10), RangeError::WrapsAround { .. }));
        assert!(matches!(refused(ADDRESS_LIMIT - 1, 2), RangeError::AboveLimit { .. }));
    }

    #[test]
    fn slices_name_their_bytes() {
        let array = [0u32; 5];
        assert_eq!((&array).as_range(), (array.as_ptr().addr(), 20));
        assert_eq!((&array[1..3]).as_range(), (array.as_ptr().addr() + 4, 8));
        assert_eq!((array.as_ptr(), 7).as_range().1, 7);
    }
}
