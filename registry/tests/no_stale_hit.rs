//! Invariant 2: a `get` that starts after a mapping changed never returns a
//! registration of the old pages. Judged by the bytes that travel through the
//! pages that io_uring has pinned. The changes one by one are in
//! `every_change_is_noticed.rs`.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Fault, Faulty, IoUring, Work};
use pinyard_registry::{Access, Events, Registry};
use std::sync::Arc;

/// libfabric returns a stale entry here: the pages go while they are pinned.
#[test]
fn a_change_during_the_registration_is_noticed() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    // The device pins, and before it returns another thread empties the pages.
    let change: Work = Arc::new(|range| {
        let change = move || {
            // SAFETY: the test's own pages.
            unsafe { libc::madvise(range.start as *mut _, range.len(), libc::MADV_DONTNEED) }
        };
        assert_eq!(std::thread::spawn(change).join().unwrap(), 0);
    });
    let backend = Faulty::over(ring.clone())
        .registering(move |nth| (nth == 0).then(|| Fault::RunAfter(change.clone())));
    let registry = Registry::builder().backend(backend).build().unwrap();
    let mut pages = Pages::new(2);
    pages.fill(1);
    let lease = read(&registry, &pages);
    pages.fill(2);
    assert_eq!(through(&ring, lease.key(), pages.at), 2, "stale: the old pages were published");
    assert_eq!(registry.stats().retries, 1);
}

/// The mapping changes during every attempt: a registration for the caller alone, not a stale region.
#[test]
fn a_range_that_never_stands_still_is_served_and_not_kept() {
    let pages = Pages::new(2);
    let at = pages.at;
    let change = move |_| {
        // SAFETY: the test's own pages.
        unsafe { libc::madvise(at as *mut _, PAGE, libc::MADV_DONTNEED) };
    };
    let change: Work = Arc::new(change);
    let device = Device::new();
    let backend = Faulty::over(device.backend()).registering(move |_| Some(Fault::Run(change.clone())));
    let registry = Registry::builder().backend(backend).build().unwrap();
    let lease = registry.get(&pages, Access::LOCAL_READ).unwrap();
    assert_eq!(registry.lookup(&pages, Access::LOCAL_READ), None, "found by nobody else");
    registry.flush().unwrap();
    assert_eq!(device.counts(), (16, 15), "all given back but the lease's");
    drop(lease);
    registry.flush().unwrap();
    assert_eq!(device.counts(), (16, 16));
    let counts = registry.stats();
    assert_eq!((counts.misses, counts.retries, counts.uncached), (1, 15, 1));
}

/// Raw system calls escape every hook: that is what `notify_unmapped` is for.
#[test]
fn a_notified_change_is_noticed() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ring.clone()).events(Events::NotifyOnly).build().unwrap();
    let raw: Change = |pages| {
        pinyard_hooks::notify_unmapped(pages.at as *const u8, pages.len);
        // SAFETY: the test's own pages.
        unsafe { pinyard_hooks::sys::madvise(pages.at, pages.len, libc::MADV_DONTNEED).unwrap() };
    };
    assert_eq!(seen_after(&registry, &ring, raw), 2);
}
