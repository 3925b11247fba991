//! What UCX's tests ask of its page table and interval tree (gtest
//! `ucs/test_pgtable.cc`, `test_interval_tree.cc`, `test_memtype_cache.cc`), asked
//! of the whole registry. Ranges are addresses only: nothing is mapped there.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::{ADDRESS_LIMIT, Access, CACHED_LIMIT, PageRange};
use std::sync::{Mutex, MutexGuard};

const TEBIBYTE: usize = 1 << 40;

/// Addresses of one test at a time: an announced change reaches every registry,
/// and one that is too long for an event invalidates everything.
struct Space {
    base: usize,
    _turn: MutexGuard<'static, ()>,
}

impl Space {
    const LEN: usize = 6 * TEBIBYTE;

    fn new() -> Space {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Space { base: 16 * TEBIBYTE, _turn: turn }
    }

    fn bytes(&self, offset: usize, len: usize) -> (*const u8, usize) {
        ((self.base + offset) as *const u8, len)
    }

    fn pages(&self, first: usize, count: usize) -> (*const u8, usize) {
        self.bytes(first * PAGE, count * PAGE)
    }
}

fn announce((start, len): (*const u8, usize)) {
    pinyard_hooks::notify_unmapped(start, len);
}

/// Registers the parts in this order and finds each by its first and last byte,
/// and nothing beside it.
fn all_are_found(order: impl Iterator<Item = usize>) {
    let space = Space::new();
    let registry = registry_of_addresses(&Device::new());
    let mut keys = std::collections::BTreeMap::new();
    for number in order {
        keys.insert(number, read(&registry, space.pages(3 * number, 2)).key());
    }
    let found = |offset: usize, len| registry.lookup(space.bytes(offset, len), Access::LOCAL_READ);
    for (&number, &key) in &keys {
        let (start, end) = (3 * number * PAGE, (3 * number + 2) * PAGE);
        for (offset, len) in [(start, 1), (end - 1, 1), (start + 1, 2 * PAGE - 2), (start, 2 * PAGE)] {
            let found = found(offset, len).or_else(|| cached(&registry, space.bytes(offset, len)));
            assert_eq!(found, Some(key), "region {number}, {len} bytes");
        }
        assert_eq!(found(end, 1), None, "one past the end of {number}");
        assert_eq!(found(end - 1, 2), None, "across the end of {number}");
    }
    assert_eq!(registry.stats().merges, 0);
}

/// `test_pgtable::multi_search` and `test_interval_tree`'s three orders.
#[test]
fn ascending_descending_and_out_of_order_inserts_are_all_found() {
    const COUNT: usize = 2000;
    all_are_found(0..COUNT);
    all_are_found((0..COUNT).rev());
    all_are_found((0..COUNT).map(|step| step * 1237 % COUNT));
}

/// Adjacent ranges share no page, so they stay two regions.
#[test]
fn adjacent_ranges_stay_apart_until_one_covers_both() {
    let space = Space::new();
    let registry = registry_of_addresses(&Device::new());
    let pair = [read(&registry, space.pages(0, 1)).key(), read(&registry, space.pages(1, 1)).key()];
    assert_ne!(pair[0], pair[1]);
    assert_eq!((registry.stats().regions, registry.stats().merges), (2, 0));
    announce(space.pages(1, 1));
    assert_eq!(read(&registry, space.pages(0, 1)).key(), pair[0], "the neighbour's event is not its own");
    drop(read(&registry, space.pages(0, 2)));
    assert_eq!((registry.stats().regions, registry.stats().merges), (1, 1));
}

/// One byte at either end of a page, and of the addresses that can be registered.
#[test]
fn a_length_of_one_takes_its_page() {
    let space = Space::new();
    let registry = registry_of_addresses(&Device::new());
    for byte in [space.base, space.base + 2 * PAGE - 1, PAGE, CACHED_LIMIT - 1] {
        let lease = read(&registry, (byte as *const u8, 1));
        assert_eq!((lease.base(), lease.len()), (byte & !(PAGE - 1), PAGE));
        assert_eq!(read(&registry, (lease.base() as *const u8, PAGE)).key(), lease.key());
    }
    assert!(registry.get(space.bytes(0, 0), Access::LOCAL_READ).is_err());
    assert!(registry.get((ADDRESS_LIMIT as *const u8, 1), Access::LOCAL_READ).is_err());
}

/// `test_pgtable::invalid_param`, `nonexist_remove`: nothing there, nothing done.
#[test]
fn removing_what_is_not_there_changes_nothing() {
    let space = Space::new();
    let registry = registry_of_addresses(&Device::new());
    let key = read(&registry, space.pages(10, 5)).key();
    for nothing in [space.pages(0, 10), space.pages(15, 1), space.pages(15, 1 << 20), space.pages(9, 1)] {
        registry.invalidate(nothing).unwrap();
        announce(nothing);
    }
    assert_eq!(read(&registry, space.pages(10, 5)).key(), key);
    assert_eq!(registry.stats().invalidations, 0);
}

