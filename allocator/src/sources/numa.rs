//! Where fresh pages of a mapping come to lie (mbind(2)), and who touches them.
#![allow(unsafe_code)]

use pinyard_hooks::{PAGE_SIZE, SignalsBlocked, stack_size, sys};
use std::thread;

/// `MPOL_PREFERRED`: the node if it has room, else another.
const PREFERRED: usize = 1;
/// Bytes of stack that a thread needs which touches pages.
const STACK: usize = 64 << 10;

/// Prefers `node` for the pages of a mapping that nobody has touched. A refusal
/// (no NUMA, seccomp) leaves them to the first toucher's node.
pub(super) fn prefer(start: usize, bytes: usize, node: u32) {
    let mut mask = [0u64; 16];
    let Some(word) = mask.get_mut(node as usize / 64) else { return };
    *word = 1 << (node % 64);
    let arguments = [start, bytes, PREFERRED, mask.as_ptr().addr(), mask.len() * 64 + 1, 0];
    // SAFETY: reads the mask, and sets a policy of our own mapping.
    let _ = unsafe { sys::syscall6(libc::SYS_mbind as usize, arguments) };
}

/// Touches every page of a fresh mapping, with `threads` threads: zeroing pages is
/// what pinning them takes longest for, and one thread does it at a few GB/s.
pub(super) fn touch(start: usize, bytes: usize, threads: usize) {
    let pages = |from: usize, to: usize| {
        for at in (from..to).step_by(PAGE_SIZE) {
            // SAFETY: a page of the caller's fresh mapping; volatile, so that it happens.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(0) };
        }
    };
    let part = bytes.div_ceil(threads.max(1)).next_multiple_of(crate::host::HUGE_PAGE);
    let stack = stack_size(STACK);
    thread::scope(|scope| {
        let _blocked = SignalsBlocked::now();
        let mut from = start + part;
        while from < start + bytes {
            let to = (from + part).min(start + bytes);
            // Without the thread, its part is touched while it is pinned.
            let _ = thread::Builder::new().stack_size(stack).spawn_scoped(scope, move || pages(from, to));
            from = to;
        }
        pages(start, (start + part).min(start + bytes));
    });
}
