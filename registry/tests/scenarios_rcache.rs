//! What UCX's tests ask of its registration cache (gtest `ucs/test_rcache.cc`),
//! asked of ours. `docs/src/scenarios.md` has the whole list.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Fault, Faulty, IoUring, Mlock, Work};
use pinyard_registry::{Access, GetError, Registry};
use std::sync::{Arc, OnceLock};

fn protect(pages: &Pages, first: usize, count: usize, protection: i32) {
    let (at, len) = pages.part(first, count);
    // SAFETY: the test's own pages.
    assert_eq!(unsafe { libc::mprotect(at as *mut _, len, protection) }, 0);
}

/// `get_unmapped`: refused, served once it is mapped, and unmapped again while
/// it is held. The key stays valid until the lease goes.
#[test]
fn unmapped_then_mapped_then_unmapped_while_held() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = registry_over(ring.clone());
    let mut pages = Pages::apart(2);
    pages.unmap();
    for _ in 0..2 {
        let error = registry.get(&pages, Access::LOCAL_WRITE).unwrap_err();
        assert!(matches!(error, GetError::Unmapped { hole, .. } if hole == pages.at), "{error}");
    }
    pages.map_again();
    pages.fill(1);
    let held = read(&registry, &pages);
    pages.unmap();
    assert!(registry.get(&pages, Access::LOCAL_READ).is_err(), "unmapped again");
    assert_eq!(through(&ring, held.key(), pages.at), 1, "the holder's pages are still pinned");
    assert_eq!(registry.stats().deregistrations, 0);
    drop(held);
    eventually(|| registry.stats().deregistrations == 1);
}

/// `test_rcache::put_and_invalidate`, without completions: N references, puts
/// and invalidations in turns; taken back once, after the last put.
#[test]
fn mixed_puts_and_invalidations_deregister_once_after_the_last_put() {
    let ledger = Ledger::new();
    let registry = registry_over(ledger.backend());
    let pages = Pages::new(1);
    let mut generations = Vec::new();
    for _ in 0..20 {
        generations.push((0..10).map(|_| read(&registry, &pages)).collect::<Vec<_>>());
        registry.invalidate(&pages).unwrap();
        registry.invalidate(&pages).unwrap();
    }
    assert_eq!((ledger.made(), ledger.standing()), (20, 20), "a registration for each invalidation");
    let mut random = Random::new(1);
    while !generations.is_empty() {
        let generation = random.below(generations.len());
        let leases = &mut generations[generation];
        let key = leases.pop().unwrap().lkey();
        registry.invalidate(&pages).unwrap();
        assert_eq!(ledger.stands(key), !leases.is_empty(), "taken back with the last put, not before");
        if leases.is_empty() {
            drop(generations.swap_remove(generation));
        }
    }
    assert_eq!(registry.stats().deregistrations, 20);
}

/// `test_rcache::merge`.
#[test]
fn two_disjoint_regions_merge_under_one_that_covers_both() {
    let ledger = Ledger::new();
    let registry = registry_over(ledger.backend());
    let pages = Pages::new(12);
    let low = read(&registry, pages.part(0, 3)).lkey();
    let high = read(&registry, pages.part(8, 2)).lkey();
    assert_ne!(low, high);
    let both = read(&registry, pages.part(2, 7));
    assert_eq!((both.base(), both.len()), (pages.at, 10 * PAGE), "the union of all three");
    for (first, count) in [(0, 3), (8, 2), (2, 7), (0, 10), (4, 1)] {
        assert_eq!(read(&registry, pages.part(first, count)).key(), both.key());
    }
    eventually(|| !ledger.stands(low) && !ledger.stands(high));
    let stats = registry.stats();
    assert_eq!((stats.registrations, stats.merges, stats.regions), (3, 2, 1));
}

/// `test_rcache::merge_aligned`: rounding outwards makes two requests overlap.
#[test]
fn a_request_whose_pages_grow_into_a_neighbour_merges_with_it() {
    let registry = registry_over(Device::new().backend());
    let pages = Pages::new(3);
    let bytes = |offset: usize, len| ((pages.at + offset) as *const u8, len);
    drop(read(&registry, bytes(100, 50)));
    drop(read(&registry, bytes(2 * PAGE + 1, 1)));
    let grown = read(&registry, bytes(PAGE - 1, 2));
    assert_eq!((grown.base(), grown.len()), (pages.at, 2 * PAGE), "merged with page 0, not with page 2");
    let all = read(&registry, bytes(2 * PAGE - 1, 2));
    assert_eq!((all.base(), all.len()), (pages.at, 3 * PAGE));
    assert_eq!(registry.stats().merges, 3);
}

