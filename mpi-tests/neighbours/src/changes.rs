//! Memory that is changed through libc, as a program would.
#![allow(unsafe_code, clippy::disallowed_methods)]

use crate::Failure;
use std::ptr::null_mut;

pub(crate) const PAGE: usize = 4096;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Whole pages; they stay for the life of the process.
pub(crate) struct Pages {
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// What `free` or `shmdt` takes.
    handle: *mut libc::c_void,
}

pub(crate) struct Change {
    pub(crate) name: &'static str,
    pub(crate) make: fn() -> Result<Pages, Failure>,
    /// Leaves other pages at the same addresses.
    pub(crate) change: fn(&Pages) -> Result<(), Failure>,
}

const fn anonymous(name: &'static str, change: fn(&Pages) -> Result<(), Failure>) -> Change {
    Change { name, make: || Pages::new(4), change }
}

pub(crate) const CHANGES: [Change; 7] = [
    anonymous("munmap, then mmap", |pages| {
        // SAFETY: the program's own pages, which nothing refers to.
        checked("munmap", unsafe { libc::munmap(pages.at as *mut _, pages.len) })?;
        pages.map(libc::MAP_FIXED_NOREPLACE)
    }),
    anonymous("mmap MAP_FIXED", |pages| pages.map(libc::MAP_FIXED)),
    anonymous("madvise MADV_DONTNEED", Pages::empty),
    Change {
        name: "mremap away, then mmap",
        // Something lies behind them: growing moves them. (UCX 1.13 loses the
        // target of MREMAP_FIXED on its way to the kernel.)
        make: || Pages::new(8).map(|pages| Pages { len: 4 * PAGE, ..pages }),
        change: |pages| {
            let flags = libc::MREMAP_MAYMOVE;
            // SAFETY: the program's own pages.
            let at = unsafe { libc::mremap(pages.handle, pages.len, 2 * pages.len, flags) };
            checked("mremap to another place", if at as usize == pages.at { -1 } else { at as i32 & 1 })?;
            pages.map(libc::MAP_FIXED_NOREPLACE)
        },
    },
    anonymous("syscall SYS_munmap", |pages| {
        // SAFETY: as munmap above.
        let done = unsafe { libc::syscall(libc::SYS_munmap, pages.at, pages.len) };
        checked("syscall(SYS_munmap)", done as i32)?;
        pages.map(libc::MAP_FIXED_NOREPLACE)
    }),
    Change {
        name: "shmdt, then mmap",
        make: || {
            let len = 4 * PAGE;
            // SAFETY: a private segment where the kernel likes, gone with its last user.
            unsafe {
                let id = libc::shmget(libc::IPC_PRIVATE, len, 0o600);
                checked("shmget", id.min(0))?;
                let handle = libc::shmat(id, std::ptr::null(), 0);
                checked("shmat", if handle as isize == -1 { -1 } else { 0 })?;
                checked("shmctl", libc::shmctl(id, libc::IPC_RMID, null_mut()))?;
                Ok(Pages { at: handle as usize, len, handle })
            }
        },
        change: |pages| {
            // SAFETY: attached by `make`.
            checked("shmdt", unsafe { libc::shmdt(pages.handle) })?;
            pages.map(libc::MAP_FIXED_NOREPLACE)
        },
    },
    Change {
        // The allocator's own munmap, called from inside libc.
        name: "free of a large block",
        make: || {
            // SAFETY: a block above glibc's threshold, a mapping of its own.
            let handle = unsafe { libc::malloc(64 << 20) };
            Ok(Pages { at: (handle as usize).next_multiple_of(PAGE), len: 4 * PAGE, handle })
        },
        change: |pages| {
            // SAFETY: allocated by `make`, not used again.
            unsafe { libc::free(pages.handle) };
            pages.map(libc::MAP_FIXED_NOREPLACE)
        },
    },
];

fn checked(call: &str, result: i32) -> Result<(), Failure> {
    if result == 0 { Ok(()) } else { Err(format!("{call}: {}", std::io::Error::last_os_error())) }
}

impl Pages {
    pub(crate) fn new(count: usize) -> Result<Pages, Failure> {
        let len = count * PAGE;
        // SAFETY: a fresh anonymous mapping.
        let at = unsafe { libc::mmap(null_mut(), len, BOTH, ANONYMOUS, -1, 0) };
        checked("mmap", if at == libc::MAP_FAILED { -1 } else { 0 })?;
        Ok(Pages { at: at as usize, len, handle: at })
    }

    /// Writes `byte` everywhere.
    pub(crate) fn fill(&mut self, byte: u8) {
        // SAFETY: mapped and writable, and the program's own.
        unsafe { std::ptr::write_bytes(self.at as *mut u8, byte, self.len) };
    }

    /// Other pages in place of these.
    pub(crate) fn empty(&self) -> Result<(), Failure> {
        // SAFETY: the program's own pages.
        checked("madvise", unsafe { libc::madvise(self.at as *mut _, self.len, libc::MADV_DONTNEED) })
    }

    fn map(&self, how: i32) -> Result<(), Failure> {
        // SAFETY: replaces pages of the program, or nothing.
        let at = unsafe { libc::mmap(self.at as *mut _, self.len, BOTH, ANONYMOUS | how, -1, 0) };
        checked("mmap at the same address", if at as usize == self.at { 0 } else { -1 })
    }
}
