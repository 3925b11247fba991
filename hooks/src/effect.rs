//! Which pages a call takes away from whoever had them registered.
//!
//! Functions of the arguments (and, for one, of the kernel's version): what a hook publishes before it makes the
//! real call. They err towards too much: a call that fails afterwards has
//! published a needless event.
//!
//! Sources: the man pages of the functions named, and for which advice drops
//! pages under a pin, `mm/madvise.c` of Linux 6.18. `MADV_FREE` is left out on
//! purpose: pages that are pinned are not freed by it (io_uring shows the new
//! bytes afterwards).

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Up to two byte ranges, `(start, len)`; a length of 0 is no range.
pub(crate) type Ranges = [(usize, usize); 2];

const NOTHING: (usize, usize) = (0, 0);
/// One past the highest address of a 48-bit user space (x86-64 has 47 bits).
const TOP: usize = 1 << 48;

const MADV_DONTNEED_LOCKED: i32 = 24;
const MADV_GUARD_INSTALL: i32 = 102;

/// munmap(2).
#[inline]
pub(crate) fn munmap(addr: usize, len: usize) -> Ranges {
    [(addr, len), NOTHING]
}

/// mmap(2): only `MAP_FIXED` replaces what is there.
#[inline]
pub(crate) fn mmap(addr: usize, len: usize, flags: i32) -> Ranges {
    // MAP_FIXED_NOREPLACE fails instead of replacing; it has a bit of its own.
    let replaces = flags & libc::MAP_FIXED != 0;
    [if replaces { (addr, length(len, flags)) } else { NOTHING }, NOTHING]
}

/// How many bytes mmap(2) maps. `MAP_HUGETLB` lengths are rounded up to the huge page
/// size that the flags name (log2 in their upper bits; 0 is the default, 2 MiB on x86-64).
#[inline]
pub(crate) fn length(len: usize, flags: i32) -> usize {
    if flags & libc::MAP_HUGETLB == 0 {
        return len;
    }
    let size = match (flags as u32) >> libc::MAP_HUGE_SHIFT {
        0 => 1 << 21,
        log2 => 1usize << (log2 & 63),
    };
    len.checked_next_multiple_of(size).unwrap_or(usize::MAX)
}