/// `test_rcache::merge_inv`: whoever holds the region that was merged away keeps
/// its key, and its pages.
#[test]
fn a_merge_takes_the_old_region_out_but_its_holder_keeps_the_key() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = registry_over(ring.clone());
    let mut pages = Pages::new(4);
    pages.fill(1);
    let old = read(&registry, pages.part(0, 2));
    let merged = read(&registry, pages.part(1, 3));
    assert_ne!(old.key(), merged.key());
    assert_eq!(read(&registry, pages.part(0, 2)).key(), merged.key(), "later gets find the union");
    pages.fill(2);
    for key in [old.key(), merged.key()] {
        assert_eq!(through(&ring, key, pages.at), 2, "both keys reach the pages");
    }
    registry.invalidate((PAGE as *const u8, 1)).unwrap();
    assert_eq!((registry.stats().graveyard, registry.stats().deregistrations), (1, 0));
    drop(old);
    eventually(|| registry.stats().deregistrations == 1);
}

/// `test_rcache::merge_with_unwritable`, on pages that are really pinned.
#[test]
fn a_neighbour_that_is_not_writable_is_not_merged() {
    let registry = registry_over(IoUring::new(16).unwrap());
    let mut pages = Pages::new(4);
    pages.fill(1);
    drop(read(&registry, pages.part(0, 2)));
    protect(&pages, 0, 1, libc::PROT_READ);
    let beside = registry.get(pages.part(1, 2), Access::LOCAL_WRITE).unwrap();
    assert_eq!((beside.base(), beside.len()), (pages.at + PAGE, 2 * PAGE));
}

/// `test_rcache::merge_merge_unwritable`: a union of accesses that some of the pages lack.
#[test]
fn protection_is_not_widened_over_pages_that_lack_it() {
    let registry = registry_over(Mlock::new());
    let mut pages = Pages::new(2);
    pages.fill(1);
    drop(registry.get(pages.part(0, 1), Access::LOCAL_WRITE).unwrap());
    protect(&pages, 1, 1, libc::PROT_READ);
    let both = registry.get(pages.part(0, 2), Access::LOCAL_READ).unwrap();
    assert_eq!((both.base(), both.len()), (pages.at, 2 * PAGE), "served for reading");
    assert!(registry.get(pages.part(0, 2), Access::LOCAL_WRITE).is_err());
    let first = registry.get(pages.part(0, 1), Access::LOCAL_WRITE).unwrap();
    assert_eq!(first.len(), PAGE, "served for writing where the page allows it");
}

/// `test_rcache::rw_access`: what allows less is replaced by what allows both.
#[test]
fn protection_is_widened_where_the_pages_allow_it() {
    let ledger = Ledger::new();
    let registry = registry_over(ledger.backend());
    let pages = Pages::new(2);
    let reading = registry.get(&pages, Access::REMOTE_READ).unwrap();
    let writing = registry.get(pages.part(0, 1), Access::LOCAL_WRITE).unwrap();
    assert_ne!(reading.key(), writing.key());
    assert_eq!(writing.len(), 2 * PAGE, "it takes the other's place");
    for access in [Access::LOCAL_READ, Access::REMOTE_READ, Access::REMOTE_READ | Access::LOCAL_WRITE] {
        assert_eq!(registry.get(&pages, access).unwrap().key(), writing.key(), "{access:?}");
    }
    assert_eq!((ledger.made(), registry.stats().merges), (2, 1));
}

/// `test_rcache_with_no_memory` and `invalid_prot`, and their slow variants, in
/// which events wait.
#[test]
fn invalid_protection_is_refused_and_served_once_it_is_valid() {
    for pending in [false, true] {
        let registry = registry_over(IoUring::new(16).unwrap());
        let around = Pages::new(64);
        drop(read(&registry, &around));
        let mut pages = Pages::with_protection(2, libc::PROT_READ);
        for _ in 0..3 {
            if pending {
                pinyard_hooks::notify_unmapped(around.at as *const u8, PAGE);
            }
            let error = registry.get(&pages, Access::LOCAL_WRITE).unwrap_err();
            assert!(matches!(error, GetError::ReadOnly { .. }), "{error}");
        }
        protect(&pages, 0, 2, libc::PROT_READ | libc::PROT_WRITE);
        pages.fill(1);
        assert_eq!(registry.get(&pages, Access::LOCAL_WRITE).unwrap().len(), 2 * PAGE);
    }
}

