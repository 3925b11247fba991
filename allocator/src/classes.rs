//! Size classes: eight per doubling, so that a block is at most 12.5 % larger
//! than what was asked for, from 64 bytes up.
//!
//! A class's blocks come from spans: page-granular pieces of a slab that the
//! blocks fill without a remainder.

use pinyard_hooks::PAGE_SIZE;

/// A size class: 0 is 64 bytes, 8 is 128, 16 is 256.
pub(crate) type Class = u16;

/// Bytes of the smallest block.
pub(crate) const SMALLEST: usize = 64;
/// Bytes of the largest class, in pools whose slabs are large enough for it.
pub(crate) const LARGEST: usize = 32 << 20;
/// Number of classes.
pub(crate) const CLASSES: usize = class_of(LARGEST) as usize + 1;
/// Stands for blocks that have a span of their own, outside every class.
pub(crate) const OVERSIZE: Class = CLASSES as Class;

/// Spans are at least this long.
const SPAN: usize = 64 << 10;
/// Bytes of free blocks per class that a thread keeps in one magazine.
const MAGAZINE_BYTES: usize = 256 << 10;
const MOST_ROUNDS: usize = 32;
/// Larger blocks are not kept by threads: one compare-and-swap is little beside
/// what is done with a megabyte, and a hoard of them is much.
const LARGEST_KEPT: usize = 1 << 20;

/// The smallest class that holds `bytes`.
#[inline]
pub(crate) const fn class_of(bytes: usize) -> Class {
    if bytes <= SMALLEST {
        return 0;
    }
    let last = bytes - 1;
    let doubling = last.ilog2();
    let eighth = (last >> (doubling - 3)) & 7;
    ((doubling - SMALLEST.ilog2()) * 8) as Class + eighth as Class + 1
}

/// Bytes of a block of `class`.
#[inline]
pub(crate) const fn size_of(class: Class) -> usize {
    (8 + (class as usize & 7)) << (SMALLEST.ilog2() - 3 + (class as u32 >> 3))
}

/// The smallest class whose blocks hold `bytes` and start at multiples of
/// `align`, a power of two; `None` if there is none. Spans start at pages, so
/// no class aligns to more.
#[inline]
pub(crate) fn aligned_class(bytes: usize, align: usize, largest: Class) -> Option<Class> {
    if align > PAGE_SIZE || bytes > size_of(largest) {
        return None;
    }
    // Ends at a power of two at the latest, within eight classes.
    let mut class = class_of(bytes.max(align));
    while size_of(class) & (align - 1) != 0 {
        class += 1;
    }
    (class <= largest).then_some(class)
}

/// Blocks in a span of `class`.
pub(crate) const fn span_blocks(class: Class) -> usize {
    let size = size_of(class);
    // Any multiple of `unit` blocks is a whole number of pages.
    let lowest_bit = size & size.wrapping_neg();
    let unit = if lowest_bit >= PAGE_SIZE { 1 } else { PAGE_SIZE / lowest_bit };
    SPAN.div_ceil(size).next_multiple_of(unit)
}

/// Blocks of `class` in a full magazine; 0: threads keep none.
pub(crate) const fn rounds(class: Class) -> usize {
    let size = size_of(class);
    if size > LARGEST_KEPT {
        return 0;
    }
    let rounds = MAGAZINE_BYTES / size;
    if rounds == 0 {
        1
    } else if rounds > MOST_ROUNDS {
        MOST_ROUNDS
    } else {
        rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_classs_size_is_in_the_class_and_one_more_byte_in_the_next() {
        for class in 0..CLASSES as Class {
            assert_eq!(class_of(size_of(class)), class);
            assert_eq!(class_of(size_of(class) + 1), class + 1);
        }
        assert_eq!((size_of(0), size_of(1), size_of(8), size_of(9)), (64, 72, 128, 144));
        assert_eq!(size_of(CLASSES as Class - 1), LARGEST);
    }

    #[test]
    fn every_size_to_64_kib_wastes_an_eighth_at_most() {
        for bytes in SMALLEST..=64 << 10 {
            let block = size_of(class_of(bytes));
            assert!(block >= bytes && (block - bytes) * 8 <= bytes, "{bytes} in {block}");
        }
    }

    #[test]
    fn spans_are_whole_pages_and_blocks_fill_them() {
        for class in 0..CLASSES as Class {
            let bytes = size_of(class) * span_blocks(class);
            assert_eq!(bytes % PAGE_SIZE, 0, "class {class}");
            assert!(bytes >= SPAN && bytes <= (2 * SPAN).max(size_of(class)), "class {class}: {bytes}");
        }
    }

    proptest! {
        #[test]
        fn every_size_to_the_largest_wastes_an_eighth_at_most(bytes in SMALLEST..=LARGEST) {
            let block = size_of(class_of(bytes));
            prop_assert!(block >= bytes);
            prop_assert!((block - bytes) * 8 <= bytes, "{} in {}", bytes, block);
        }

        #[test]
        fn an_aligned_class_is_aligned_and_large_enough(
            bytes in 1..=LARGEST, shift in 0u32..=14, largest in 0..CLASSES as Class,
        ) {
            let align = 1 << shift;
            if let Some(class) = aligned_class(bytes, align, largest) {
                prop_assert!(size_of(class) >= bytes && class <= largest);
                prop_assert_eq!(size_of(class) % align, 0);
            } else {
                prop_assert!(align > PAGE_SIZE || bytes.max(align).next_power_of_two() > size_of(largest) || bytes > size_of(largest));
            }
        }
    }
}