/// mremap(2): the old range where it can move or shrinks, and a fixed target.
#[inline]
pub(crate) fn mremap(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> Ranges {
    let source = if flags & libc::MREMAP_MAYMOVE != 0 {
        (old, old_len)
    } else if new_len < old_len {
        (old.wrapping_add(new_len), old_len - new_len)
    } else {
        NOTHING
    };
    let target = if flags & libc::MREMAP_FIXED != 0 { (new, new_len) } else { NOTHING };
    [source, target]
}

/// Whether advice replaces or drops pages although they are pinned.
#[inline]
pub(crate) fn drops_pages(advice: i32) -> bool {
    matches!(
        advice,
        libc::MADV_DONTNEED
            | libc::MADV_REMOVE
            | MADV_DONTNEED_LOCKED
            | MADV_GUARD_INSTALL
            | libc::MADV_HWPOISON
            | libc::MADV_SOFT_OFFLINE
    )
}

/// Whether the advice is to the file: other mappings of it lose the pages as well.
#[inline]
pub(crate) fn reaches_other_mappings(advice: i32) -> bool {
    advice == libc::MADV_REMOVE
}

/// Set where the kernel copies a pinned page at the first write after it was not
/// writable for a while, so that the device keeps the old one: before Linux 5.19, which
/// knows which anonymous pages are the process's alone (`PageAnonExclusive`).
static COPIES_PINNED_PAGES: AtomicBool = AtomicBool::new(false);

/// Looks which kernel this is. Not for hooks.
#[allow(unsafe_code)]
pub(crate) fn learn_kernel() {
    // SAFETY: all-zero is a value of the structure, and uname(2) fills it.
    let release = unsafe {
        let mut name: libc::utsname = core::mem::zeroed();
        libc::uname(&raw mut name);
        name.release
    };
    COPIES_PINNED_PAGES.store(is_before_5_19(&release.map(|byte| byte as u8)), Relaxed);
}

fn is_before_5_19(release: &[u8]) -> bool {
    let digit = |sum: u32, digit: &u8| sum.saturating_mul(10).saturating_add(u32::from(*digit) - 48);
    let mut numbers = release.split(|byte| !byte.is_ascii_digit()).map(|digits| digits.iter().fold(0, digit));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (5, 19)
}

/// Whether a ring with these flags (io_uring_setup(2)) has neither a mapping nor a descriptor of the process's.
pub(crate) fn is_a_hidden_ring(flags: u32) -> bool {
    const NO_MMAP: u32 = 1 << 14;
    const REGISTERED_FD_ONLY: u32 = 1 << 15;
    const HIDDEN: u32 = NO_MMAP | REGISTERED_FD_ONLY;
    flags & HIDDEN == HIDDEN
}

/// mprotect(2): whether pinned pages are replaced once they can be written again.
#[inline]
pub(crate) fn copies_when_writable_again(prot: i32) -> bool {
    prot & libc::PROT_WRITE == 0 && COPIES_PINNED_PAGES.load(Relaxed)
}

/// madvise(2).
#[inline]
pub(crate) fn madvise(addr: usize, len: usize, advice: i32) -> Ranges {
    [if drops_pages(advice) { (addr, len) } else { NOTHING }, NOTHING]
}

/// brk(2): what lies between the new break and the current one.
#[inline]
pub(crate) fn brk(new: usize, current: usize) -> Ranges {
    let taken = match (new, current) {
        (0, _) => NOTHING,
        // libc has no record of the break yet: it may lie anywhere.
        (_, 0) => (new, above(new)),
        _ if new < current => (new, current - new),
        _ => NOTHING,
    };
    [taken, NOTHING]
}

/// sbrk(2): what a negative increment takes away below the current break.
#[inline]
pub(crate) fn sbrk(increment: isize, current: usize) -> Ranges {
    if increment >= 0 {
        return [NOTHING, NOTHING];
    }
    brk(current.saturating_add_signed(increment).max(1), current)
}

/// shmdt(2) does not say how long the segment is: all above its address.
#[inline]
pub(crate) fn shmdt(addr: usize) -> Ranges {
    [(addr, above(addr)), NOTHING]
}

/// How many bytes of user space lie above `addr`.
#[inline]
pub(crate) fn above(addr: usize) -> usize {
    TOP.saturating_sub(addr)
}

/// shmat(2): with `SHM_REMAP` it replaces what is there. It does not say how long
/// the segment is: all above the address.
#[inline]
pub(crate) fn shmat(addr: usize, flags: i32) -> Ranges {
    if flags & libc::SHM_REMAP == 0 { [NOTHING, NOTHING] } else { shmdt(addr) }
}

/// Any mapped page may be concerned.
pub(crate) const EVERYTHING: Ranges = [(crate::PAGE_SIZE, TOP - crate::PAGE_SIZE), NOTHING];

/// Whether fallocate(2) with this mode leaves every page in place.
#[inline]
pub(crate) fn only_allocates(mode: i32) -> bool {
    mode & !libc::FALLOC_FL_KEEP_SIZE == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mmap_replaces_only_when_fixed() {
        assert_eq!(mmap(0x1000, 0x2000, libc::MAP_FIXED | libc::MAP_PRIVATE)[0], (0x1000, 0x2000));
        assert_eq!(mmap(0x1000, 0x2000, libc::MAP_PRIVATE)[0], NOTHING);
        assert_eq!(mmap(0x20_0000, 0x2000, libc::MAP_FIXED | libc::MAP_HUGETLB)[0], (0x20_0000, 0x20_0000));
        assert_eq!(mmap(0x1000, 0x2000, libc::MAP_FIXED_NOREPLACE)[0], NOTHING);
    }

    #[test]
    fn mremap_names_source_and_target() {
        let moved = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        assert_eq!(mremap(0x1000, 0x1000, 0x2000, moved, 0x9000), [(0x1000, 0x1000), (0x9000, 0x2000)]);
        assert_eq!(mremap(0x1000, 0x3000, 0x1000, 0, 0), [(0x2000, 0x2000), NOTHING]);
        assert_eq!(mremap(0x1000, 0x1000, 0x3000, 0, 0), [NOTHING, NOTHING]);
    }

    #[test]
    fn only_advice_that_drops_pinned_pages_counts() {
        for advice in [libc::MADV_DONTNEED, libc::MADV_REMOVE, 24, 102] {
            assert!(drops_pages(advice), "{advice}");
        }
        for advice in
            [libc::MADV_FREE, libc::MADV_WILLNEED, libc::MADV_HUGEPAGE, libc::MADV_COLD, libc::MADV_PAGEOUT]
        {
            assert!(!drops_pages(advice), "{advice}");
        }
    }

    #[test]
    fn kernels_that_copy_pinned_pages_are_known() {
        for (release, copies) in [
            ("5.15.0-91-generic", true),
            ("5.18.19", true),
            ("4.18.0-553.el8_10.x86_64", true),
            ("5.19.0", false),
            ("6.1.0-18-amd64", false),
            ("10.0", false),
        ] {
            assert_eq!(is_before_5_19(release.as_bytes()), copies, "{release}");
        }
    }

    #[test]
    fn brk_counts_a_shrink_only() {
        assert_eq!(brk(0x5000, 0x8000)[0], (0x5000, 0x3000));
        assert_eq!(brk(0x9000, 0x8000)[0], NOTHING);
        assert_eq!(brk(0, 0x8000)[0], NOTHING);
        assert_eq!(sbrk(-0x3000, 0x8000)[0], (0x5000, 0x3000));
        assert_eq!(sbrk(0x3000, 0x8000)[0], NOTHING);
        assert_eq!(sbrk(isize::MIN, 0x8000)[0], (1, 0x7fff));
    }

    #[test]
    fn where_libc_has_no_record_the_break_may_lie_anywhere() {
        assert_eq!([brk(0x5000, 0)[0], sbrk(-1, 0)[0]], [(0x5000, TOP - 0x5000), (1, TOP - 1)]);
        assert_eq!([brk(0, 0)[0], sbrk(0, 0)[0], sbrk(0x1000, 0)[0]], [NOTHING; 3]);
    }

    #[test]
    fn shmdt_takes_all_above() {
        assert_eq!(shmdt(0x1000)[0], (0x1000, TOP - 0x1000));
        assert_eq!(shmdt(usize::MAX)[0].1, 0);
        assert_eq!(shmat(0x1000, libc::SHM_REMAP), shmdt(0x1000));
        assert_eq!(shmat(0x1000, libc::SHM_RDONLY), [NOTHING; 2]);
    }

    #[test]
    fn fallocate_counts_unless_it_only_allocates() {
        assert!(only_allocates(0) && only_allocates(libc::FALLOC_FL_KEEP_SIZE));
        assert!(!only_allocates(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE));
        assert!(!only_allocates(libc::FALLOC_FL_ZERO_RANGE));
    }
}
