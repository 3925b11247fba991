//! Invariant 2 for each way of changing a mapping, judged by the bytes that
//! travel through the pages that io_uring has pinned. That each change does
//! replace pinned pages is shown in `without_hooks_hits_are_stale.rs`. One test,
//! one process: see `Pages::map_again`.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::Registry;
use pinyard_registry::backend::IoUring;
use std::sync::Arc;

#[test]
fn every_change_is_noticed() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ring.clone()).build().unwrap();
    assert_eq!(pinyard_registry::raw_callers(), [], "libc and pinyard alone need no userfaultfd");
    for (name, change) in CHANGES {
        assert_eq!(seen_after(&registry, &ring, change), 2, "{name}: stale");
    }
    // MADV_FREE leaves pinned pages in place: keeping the registration is right.
    let before = registry.stats().registrations;
    assert_eq!(seen_after(&registry, &ring, |pages| pages.advise(libc::MADV_FREE)), 2);
    assert_eq!(registry.stats().registrations, before + 1);
}
