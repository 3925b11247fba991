//! Which memory is private and anonymous beyond doubt.
//!
//! Pages of files and shared pages can be taken away past every mapping call, so
//! whoever registers them must know; asking the kernel at each registration costs
//! as much as pinning a page. Here every mapping that is not plain leaves its
//! granules marked, for good: a doubt that is not justified any more costs a
//! question, nothing else. What hooks cannot see being mapped (by the loader, or
//! before they were there) is marked by whoever reads /proc/self/maps.

use crate::sync::{AtomicU64, zeroed_atomics};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const GRANULE_SHIFT: u32 = 21;
/// 128 GiB of granules before any two share a bit.
const WORDS: usize = 1024;
const BITS: usize = WORDS * 64;

/// A bit for each granule that may hold something else, modulo [`BITS`].
static DOUBTFUL: [AtomicU64; WORDS] = zeroed_atomics!(AtomicU64);

fn granules(start: usize, len: usize) -> impl Iterator<Item = usize> {
    let last = start.saturating_add(len.max(1) - 1) >> GRANULE_SHIFT;
    (start >> GRANULE_SHIFT..=last).take(BITS)
}

/// `len` bytes at `start` may be of a file, or shared. Callable in a hook.
pub fn note_doubtful(start: usize, len: usize) {
    for granule in granules(start, len) {
        let (word, bit) = (&DOUBTFUL[granule / 64 % WORDS], 1 << (granule % 64));
        if word.load(Relaxed) & bit == 0 {
            // Release: pairs with `is_plain`.
            word.fetch_or(bit, Release);
        }
    }
}

/// Whether `len` bytes at `start` are private and anonymous, or not mapped, as far
/// as patched entries and their installer can tell.
#[inline]
pub fn is_plain(start: usize, len: usize) -> bool {
    // Acquire: whoever has an address from a mapping call sees its mark.
    granules(start, len)
        .all(|granule| DOUBTFUL[granule / 64 % WORDS].load(Acquire) >> (granule % 64) & 1 == 0)
}

/// mmap(2) flags of private anonymous memory.
#[inline]
pub(crate) fn is_plain_mapping(flags: i32) -> bool {
    flags & libc::MAP_TYPE == libc::MAP_PRIVATE && flags & libc::MAP_ANONYMOUS != 0
}

/// Runs `map`, a mapping call that answers with an address, and marks what it
/// maps: before, where the caller says where, since another thread may be
/// registering the range.
#[inline(always)]
pub(crate) fn mapping(
    doubtful: bool,
    fixed: Option<usize>,
    len: usize,
    map: impl FnOnce() -> isize,
) -> isize {
    if !doubtful {
        return map();
    }
    if let Some(at) = fixed {
        note_doubtful(at, len);
    }
    let at = map();
    if at != -1 {
        note_doubtful(at as usize, len);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_noted_is_doubtful() {
        let at = 5 << 40;
        assert!(is_plain(at, 1 << 30));
        note_doubtful(at + (4 << 21) + 100, 1 << 21);
        assert!(is_plain(at, 4 << 21) && is_plain(at + (6 << 21), 1));
        assert!(!is_plain(at + (4 << 21), 1) && !is_plain(at + (5 << 21), 1) && !is_plain(at, usize::MAX));
    }

    #[test]
    fn flags_of_plain_memory() {
        let (private, anonymous) = (libc::MAP_PRIVATE, libc::MAP_ANONYMOUS);
        assert!(is_plain_mapping(private | anonymous | libc::MAP_FIXED));
        for flags in [private, libc::MAP_SHARED | anonymous, libc::MAP_SHARED_VALIDATE | anonymous] {
            assert!(!is_plain_mapping(flags), "{flags:#x}");
        }
    }
}
