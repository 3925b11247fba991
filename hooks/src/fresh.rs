//! Addresses that the kernel has just given out, while userfaultfd watches.
//!
//! The kernel frees the addresses of a raw munmap before our reader can have its event.
//! Another thread may get them in between, and would find the registration of the pages
//! that are gone. So what a mapping call returned is published after the call. Where no
//! userfaultfd watches, every event came before its change, and this is one load.

#![allow(unsafe_code)]

use crate::monitor::notify_unmapped;
use crate::{effect, sys, userfaultfd};

/// Publishes `len` bytes at `at`, the answer of a mapping call, and hands it on.
#[inline(always)]
pub(crate) fn mapped(at: isize, len: usize) -> isize {
    if userfaultfd::may_be_late() {
        publish(at, len);
    }
    at
}

/// Likewise for an answer of mremap(2): all of what has moved, the end of what has grown.
#[inline(always)]
pub(crate) fn remapped(at: isize, old: usize, old_len: usize, len: usize) -> isize {
    if userfaultfd::may_be_late() {
        let kept = if at as usize == old { old_len.min(len) } else { 0 };
        publish(at.wrapping_add(kept as isize), if at == -1 { 0 } else { len - kept });
    }
    at
}

/// Likewise for shmat(2), which does not say how long the segment is.
#[inline(always)]
pub(crate) fn attached(at: isize) -> isize {
    mapped(at, effect::above(at as usize))
}

/// The break went up from `from` to `to`.
#[inline(always)]
pub(crate) fn grown(from: usize, to: usize) {
    if to > from && userfaultfd::may_be_late() {
        publish(from as isize, to - from);
    }
}

/// mmap(2) of `len` private anonymous bytes to be read and written, at an address that the
/// kernel chooses: `hint` where that is free. Unseen by hooks, but published as a hook does
/// it: what lay there before is found registered by nobody. The error is the errno.
///
/// ```
/// let at = pinyard_hooks::map_to_register(0, 1 << 21).expect("2 MiB of address space");
/// assert_eq!(at % pinyard_hooks::PAGE_SIZE, 0);
/// ```
pub fn map_to_register(hint: usize, len: usize) -> Result<usize, i32> {
    let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: without MAP_FIXED no mapping is replaced.
    let at = unsafe { sys::mmap(hint, len, both, flags) }?;
    mapped(at as isize, len);
    Ok(at)
}

#[cold]
#[inline(never)]
fn publish(at: isize, len: usize) {
    // The kernel's own -4095 to -1 is libc's -1.
    if !(-4095..0).contains(&at) {
        notify_unmapped(core::ptr::without_provenance(at as usize), len);
    }
}
