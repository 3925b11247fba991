//! The hooks.
#![allow(unsafe_code)]

use super::sized;
use super::status::{Failure, at_boundary, failed, pny_status, pny_status::*};
use crate::libfabric;
use core::ffi::{c_char, c_void};
use pinyard_hooks::Report;

/// Tells that `length` bytes at `address` are about to be unmapped, replaced or emptied,
/// in a way that no hook sees: a raw system call, an allocator of one's own. Call it
/// before the change. The address is compared, never read. A length of 0 does nothing; a
/// range that wraps around invalidates everything.
///
/// Cannot fail, never blocks, allocates nothing, keeps errno. Any thread, signal handlers,
/// and from inside malloc, munmap and the like.
#[unsafe(no_mangle)]
pub extern "C" fn pny_notify_unmapped(address: *const c_void, length: usize) {
    pinyard_hooks::notify_unmapped(address.cast(), length);
}

/// Installs hooks on munmap, mmap, mremap, madvise, brk, sbrk, shmdt, process_madvise,
/// mprotect and syscall, for the rest of the process, and tests each of them by use. A
/// further call does so again where something has changed. Best called before other
/// threads run.
///
/// PNY_ERR_HOOKS_INCOMPLETE: the hooks that could be installed are; the others are named
/// in pny_last_error().
#[unsafe(no_mangle)]
pub extern "C" fn pny_hooks_install() -> pny_status {
    at_boundary("pny_hooks_install", || complete(&pinyard_hooks::install()))
}

/// Looks whether the hooks are still in place, and repairs what another library has
/// patched over; a few loads while nothing has changed. For after MPI_Init, and after any
/// other call that loads a library which patches libc.
///
/// PNY_ERR_HOOKS_INCOMPLETE: calls escape. PNY_ERR_NOT_READY: never installed.
#[unsafe(no_mangle)]
pub extern "C" fn pny_hooks_verify() -> pny_status {
    at_boundary("pny_hooks_verify", || {
        let intact = libfabric::verify_hooks();
        let report = installed()?;
        if intact { Ok(()) } else { complete(&report) }
    })
}

/// Which function is hooked how, who owns its entry, and whether its calls are seen, a
/// line each: cut to `capacity` bytes as snprintf(3) does, with the whole length in
/// `*length` where that is not null.
///
/// PNY_ERR_NOT_READY  never installed
/// PNY_ERR_INVALID    `text` is null with a capacity
///
/// # Safety
/// `text` is writable for `capacity` bytes, or null with a capacity of 0; `length` is
/// writable or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_hooks_report(
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> pny_status {
    at_boundary("pny_hooks_report", || {
        let report = installed()?.to_string();
        // SAFETY: the caller's contract.
        unsafe { sized::text(&report, text, capacity, length) }
    })
}

fn installed() -> Result<Report, Failure> {
    pinyard_hooks::report().ok_or_else(|| {
        Failure::new(PNY_ERR_NOT_READY, "the hooks are not installed; call pny_hooks_install or pny_init")
    })
}

pub(super) fn complete(report: &Report) -> Result<(), Failure> {
    if report.is_complete() {
        return Ok(());
    }
    Err(failed(libfabric::ImportError::HooksIncomplete { report: Box::new(*report) }))
}