/// `test_pgtable::search_large_region` over sparse regions: a range takes out all
/// that lie within or reach in, and spares those beside it.
#[test]
fn a_range_search_crosses_holes() {
    let space = Space::new();
    const PAGES: [usize; 7] = [3, 700, 701, 5_000, 100_000, 3_000_000, 3_000_001];
    for announced in [false, true] {
        let ledger = Ledger::new();
        let builder = builder_over(ledger.backend()).budget(usize::MAX);
        let registry = builder.events(pinyard_registry::Events::NotifyOnly).build().unwrap();
        for page in PAGES {
            drop(read(&registry, space.pages(page, 1)));
        }
        let holes = space.pages(700, 3_000_000 - 700 + 1);
        if announced {
            announce(holes);
            drop(read(&registry, space.pages(PAGES[1], 1)));
        } else {
            registry.invalidate(holes).unwrap();
        }
        for (number, page) in PAGES.into_iter().enumerate() {
            let outside = number == 0 || number == 6;
            let before = ledger.made();
            drop(read(&registry, space.pages(page, 1)));
            let again = announced && number == 1;
            assert_eq!(ledger.made() == before, outside || again, "page {page}");
        }
    }
}

/// Huge ranges, aligned and not; their ends, and an event in their middle.
#[test]
fn a_tebibyte_is_one_region() {
    let space = Space::new();
    let device = Device::new();
    let registry = registry_of_addresses(&device);
    for start in [space.base, space.base + 4 * TEBIBYTE + PAGE] {
        let whole = (start as *const u8, TEBIBYTE);
        let lease = read(&registry, whole);
        assert_eq!((lease.base(), lease.len()), (start, TEBIBYTE));
        for offset in [0, 1, TEBIBYTE / 2, TEBIBYTE - PAGE, TEBIBYTE - 1] {
            assert_eq!(read(&registry, ((start + offset) as *const u8, 1)).key(), lease.key());
        }
        assert_eq!(registry.lookup(((start + TEBIBYTE) as *const u8, 1), Access::LOCAL_READ), None);
        let made = device.counts().0;
        announce(((start + TEBIBYTE / 3) as *const u8, 1));
        assert_ne!(read(&registry, whole).key(), lease.key(), "one page of it changed");
        assert_eq!(device.counts().0, made + 1);
        drop(lease);
    }
    announce(space.bytes(0, Space::LEN));
    eventually(|| registry.stats().pinned_bytes == 0);
}

/// `test_memtype_cache`: removal of a part; what is left is registered as it is
/// asked for.
#[test]
fn the_removal_of_a_part_takes_the_region() {
    let space = Space::new();
    for part in [space.pages(0, 1), space.pages(4, 2), space.pages(9, 1)] {
        let registry = registry_of_addresses(&Device::new());
        let whole = read(&registry, space.pages(0, 10)).key();
        announce(part);
        for piece in [space.pages(1, 3), space.pages(6, 3)] {
            let lease = read(&registry, piece);
            assert_ne!(lease.key(), whole);
            assert_eq!((lease.base(), lease.len()), (piece.0.addr(), piece.1));
        }
    }
}

/// `test_memtype_cache::shared_page_regions`: two buffers in one page.
#[test]
fn buffers_that_share_a_page_share_its_region() {
    let space = Space::new();
    let registry = registry_of_addresses(&Device::new());
    let first = read(&registry, space.bytes(0, 100)).key();
    assert_eq!(read(&registry, space.bytes(200, 100)).key(), first);
    announce(space.bytes(200, 100));
    assert_ne!(read(&registry, space.bytes(0, 100)).key(), first, "the page is gone, with both");
}

/// `test_memtype_cache::memory_allocated_before`: the cache comes after the memory.
#[test]
fn memory_from_before_the_cache_is_watched() {
    let _turn = Space::new();
    let mut pages = Pages::new(4);
    pages.fill(1);
    let device = Device::new();
    let registry = registry_over(device.backend());
    drop(read(&registry, &pages));
    pages.advise(libc::MADV_DONTNEED);
    drop(read(&registry, &pages));
    assert_eq!(device.counts().0, 2);
}

/// `test_pgtable_perf`'s workload, judged: random ranges, far apart and close,
/// against a list.
#[test]
fn sparse_random_ranges_agree_with_a_list() {
    let space = Space::new();
    let device = Device::new();
    let registry = registry_of_addresses(&device);
    let mut random = Random::new(7);
    let mut list: Vec<(PageRange, u64)> = Vec::new();
    let mut flushes = 0;
    for step in 0..4000 {
        let spread = [200, 1 << 20, (Space::LEN >> 12) - (1 << 16)][random.below(3)];
        let start = space.base + PAGE * random.below(spread);
        let longest = if random.below(4) == 0 { 1 << 15 } else { 8 };
        let len = PAGE * (1 + random.below(longest));
        let range = PageRange { start, end: start + len };
        let buffer = (start as *const u8, len);
        match random.below(4) {
            0 => {
                announce(buffer);
                list.retain(|(other, _)| !other.overlaps(range));
            }
            1 => {
                registry.invalidate(buffer).unwrap();
                list.retain(|(other, _)| !other.overlaps(range));
            }
            _ => {
                let lease = read(&registry, buffer);
                // Taking out more than was announced is allowed.
                if std::mem::replace(&mut flushes, registry.stats().flushes) != flushes {
                    list.clear();
                }
                let got = PageRange { start: lease.base(), end: lease.base() + lease.len() };
                if let Some(&(_, key)) = list.iter().find(|(other, _)| other.contains(range)) {
                    assert_eq!(lease.lkey(), key, "step {step}: {range} is covered");
                } else {
                    let mut union = range;
                    list.retain(|&(other, _)| {
                        let merged = other.overlaps(range);
                        union = if merged { union.union(other) } else { union };
                        !merged
                    });
                    assert_eq!(got, union, "step {step}");
                    list.push((union, lease.lkey()));
                }
            }
        }
    }
    assert_eq!(registry.stats().regions + registry.stats().graveyard, device.counts().0 - device.counts().1);
}
