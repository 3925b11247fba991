//! What a range is mapped from: pages of this process alone, or shared ones that
//! others may take away.
//!
//! Linux 6.11 answers in one system call a mapping (`PROCMAP_QUERY`,
//! `include/uapi/linux/fs.h`); older kernels tell page by page, for pages that are
//! there (`/proc/pid/pagemap`, bit 61).
#![allow(unsafe_code)]

use crate::range::PageRange;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// What a range consists of, at worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Private anonymous pages.
    Private,
    /// Private pages, perhaps of a file.
    PrivateSomehow,
    /// Among them private pages of a file.
    PrivateFile,
    /// Among them pages that other mappings, or a file, share.
    Shared,
    /// The kernel would not say.
    Unknown,
}

/// How to ask.
pub(crate) enum Maps {
    Query(File),
    Pagemap(File),
    Nothing,
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

const PAGE: usize = pinyard_hooks::PAGE_SIZE;
const FILE_OR_SHARED: u64 = 1 << 61;
/// Pages asked about by one read: a page of answers.
const AT_A_TIME: usize = 512;

impl Maps {
    pub(crate) fn open() -> Maps {
        if let Ok(maps) = File::open("/proc/self/maps")
            && query(&maps, 0).is_ok()
        {
            return Maps::Query(maps);
        }
        File::open("/proc/self/pagemap").map_or(Maps::Nothing, Maps::Pagemap)
    }

    /// Before the device pins `range`.
    pub(crate) fn kind(&self, range: PageRange) -> Kind {
        match self {
            Maps::Query(maps) => by_query(maps, range),
            Maps::Pagemap(_) => Kind::PrivateSomehow, // its pages may not be there yet
            Maps::Nothing => Kind::Unknown,
        }
    }

    /// Once more when its pages are pinned, where that tells more.
    pub(crate) fn kind_of_pinned(&self, range: PageRange) -> Option<Kind> {
        match self {
            Maps::Pagemap(pagemap) => Some(by_page(pagemap, range)),
            Maps::Query(_) | Maps::Nothing => None,
        }
    }
}

/// Tells the hooks of every mapping that is not private and anonymous: those that
/// they did not see being made.
pub(super) fn note_doubtful() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else {
        return pinyard_hooks::note_doubtful(0, usize::MAX);
    };
    for line in maps.lines() {
        // start-end permissions offset device inode name
        let mut fields = line.split_ascii_whitespace();
        let (range, permissions) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let is_plain = permissions.ends_with('p') && fields.nth(2) == Some("0");
        let at = |hex: &str| usize::from_str_radix(hex, 16).ok();
        if let Some((start, end)) =
            range.split_once('-').and_then(|(start, end)| Some((at(start)?, at(end)?)))
            && !is_plain
        {
            pinyard_hooks::note_doubtful(start, end - start);
        }
    }
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

fn by_query(maps: &File, range: PageRange) -> Kind {
    let mut worst = Kind::Private;
    let mut at = range.start;
    while at < range.end {
        match query(maps, at) {
            Ok(Some(found)) if (found.start as usize) < range.end => {
                worst = worst.max(match (found.vma_flags & VMA_SHARED, found.inode) {
                    (0, 0) => Kind::Private,
                    (0, _) => Kind::PrivateFile,
                    _ => Kind::Shared,
                });
                at = found.end as usize;
            }
            Ok(_) => break, // nothing is mapped there: the device will refuse
            Err(_) => return Kind::Unknown,
        }
    }
    worst
}

fn by_page(pagemap: &File, range: PageRange) -> Kind {
    let mut answers = [0u8; AT_A_TIME * 8];
    let mut page = range.start / PAGE;
    while page < range.end / PAGE {
        let count = AT_A_TIME.min(range.end / PAGE - page);
        let Some(answers) = answers.get_mut(..count * 8) else { return Kind::Unknown };
        if pagemap.read_exact_at(answers, page as u64 * 8).is_err() {
            return Kind::Unknown;
        }
        let mut words = answers.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        if words.any(|word| word & FILE_OR_SHARED != 0) {
            return Kind::Shared;
        }
        page += count;
    }
    // A private file's page that was written to looks like any other.
    Kind::PrivateSomehow
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use pinyard_hooks::sys;

    fn kinds(range: PageRange) -> Vec<Kind> {
        let pagemap = Maps::Pagemap(File::open("/proc/self/pagemap").unwrap());
        let either = |maps: &Maps| maps.kind_of_pinned(range).unwrap_or_else(|| maps.kind(range));
        [Maps::open(), pagemap].iter().map(either).collect()
    }

    #[test]
    fn shared_and_private_pages_are_told_apart() {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        for (flags, shared) in [(libc::MAP_PRIVATE, false), (libc::MAP_SHARED, true)] {
            // SAFETY: fresh mappings, touched and unmapped again.
            unsafe {
                let at = sys::mmap(0, 2 * PAGE, both, flags | libc::MAP_ANONYMOUS).unwrap();
                (at as *mut u8).write_bytes(1, 2 * PAGE);
                for kind in kinds(PageRange { start: at, end: at + 2 * PAGE }) {
                    assert_eq!(kind == Kind::Shared, shared, "{kind:?}");
                }
                sys::munmap(at, 2 * PAGE).unwrap();
            }
        }
    }
}
