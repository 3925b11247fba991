//! Sizes of blocks: steps of 256 bytes to 2 KiB, then eight classes per doubling,
//! so that a block is at most 12.5 % larger than asked for from 2 KiB up, and at
//! most 255 bytes below. Above 32 KiB sizes are whole 4 KiB, above 1 MiB whole
//! 64 KiB (6.25 % at most), without classes.

/// A class of small blocks.
pub(super) type Class = u16;

/// What every block starts at a multiple of, as `cuMemAlloc` promises.
pub(super) const ALIGN: usize = 256;
/// Bytes of the largest small block.
pub(super) const LARGEST_SMALL: usize = 32 << 10;
/// Ranges are whole multiples of this.
pub(super) const GRAIN: usize = 4 << 10;
/// Above this, of this: fewer, longer ranges.
const COARSE_ABOVE: usize = 1 << 20;
const COARSE: usize = 64 << 10;
/// Longer ranges come from slabs for large ones. At 1 MiB the slabs for short ones were the
/// larger part of what several streams do not use: ranges that nothing else may have.
const SHORT: usize = 256 << 10;
/// Small blocks come from spans of at least this.
const SPAN: usize = 64 << 10;

pub(super) const CLASSES: usize = class_of(LARGEST_SMALL) as usize + 1;

/// The smallest class that holds `bytes`, at most [`LARGEST_SMALL`].
#[inline]
pub(super) const fn class_of(bytes: usize) -> Class {
    let units = bytes.div_ceil(ALIGN);
    if units <= 8 {
        return units.saturating_sub(1) as Class;
    }
    let last = units - 1;
    let doubling = last.ilog2();
    (8 * (doubling - 2) + ((last >> (doubling - 3)) & 7) as u32) as Class
}

/// Bytes of a block of `class`.
#[inline]
pub(super) const fn size_of(class: Class) -> usize {
    let class = class as usize;
    if class < 8 {
        return (class + 1) * ALIGN;
    }
    ((8 + (class & 7) + 1) << (class / 8 - 1)) * ALIGN
}

/// Blocks of `class` in a span, and the span's bytes.
pub(super) const fn span(class: Class) -> (usize, usize) {
    let size = size_of(class);
    let count = SPAN.div_ceil(size);
    (count, (count * size).next_multiple_of(GRAIN))
}

/// Bytes of a block without a class that holds `bytes`; `None` if that is more than
/// there are addresses.
#[inline]
pub(super) fn rounded(bytes: usize) -> Option<usize> {
    let to = if bytes > COARSE_ABOVE { COARSE } else { GRAIN };
    bytes.checked_next_multiple_of(to).filter(|&bytes| bytes < 1 << 46)
}

/// Which slabs a range comes from: long-lived small ones do not break up what large
/// ones need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Short ones, and spans.
    Small = 0,
    Large = 1,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Small, Kind::Large];

    #[inline]
    pub(super) fn of(bytes: usize) -> Kind {
        if bytes <= SHORT { Kind::Small } else { Kind::Large }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_size_has_the_smallest_class_that_holds_it() {
        for bytes in 1..=LARGEST_SMALL {
            let class = class_of(bytes);
            let size = size_of(class);
            assert!(size >= bytes, "{bytes} in {size}");
            assert!(class == 0 || size_of(class - 1) < bytes, "{bytes} in {size}");
            assert!(size - bytes < ALIGN || (size - bytes) * 8 <= bytes, "{bytes} in {size}");
        }
        assert_eq!(size_of(CLASSES as Class - 1), LARGEST_SMALL);
    }

    #[test]
    fn every_other_size_wastes_an_eighth_at_most() {
        let mut bytes = LARGEST_SMALL + 1;
        while bytes < 1 << 33 {
            let size = rounded(bytes).unwrap();
            assert!(size >= bytes && (size - bytes) * 8 <= bytes, "{bytes} in {size}");
            bytes += bytes / 97 + 1;
        }
        assert_eq!(rounded(usize::MAX), None);
    }

    #[test]
    fn spans_are_whole_grains_that_the_blocks_nearly_fill() {
        for class in 0..CLASSES as Class {
            let (count, bytes) = span(class);
            let used = count * size_of(class);
            assert!(bytes.is_multiple_of(GRAIN) && used <= bytes && bytes - used < GRAIN);
        }
    }
}
