//! Growing a registration beyond what was asked for, so that many small buffers
//! of one mapping share a region.

use crate::maps;
use crate::range::PageRange;

/// How far a registration grows beyond the buffer that it is made for. It never
/// leaves the mapping (line of /proc/self/maps) that holds the buffer, and where
/// the larger one is refused, by the backend or the budget, the buffer's own
/// pages are registered.
///
/// More is pinned than was asked for, and a change anywhere in a region retires
/// all of it: for buffers that live long beside each other, not for memory that an
/// allocator keeps giving back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coarsen {
    /// Not at all.
    #[default]
    Never,
    /// To the huge pages (2 MiB) that the buffer touches.
    HugePage,
    /// To aligned blocks of this many bytes, rounded up to a power of two; the
    /// whole mapping where it is smaller.
    Blocks(usize),
}

impl Coarsen {
    /// The pages to register for `pages`; the same where nothing is gained.
    /// Reads /proc/self/maps.
    #[inline]
    pub(crate) fn grow(self, pages: PageRange) -> PageRange {
        if self == Coarsen::Never { pages } else { self.grown(pages) }
    }

    #[inline(never)]
    fn grown(self, pages: PageRange) -> PageRange {
        let block = match self {
            Coarsen::Never => return pages,
            Coarsen::HugePage => 2 << 20,
            Coarsen::Blocks(bytes) => bytes.checked_next_power_of_two().unwrap_or(1 << (usize::BITS - 1)),
        };
        let wanted = PageRange {
            start: pages.start & !(block - 1),
            end: pages.end.checked_next_multiple_of(block).unwrap_or(pages.end),
        };
        if wanted == pages {
            return pages;
        }
        let maps = maps::read().unwrap_or_default();
        let mut mappings = maps::mappings(&maps).map(|mapping| mapping.pages());
        let mapping = mappings.find(|mapping| mapping.contains(pages));
        mapping.and_then(|mapping| mapping.intersection(wanted)).unwrap_or(pages)
    }
}
