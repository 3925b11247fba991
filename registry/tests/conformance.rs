//! One suite for every backend.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Backend, Fault, Faulty, IoUring, Libfabric, Mlock, Ucx, Verbs, Work};
use pinyard_registry::{Access, GetError, RangeError, Registry};
use std::sync::Arc;

fn registry(backend: impl Backend + 'static) -> Registry {
    Registry::builder().backend(backend).build().unwrap()
}

/// Invalidates, so that whatever is found afterwards is new.
fn settled(registry: &Registry) -> (u64, u64) {
    registry.flush().unwrap();
    let stats = registry.stats();
    assert_eq!(stats.pinned_bytes, 0);
    (stats.registrations, stats.deregistrations)
}

fn registers_and_gives_back(registry: &Registry) {
    let pages = Pages::new(4);
    let first = registry.get(&pages, Access::LOCAL_WRITE).unwrap();
    assert_eq!((first.base(), first.len()), (pages.at, pages.len));
    let again = registry.get(pages.part(1, 2), Access::LOCAL_READ).unwrap();
    assert_eq!(again.key(), first.key(), "contained: a hit");
    // `lookup` answers only once events of other memory have been applied.
    eventually(|| registry.lookup(&pages, Access::LOCAL_READ) == Some(first.key()));
    drop((first, again));
    let (registered, deregistered) = settled(registry);
    assert_eq!(registered, deregistered);
    assert_eq!(registry.lookup(&pages, Access::LOCAL_READ), None);
}

fn registers_unaligned_bytes_as_whole_pages(registry: &Registry) {
    let pages = Pages::new(3);
    let lease = registry.get(((pages.at + 100) as *const u8, PAGE), Access::LOCAL_READ).unwrap();
    assert_eq!((lease.base(), lease.len()), (pages.at, 2 * PAGE));
    let last = registry.get(((pages.at + 3 * PAGE - 1) as *const u8, 1), Access::LOCAL_READ).unwrap();
    assert_eq!((last.base(), last.len()), (pages.at + 2 * PAGE, PAGE));
}

fn keeps_overlapping_registrations_apart(registry: &Registry) {
    let mut pages = Pages::new(4);
    pages.fill(1);
    let low = registry.get(pages.part(0, 2), Access::LOCAL_READ).unwrap();
    let merged = registry.get(pages.part(1, 3), Access::LOCAL_READ).unwrap();
    assert_eq!((merged.base(), merged.len()), (pages.at, pages.len));
    drop(low);
    registry.flush().unwrap();
    assert_eq!(registry.stats().graveyard, 1, "the merged one is still held");
    drop(merged);
    settled(registry);
}

fn outlives_its_mapping(registry: &Registry) {
    let pages = Pages::new(2);
    let lease = registry.get(&pages, Access::LOCAL_WRITE).unwrap();
    pages.unmap();
    drop(lease);
    let (registered, deregistered) = settled(registry);
    assert_eq!(registered, deregistered);
    assert_eq!(registry.stats().failed_deregistrations, 0);
}

fn many_at_a_time(registry: &Registry) {
    let pages = Pages::new(200);
    let leases: Vec<_> =
        (0..100).map(|i| registry.get(pages.part(2 * i, 1), Access::LOCAL_WRITE).unwrap()).collect();
    assert_eq!(registry.stats().regions, 100);
    drop(leases);
    settled(registry);
}

fn usable(registry: &Registry) {
    let pages = Pages::new(1);
    drop(registry.get(&pages, Access::LOCAL_WRITE).unwrap());
}

fn refuses_what_names_no_memory(registry: &Registry) {
    let get = |at: usize, len| registry.get((at as *const u8, len), Access::LOCAL_READ).unwrap_err();
    let is = |error, expected: fn(&RangeError) -> bool| matches!(error, GetError::Range(r) if expected(&r));
    assert!(is(get(0x1000, 0), |e| matches!(e, RangeError::Empty { .. })));
    assert!(is(get(0, 10), |e| matches!(e, RangeError::Null { .. })));
    assert!(is(get(usize::MAX - 100, 200), |e| matches!(e, RangeError::WrapsAround { .. })));
    assert!(is(get(1 << 56, 1), |e| matches!(e, RangeError::AboveLimit { .. })));
    let empty: &[u8] = &[];
    assert!(matches!(
        registry.get(empty, Access::LOCAL_READ),
        Err(GetError::Range(RangeError::Empty { .. }))
    ));
    usable(registry);
}

