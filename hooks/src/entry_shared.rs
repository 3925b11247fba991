//! What runs in place of libc's functions that change shared mappings, by their
//! address or by their file. The rules are those of `entry.rs`.
//!
//! libc's `fallocate` is a cancellation point of pthreads; the replacement is not.
#![allow(unsafe_code)]

use crate::entry::{bracketed, real};
use crate::monitor::change_file;
use crate::report::Function;
use crate::{effect, files, fresh, settled};

/// The replacement's address for `function`, one of this file's.
pub(crate) fn replacement(function: Function) -> usize {
    match function {
        Function::Shmat => shmat as *const () as usize,
        Function::RemapFilePages => remap_file_pages as *const () as usize,
        Function::Ftruncate => ftruncate as *const () as usize,
        Function::Truncate => truncate as *const () as usize,
        _ => fallocate as *const () as usize,
    }
}

extern "C" fn shmat(id: i32, addr: usize, flags: i32) -> isize {
    let at = bracketed(effect::shmat(addr, flags), || {
        // SAFETY: the arguments are the caller's, unchanged.
        unsafe { real(Function::Shmat, libc::SYS_shmat, [id as usize, addr, flags as usize, 0, 0, 0]) }
    });
    // How long the segment is would take a system call to find out: not here.
    settled::objects_loaded();
    fresh::attached(at)
}

extern "C" fn remap_file_pages(addr: usize, len: usize, prot: i32, page: usize, flags: i32) -> isize {
    bracketed(effect::munmap(addr, len), || {
        let args = [addr, len, prot as usize, page, flags as usize, 0];
        // SAFETY: the arguments are the caller's, unchanged.
        unsafe { real(Function::RemapFilePages, libc::SYS_remap_file_pages, args) }
    })
}

/// Brackets a call that changes a file from `offset` on, where `names_one`.
#[inline(always)]
fn by_file_or_none(names_one: bool, offset: i64, call: impl FnOnce() -> isize) -> isize {
    if names_one { change_file(call) } else { bracketed(files::no_file(offset), call) }
}

extern "C" fn ftruncate(fd: i32, len: i64) -> isize {
    by_file_or_none(fd >= 0, len, || {
        // SAFETY: the arguments are the caller's, unchanged.
        unsafe { real(Function::Ftruncate, libc::SYS_ftruncate, [fd as usize, len as usize, 0, 0, 0, 0]) }
    })
}

extern "C" fn truncate(path: usize, len: i64) -> isize {
    by_file_or_none(path != 0, len, || {
        // SAFETY: the arguments are the caller's, unchanged.
        unsafe { real(Function::Truncate, libc::SYS_truncate, [path, len as usize, 0, 0, 0, 0]) }
    })
}

extern "C" fn fallocate(fd: i32, mode: i32, offset: i64, len: i64) -> isize {
    let call = || {
        let args = [fd as usize, mode as usize, offset as usize, len as usize, 0, 0];
        // SAFETY: the arguments are the caller's, unchanged.
        unsafe { real(Function::Fallocate, libc::SYS_fallocate, args) }
    };
    if effect::only_allocates(mode) { call() } else { by_file_or_none(fd >= 0, offset, call) }
}
