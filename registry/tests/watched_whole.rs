//! What userfaultfd watches is moved and grown as what it does not watch: mremap(2) refuses a range of
//! more than one mapping, and the kernel would cut out what is registered.
#![cfg(not(loom))]
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::disallowed_macros
)]

mod common;
#[path = "common/raw.rs"]
mod raw;

use common::*;
use pinyard_registry::backend::IoUring;
use pinyard_registry::{Access, Registry, Watch, raw_callers};
use raw::raw_munmap;
use std::sync::Arc;

/// mremap(2) within the pages, or elsewhere.
fn moved(pages: &Pages, len: usize) -> usize {
    // SAFETY: the test's own pages, of which nothing is used meanwhile.
    let at = unsafe { libc::mremap(pages.at as *mut _, pages.len, len, libc::MREMAP_MAYMOVE) };
    assert_ne!(at, libc::MAP_FAILED, "mremap: {}", std::io::Error::last_os_error());
    at as usize
}

#[test]
fn what_is_watched_is_moved_and_grown_whole() {
    let ring = Arc::new(IoUring::new(64).unwrap());
    let registry = Registry::builder().backend(ring.clone()).build().unwrap();
    assert!(!raw_callers().is_empty(), "this program makes system calls of its own");
    if let Watch::Refused(why) = registry.serving().userfaultfd {
        return println!("skipped: userfaultfd is refused: {why}");
    }
    // The inner pages, the first, the last: each alone, and held or not.
    for (first, count, is_held) in [(3, 2, false), (0, 1, true), (7, 1, false), (2, 6, true)] {
        let mut pages = Pages::apart(8);
        pages.fill(1);
        let lease = registry.get(pages.part(first, count), Access::LOCAL_READ).unwrap();
        let lease = is_held.then_some(lease);
        let at = moved(&pages, 16 * PAGE);
        // SAFETY: what mremap returned, which is as long.
        unsafe { std::slice::from_raw_parts_mut(at as *mut u8, 16 * PAGE) }.fill(2);
        let part = ((at + first * PAGE) as *const u8, count * PAGE);
        let new = read(&registry, part);
        assert_eq!(through(&ring, new.key(), at + first * PAGE), 2, "stale");
        drop((lease, new));
        // SAFETY: the pages are the test's own, and nobody uses them.
        unsafe { raw_munmap(at as *mut u8, 16 * PAGE) };
        assert_eq!(registry.lookup(part, Access::LOCAL_READ), None, "the kernel tells of what it watches");
    }
    assert_eq!(registry.stats().uncached, 0, "all of it was watched");
}
