//! What the loader knows, asked before the installer's lock: where libc's functions are and
//! end, and that our own code stays.
//!
//! The loader runs constructors under its lock, and a constructor may install. So nobody
//! asks the loader under a lock of ours.
#![allow(unsafe_code)]

use crate::report::Function;
use crate::{loader, own_object, patch, text};
use core::sync::atomic::{AtomicUsize, Ordering::*};

const COUNT: usize = Function::COUNT;

/// Entry address per function, 0 where this libc has none. Every thread that asks stores
/// the same.
static ENTRIES: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];
/// One past the last byte of each, 0 where the loader does not know.
static ENDS: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Asks, and forbids dlclose of the object that this code is in: libc jumps to it for ever.
/// Not under a lock.
pub(crate) fn find() {
    own_object::keep_loaded();
    // SAFETY: the C library is loaded in every process that got here; NOLOAD
    // finds it without loading another.
    let libc_handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    loader::find(libc_handle);
    for function in Function::ALL {
        let at = if libc_handle.is_null() {
            core::ptr::null_mut()
        } else {
            // SAFETY: a live handle and a NUL-terminated name.
            unsafe { libc::dlsym(libc_handle, function.c_name().as_ptr()) }
        };
        ENDS[function as usize].store(patch::end_of(at.addr()).unwrap_or(0), Relaxed);
        ENTRIES[function as usize].store(at.addr(), Release);
    }
    // The loader's one lies elsewhere, with other objects between.
    let in_libc = Function::ALL.into_iter().filter(|&function| function != Function::DlDebugState);
    text::set_range(in_libc.filter_map(entry_of));
}

/// The address of `function` in libc, or `None`.
pub(crate) fn entry_of(function: Function) -> Option<usize> {
    Some(ENTRIES[function as usize].load(Acquire)).filter(|&entry| entry != 0)
}

/// One past the last byte of `function`, if `entry` is its address in libc.
#[cfg(target_arch = "x86_64")]
pub(crate) fn end_of(function: Function, entry: usize) -> Option<usize> {
    if entry_of(function) != Some(entry) {
        return None;
    }
    Some(ENDS[function as usize].load(Relaxed)).filter(|&end| end != 0)
}