/// Regions 1 to 4 fill the registry, 1 is used again: then 2, 3, 4 and 1 go, as 5
/// to 8 come.
fn least_recently_used_goes_first(registry: &Registry, pages: &Pages) {
    let part = |number: usize| pages.part(2 * number, 1);
    for number in [1, 2, 3, 4, 1] {
        drop(read(registry, part(number)));
    }
    let mut order = std::collections::VecDeque::from([2, 3, 4, 1]);
    for number in 5..9 {
        drop(read(registry, part(number)));
        let gone = order.pop_front().unwrap();
        order.push_back(number);
        assert!(cached(registry, part(gone)).is_none(), "{gone} was used least recently");
        for &number in &order {
            assert!(cached(registry, part(number)).is_some(), "{number} goes later than {gone}");
        }
    }
    assert_eq!((registry.stats().evictions, registry.stats().regions), (4, 4));
}

/// `test_rcache_with_limit::by_count`.
#[test]
fn a_limit_by_count_evicts_in_lru_order() {
    let device = Device::new();
    let registry = builder_over(device.backend()).max_regions(4).build().unwrap();
    least_recently_used_goes_first(&registry, &Pages::new(20));
    assert_eq!(device.counts(), (8, 4));
}

/// `test_rcache_with_limit::by_size`.
#[test]
fn a_limit_by_bytes_evicts_in_lru_order() {
    let device = Device::new();
    let registry = builder_over(device.backend()).budget(4 * PAGE).build().unwrap();
    let pages = Pages::new(20);
    least_recently_used_goes_first(&registry, &pages);
    // A larger one costs as many as its bytes.
    drop(read(&registry, pages.part(0, 3)));
    assert_eq!((registry.stats().evictions, registry.stats().pinned_bytes), (7, 4 * PAGE as u64));
}

/// `test_rcache_stats`: hits, misses, merges, unmaps, each one counted once.
#[test]
fn counters_are_exact() {
    let registry = registry_over(Device::new().backend());
    let pages = Pages::new(40);
    for index in 0..10 {
        drop(read(&registry, pages.part(4 * index, 2)));
    }
    for step in 0..1000 {
        drop(read(&registry, pages.part(4 * (step % 10), 1)));
    }
    drop(read(&registry, pages.part(0, 6))); // replaces 0 and 1
    let (at, len) = pages.part(8, 2);
    // SAFETY: the test's own pages.
    assert_eq!(unsafe { libc::madvise(at as *mut _, len, libc::MADV_DONTNEED) }, 0);
    if events() == pinyard_registry::Events::NotifyOnly {
        pinyard_hooks::notify_unmapped(at, len);
    }
    registry.invalidate(pages.part(13, 1)).unwrap();
    registry.invalidate(pages.part(14, 1)).unwrap(); // nothing there
    let stats = registry.stats();
    assert_eq!((stats.hits, stats.misses, stats.registrations), (1000, 11, 11));
    assert_eq!((stats.merges, stats.invalidations, stats.evictions, stats.flushes), (2, 2, 0, 0));
    assert_eq!((stats.retries, stats.uncached, stats.failed_deregistrations), (0, 0, 0));
    registry.flush().unwrap();
    let stats = registry.stats();
    assert_eq!((stats.invalidations, stats.flushes, stats.deregistrations), (9, 1, 11));
    assert_eq!((stats.regions, stats.graveyard, stats.pinned_bytes), (0, 0, 0));
}

/// `test_rcache_no_register::hit_slow`: events wait, and a hit is a hit.
#[test]
fn a_hit_while_events_wait_registers_nothing() {
    let device = Device::new();
    let registry = registry_over(device.backend());
    let pages = Pages::new(300);
    let hot = read(&registry, pages.part(0, 1)).key();
    for index in 1..100 {
        drop(read(&registry, pages.part(2 * index, 1)));
    }
    for index in 1..100 {
        let (at, len) = pages.part(2 * index, 1);
        pinyard_hooks::notify_unmapped(at, len);
        assert_eq!(read(&registry, pages.part(0, 1)).key(), hot);
    }
    assert_eq!(device.counts().0, 100);
    assert_eq!((registry.stats().hits, registry.stats().misses), (99, 100));
}

/// An explicit invalidation while the range is being registered, by another
/// thread: what was pinned before it is not handed out.
#[test]
fn an_invalidation_during_the_registration_is_noticed() {
    let cell: Arc<OnceLock<Registry>> = Arc::default();
    let inner = cell.clone();
    let invalidate: Work = Arc::new(move |range| {
        let registry = inner.get().unwrap().clone();
        let work = move || registry.invalidate((range.start as *const u8, 1)).unwrap();
        std::thread::spawn(work).join().unwrap();
    });
    let ledger = Ledger::new();
    let backend = Faulty::over(ledger.backend())
        .registering(move |nth| (nth == 0).then(|| Fault::RunAfter(invalidate.clone())));
    let registry = cell.get_or_init(|| registry_over(backend));
    let pages = Pages::new(2);
    assert_eq!(read(registry, &pages).lkey(), 1, "the second registration");
    eventually(|| !ledger.stands(0));
    assert_eq!(registry.stats().retries, 1);
}
