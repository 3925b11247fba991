//! The failing case: a cache that hears of nothing. In a process of its own,
//! because hooks serve the whole process.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::IoUring;
use pinyard_registry::{Events, Registry};
use std::sync::Arc;

#[test]
fn without_hooks_hits_are_stale() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let deaf = Registry::builder().backend(ring.clone()).events(Events::NotifyOnly).build().unwrap();
    for (name, change) in CHANGES {
        assert_eq!(seen_after(&deaf, &ring, change), 1, "{name} does not replace pinned pages");
        deaf.flush().unwrap();
    }
}
