//! What a range is mapped from: pages of this process alone, or shared ones that
//! others may take away.
//!
//! Linux 6.11 answers in one system call a mapping (`PROCMAP_QUERY`,
//! `include/uapi/linux/fs.h`); older kernels list all of them (`/proc/self/maps`), about
//! a microsecond each.
#![allow(unsafe_code)]

use crate::maps::{self, Mapping};
use crate::range::PageRange;
use pinyard_worker::Descriptor;
use std::fs::File;
use std::os::fd::AsRawFd;

/// What a range consists of, at worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Private anonymous pages.
    Private,
    /// Among them private pages of a file.
    PrivateFile,
    /// Among them pages that other mappings, or a file, share.
    Shared,
    /// The kernel would not say.
    Unknown,
}

/// How to ask.
pub(crate) enum Maps {
    Query(Descriptor),
    Listing,
}

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const COVERING_OR_NEXT: u64 = 0x10;
const VMA_SHARED: u64 = 8;

impl Maps {
    pub(crate) fn open() -> Maps {
        let opened = maps::PATHS.iter().filter_map(|path| File::open(path).ok());
        let answers = opened.into_iter().find(|maps| query(maps, 0).is_ok());
        answers.map_or(Maps::Listing, |maps| Maps::Query(Descriptor::new(maps)))
    }

    /// The mappings that have a page of `range`.
    pub(crate) fn found(&self, range: PageRange) -> Found {
        match self {
            // The program may have closed it.
            Maps::Query(maps) => {
                maps.file().map_or_else(|_| by_listing(range), |maps| by_query(&maps, range))
            }
            Maps::Listing => by_listing(range),
        }
    }
}

/// The mappings that have a page of some range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// What they are, at worst.
    pub(crate) kind: Kind,
    /// From the first's start to the last's end; at least the range.
    pub(crate) span: PageRange,
}

impl Found {
    fn nothing(range: PageRange) -> Found {
        Found { kind: Kind::Private, span: range }
    }

    fn with(self, kind: Kind, mapping: PageRange) -> Found {
        Found { kind: self.kind.max(kind), span: self.span.union(mapping) }
    }
}

impl Kind {
    fn new(is_shared: bool, is_of_a_file: bool) -> Kind {
        match (is_shared, is_of_a_file) {
            (false, false) => Kind::Private,
            (false, true) => Kind::PrivateFile,
            (true, _) => Kind::Shared,
        }
    }
}

/// Tells the hooks of every mapping that is not private and anonymous: those that
/// they did not see being made.
pub(super) fn note_doubtful() {
    if cfg!(miri) {
        return; // it maps no files
    }
    let Ok(maps) = maps::read() else {
        return pinyard_hooks::note_doubtful(0, usize::MAX);
    };
    for Mapping { range, is_shared, is_of_a_file, .. } in maps::mappings(&maps) {
        if is_shared || is_of_a_file {
            pinyard_hooks::note_doubtful(range.start, range.len());
        }
    }
}

fn by_listing(range: PageRange) -> Found {
    let Ok(maps) = maps::read() else { return Found { kind: Kind::Unknown, span: range } };
    let mappings = maps::mappings(&maps);
    let concerned = mappings.filter(|mapping| mapping.pages().overlaps(range));
    concerned.fold(Found::nothing(range), |found, mapping| {
        found.with(Kind::new(mapping.is_shared, mapping.is_of_a_file), mapping.pages())
    })
}

/// The mapping at `address` or the next one; `Ok(None)` where there is none.
fn query(maps: &File, address: usize) -> Result<Option<Query>, i32> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        address: address as u64,
        ..Query::default()
    };
    // SAFETY: the structure states its own size; no name or build id is asked for.
    if unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } == 0 {
        return Ok(Some(query));
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::ENOENT) => Ok(None),
        errno => Err(errno.unwrap_or(0)),
    }
}

fn by_query(maps: &File, range: PageRange) -> Found {
    let mut all = Found::nothing(range);
    let mut at = range.start;
    while at < range.end {
        match query(maps, at) {
            Ok(Some(found)) if (found.start as usize) < range.end => {
                let mapping = PageRange { start: found.start as usize, end: found.end as usize };
                all = all.with(Kind::new(found.vma_flags & VMA_SHARED != 0, found.inode != 0), mapping);
                at = mapping.end;
            }
            Ok(_) => break, // nothing is mapped there: the device will refuse
            Err(_) => return Found { kind: Kind::Unknown, ..all },
        }
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods)]
mod tests {
    use super::*;

    const PAGE: usize = pinyard_hooks::PAGE_SIZE;

    fn kinds(range: PageRange) -> [Kind; 2] {
        [Maps::open(), Maps::Listing].map(|maps| maps.found(range).kind)
    }

    #[test]
    fn shared_private_and_files_pages_are_told_apart() {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let (private, shared, none) = (libc::MAP_PRIVATE, libc::MAP_SHARED, libc::MAP_ANONYMOUS);
        let file = File::open("/proc/self/exe").unwrap();
        for (flags, wanted) in
            [(private | none, Kind::Private), (shared | none, Kind::Shared), (private, Kind::PrivateFile)]
        {
            let fd = if flags & none == 0 { file.as_raw_fd() } else { -1 };
            // SAFETY: fresh mappings, not touched, and unmapped again.
            unsafe {
                let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, both, flags, fd, 0) as usize;
                let (first, second) = (at..at + PAGE, at + PAGE..at + 2 * PAGE);
                for part in [first.start..second.end, first, second] {
                    let kinds = kinds(PageRange { start: part.start, end: part.end });
                    assert_eq!(kinds, [wanted; 2], "by query, and by listing");
                }
                libc::munmap(at as *mut _, 2 * PAGE);
            }
        }
    }

    #[test]
    fn a_span_begins_and_ends_with_mappings() {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a mapping of the test's own, whose inner pages are a mapping of theirs.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 8 * PAGE, libc::PROT_NONE, anonymous, -1, 0);
            libc::mprotect(at.byte_add(2 * PAGE), 4 * PAGE, both);
            let pages =
                |first, end| PageRange { start: at as usize + first * PAGE, end: at as usize + end * PAGE };
            for (part, wanted) in
                [(pages(3, 4), pages(2, 6)), (pages(2, 6), pages(2, 6)), (pages(3, 7), pages(2, 8))]
            {
                let spans = [Maps::open(), Maps::Listing].map(|maps| maps.found(part).span);
                assert!(
                    spans.iter().all(|span| span.start == wanted.start && span.end >= wanted.end),
                    "{spans:?}"
                );
            }
            libc::munmap(at, 8 * PAGE);
        }
    }

    #[test]
    fn the_worst_of_several_mappings_counts() {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let (anonymous, fixed) = (libc::MAP_ANONYMOUS, libc::MAP_FIXED);
        // SAFETY: a mapping of the test's own, whose last page is replaced.
        unsafe {
            let flags = libc::MAP_PRIVATE | anonymous;
            let at = libc::mmap(std::ptr::null_mut(), 3 * PAGE, both, flags, -1, 0);
            let last = at.byte_add(2 * PAGE);
            libc::mmap(last, PAGE, both, libc::MAP_SHARED | anonymous | fixed, -1, 0);
            let all = PageRange { start: at as usize, end: at as usize + 3 * PAGE };
            assert_eq!(kinds(all), [Kind::Shared; 2]);
            assert_eq!(kinds(PageRange { end: all.end - PAGE, ..all }), [Kind::Private; 2]);
            libc::munmap(at, 3 * PAGE);
        }
    }
}
