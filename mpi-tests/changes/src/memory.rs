//! Memory of the rows' own. What is put back after a change is mapped by system
//! calls that no hook sees, at addresses where nothing is: it tells nobody.
#![allow(unsafe_code)]

use crate::judge::{Outcome, Verdict, skipped};
use pinyard_hooks::sys;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub(crate) const PAGE: usize = 4096;
pub(crate) const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Bytes at an address. The row's process ends soon: nothing is given back.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Memory {
    /// Private pages of nobody else's.
    pub(crate) fn private(pages: usize) -> Outcome<Memory> {
        let len = pages * PAGE;
        // SAFETY: takes only addresses that nobody has.
        match unsafe { sys::mmap(apart(), len, READ_WRITE, PRIVATE | libc::MAP_FIXED_NOREPLACE) } {
            Ok(at) => Ok(Memory { at, len }),
            Err(errno) => Err(Verdict::Skipped(format!("mmap of {pages} pages: errno {errno}"))),
        }
    }

    /// Pages of `file`, shared or private.
    pub(crate) fn of_file(file: &OwnedFd, pages: usize, flags: i32) -> Outcome<Memory> {
        let len = pages * PAGE;
        let args = [0, len, READ_WRITE as usize, flags as usize, file.as_raw_fd() as usize, 0];
        // SAFETY: a fresh mapping of a file of the row's own.
        let at = unsafe { sys::syscall6(libc::SYS_mmap as usize, args) };
        if at < 0 {
            return Err(Verdict::Skipped(format!("mmap of a memfd: errno {}", -at)));
        }
        Ok(Memory { at: at as usize, len })
    }

    /// `count` pages from page `first` on.
    pub(crate) fn part(self, first: usize, count: usize) -> Memory {
        Memory { at: self.at + first * PAGE, len: count * PAGE }
    }

    pub(crate) fn pointer(self) -> *mut libc::c_void {
        self.at as *mut libc::c_void
    }

    /// Maps private pages where nothing is mapped now.
    pub(crate) fn map_again(self) -> Outcome<Memory> {
        // SAFETY: takes only addresses that nobody has.
        match unsafe { sys::mmap(self.at, self.len, READ_WRITE, PRIVATE | libc::MAP_FIXED_NOREPLACE) } {
            Ok(at) if at == self.at => Ok(self),
            Ok(_) => Err(Verdict::Skipped("mmap(MAP_FIXED_NOREPLACE) is not known here".to_owned())),
            Err(errno) => Err(Verdict::Skipped(format!("the change left the pages mapped (errno {errno})"))),
        }
    }
}

/// Addresses far from where the kernel puts mappings, so that nobody else maps
/// anything there while the row's pages are gone; new ones each time.
fn apart() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    NEXT.fetch_add(1 << 30, Relaxed)
}

/// A memory file of `pages` pages.
pub(crate) fn memfd(pages: usize) -> Outcome<OwnedFd> {
    // SAFETY: a NUL-terminated name; the descriptor is new.
    unsafe {
        let fd = libc::memfd_create(c"pinyard-coverage".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return skipped("memfd_create");
        }
        let file = OwnedFd::from_raw_fd(fd);
        grow(&file, pages)?;
        Ok(file)
    }
}

/// Sets the file's length, past the hooks.
pub(crate) fn grow(file: &OwnedFd, pages: usize) -> Outcome {
    let args = [file.as_raw_fd() as usize, pages * PAGE, 0, 0, 0, 0];
    // SAFETY: a file of the row's own, made longer.
    match unsafe { sys::syscall6(libc::SYS_ftruncate as usize, args) } {
        0 => Ok(()),
        errno => Err(Verdict::Skipped(format!("ftruncate of a memfd: errno {}", -errno))),
    }
}

/// Attaches a new SysV segment of `pages` pages at an address, or anywhere.
pub(crate) fn attach(pages: usize, at: usize, flags: i32) -> Outcome<Memory> {
    // SAFETY: a private segment, which goes with its last attachment; with
    // SHM_REMAP it replaces the row's own pages.
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, pages * PAGE, 0o600);
        if id < 0 {
            return skipped("shmget(IPC_PRIVATE)");
        }
        let attached = libc::shmat(id, at as *const libc::c_void, flags);
        let failed = std::io::Error::last_os_error();
        libc::shmctl(id, libc::IPC_RMID, null_mut());
        if attached as isize == -1 {
            return Err(Verdict::Skipped(format!("shmat: {failed}")));
        }
        Ok(Memory { at: attached as usize, len: pages * PAGE })
    }
}