/// For backends that really pin.
fn refuses_what_cannot_be_pinned(registry: &Registry) {
    // The last page of the address space's lower half is never mapped.
    let end = (1 << 47) - PAGE;
    let error = registry.get((end as *const u8, PAGE), Access::LOCAL_READ).unwrap_err();
    assert!(matches!(error, GetError::Unmapped { hole, .. } if hole == end), "{error}");
    assert!(error.to_string().contains("errno"), "{error}");

    let read_only = Pages::with_protection(2, libc::PROT_READ);
    let error = registry.get(&read_only, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, GetError::ReadOnly { at, .. } if at == read_only.at), "{error}");
    usable(registry);
    settled(registry);
}

fn suite(backend: impl Fn() -> Registry) {
    for behaviour in [
        registers_and_gives_back,
        registers_unaligned_bytes_as_whole_pages,
        keeps_overlapping_registrations_apart,
        outlives_its_mapping,
        many_at_a_time,
        refuses_what_names_no_memory,
    ] {
        behaviour(&backend());
    }
}

#[test]
fn io_uring() {
    let make = || registry(IoUring::new(256).unwrap());
    suite(make);
    refuses_what_cannot_be_pinned(&make());
}

#[test]
fn mlock() {
    suite(|| registry(Mlock::new()));
    refuses_what_cannot_be_pinned(&registry(Mlock::new()));
}

#[test]
fn custom() {
    suite(|| registry(Device::new().backend()));
}

#[test]
fn faulty_without_a_fault() {
    suite(|| registry(Faulty::over(Mlock::new())));
}

#[test]
fn faulty_that_stalls_allocates_and_changes_mappings() {
    suite(|| {
        let meddle = |_| {
            let pages = Pages::new(4);
            pages.advise(libc::MADV_DONTNEED);
            drop(std::hint::black_box(vec![1; 10_000]));
        };
        let meddle: Work = Arc::new(meddle);
        let deregister = meddle.clone();
        registry(
            Faulty::over(IoUring::new(256).unwrap())
                .registering(move |_| Some(Fault::Run(meddle.clone())))
                .deregistering(move |_| Some(Fault::Run(deregister.clone()))),
        )
    });
}

/// On the first device that works; `PINYARD_TEST_VERBS` names another.
#[test]
fn verbs() {
    let open = || {
        let options = Verbs::options();
        match std::env::var("PINYARD_TEST_VERBS") {
            Ok(device) => options.device(device),
            Err(_) => options,
        }
        .open()
    };
    if opened("verbs", open()).is_none() {
        return;
    }
    let make = || registry(open().unwrap());
    suite(make);
    refuses_what_cannot_be_pinned(&make());
}

/// `PINYARD_TEST_UCX`: the transports, UCX_TLS. Over shared memory and tcp nothing is
/// pinned, and so nothing refused.
#[test]
fn ucx() {
    let pins = std::env::var("PINYARD_TEST_UCX");
    let open = || {
        let transports = pins.as_deref().unwrap_or("tcp,posix,self");
        Ucx::options().set("TLS", transports).open()
    };
    if opened("ucx", open()).is_none() {
        return;
    }
    let make = || registry(open().unwrap());
    suite(make);
    if pins.is_ok() {
        refuses_what_cannot_be_pinned(&make());
    }
}

/// `PINYARD_TEST_LIBFABRIC`: the provider; or each that there is on every machine.
#[test]
fn libfabric() {
    let pins = std::env::var("PINYARD_TEST_LIBFABRIC");
    let providers = match &pins {
        Ok(one) => vec![one.as_str()],
        Err(_) => vec!["tcp;ofi_rxm", "shm", "sockets"],
    };
    for provider in providers {
        let open = || Libfabric::options().provider(provider).open();
        if opened("libfabric", open()).is_none() {
            continue;
        }
        let make = || registry(open().unwrap());
        suite(make);
        if pins.is_ok() {
            refuses_what_cannot_be_pinned(&make());
        }
    }
}

#[test]
fn io_uring_refuses_more_than_a_gibibyte_and_more_than_its_slots() {
    let one = registry(IoUring::new(2).unwrap());
    let error = one.get((0x1000 as *const u8, (1 << 30) + 1), Access::LOCAL_READ).unwrap_err();
    assert!(matches!(error, GetError::TooLong { limit, .. } if limit == 1 << 30), "{error}");
    let pages = Pages::new(6);
    let held = [read(&one, pages.part(0, 1)), read(&one, pages.part(2, 1))];
    let error = one.get(pages.part(4, 1), Access::LOCAL_READ).unwrap_err();
    assert!(matches!(error, GetError::TooManyRegions { limit: 2, .. }), "{error}");
    drop(held);
    drop(read(&one, pages.part(4, 1)));
    let error = IoUring::new(16_385).err().unwrap();
    assert!(error.to_string().contains("16384"), "{error}");
}
