//! Leases as numbers, for an interface that cannot borrow: the region stays in use
//! until the number is taken up, once.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::{Lease, Registry};

#[test]
fn a_number_keeps_its_region_until_it_is_taken_up() {
    let device = Device::new();
    let registry = Registry::builder().backend(device.backend()).build().unwrap();
    let (one, other) = (Pages::new(1), Pages::new(1));
    assert_eq!(registry.regions_in_use(), 0);
    let key = read(&registry, &one).key();
    assert_eq!(registry.regions_in_use(), 0, "cached, and held by nobody");
    let numbers = [read(&registry, &one).into_raw(), read(&registry, &one).into_raw()];
    let elsewhere = read(&registry, &other);
    assert_eq!(registry.regions_in_use(), 2);
    // Taken out of the cache, and not away from its holders.
    registry.flush().unwrap();
    assert_eq!((registry.regions_in_use(), registry.stats().deregistrations), (2, 0));
    drop(elsewhere);
    for (number, in_use) in numbers.into_iter().zip([1, 0]) {
        // SAFETY: of this registry, and taken up once.
        let lease = unsafe { Lease::from_raw(&registry, number) };
        assert_eq!(lease.key(), key);
        drop(lease);
        assert_eq!(registry.regions_in_use(), in_use);
    }
    registry.flush().unwrap();
    assert_eq!(registry.stats().deregistrations, 2);
}
