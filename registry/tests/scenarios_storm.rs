//! Storms of events (vLLM #24264: 400 MB a minute lost to events that nobody
//! drained). In a process of their own: an overflow may take out what other
//! registries have.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::Custom;
use pinyard_registry::{Events, MemoryKey, Registry};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

const COUNT: usize = 100_000;
const BASE: usize = 0x1000_0000_0000;

/// A storm reaches every registry of the process.
fn turn() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn region(number: usize) -> (*const u8, usize) {
    ((BASE + 2 * number * PAGE) as *const u8, PAGE)
}

fn announce((at, len): (*const u8, usize)) {
    pinyard_hooks::notify_unmapped(at, len);
}

/// Nothing lost, nothing queued without bound: 100,000 disjoint events, nobody
/// looking, then every region asked for.
#[test]
fn a_storm_of_100k_disjoint_events_is_bounded_and_loses_nothing() {
    let _turn = turn();
    let device = Device::new();
    let registry = registry_of_addresses(&device);
    let keys: Vec<_> = (0..COUNT).map(|number| read(&registry, region(number)).lkey()).collect();
    // The reaper may list what is retired meanwhile, some ten bytes a region. Ten storms that were
    // kept, at the sixteen bytes of a range, would take fifteen times that.
    let before = resident();
    for _ in 0..10 {
        (0..COUNT).for_each(|number| announce(region(number)));
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 4 << 20, "resident memory grew by {grown} bytes during ten storms");
    for (number, old) in keys.into_iter().enumerate() {
        assert_ne!(read(&registry, region(number)).lkey(), old, "event {number} was lost");
    }
    eventually(|| device.counts().1 >= COUNT as u64);
    let stats = registry.stats();
    assert_eq!((stats.registrations, stats.regions), (2 * COUNT as u64, COUNT as u64));
}

/// What one call does for others has a bound: after a storm over all that the budget has room for, a
/// `get` gives back a slice of 128 at most, and leaves the rest to the reaper and to later calls.
#[test]
fn a_get_after_a_storm_gives_back_a_slice_at_most() {
    const REGIONS: usize = 20_000;
    const SLICE: u64 = 128;
    let _turn = turn();
    let (me, mine, all) =
        (std::thread::current().id(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = (mine.clone(), all.clone());
    let backend = Custom::new(
        "counts by thread",
        |_, _| Ok(MemoryKey::default()),
        move |_, _| {
            counts.0.fetch_add(u64::from(std::thread::current().id() == me), SeqCst);
            counts.1.fetch_add(1, SeqCst);
            Ok(())
        },
    );
    let registry = Registry::builder()
        .backend(backend)
        .budget(REGIONS * PAGE)
        .events(Events::NotifyOnly)
        .build()
        .unwrap();
    (0..REGIONS).for_each(|number| drop(read(&registry, region(number))));
    (0..REGIONS).for_each(|number| announce(region(number)));
    let mut most = 0;
    for number in (0..REGIONS).step_by(100) {
        let before = mine.load(SeqCst);
        drop(read(&registry, region(number)));
        most = most.max(mine.load(SeqCst) - before);
    }
    assert!(most <= SLICE, "a get gave back {most} regions");
    eventually(|| all.load(SeqCst) == REGIONS as u64);
}

/// A storm beside what is registered, far enough from it, takes nothing out.
#[test]
fn a_storm_where_nothing_is_registered_takes_nothing_out() {
    let _turn = turn();
    let device = Device::new();
    let registry = registry_of_addresses(&device);
    let keys: Vec<_> = (0..1000).map(|number| read(&registry, region(number)).key()).collect();
    let elsewhere = |number| ((BASE + (1 << 36) + 2 * number * PAGE) as *const u8, PAGE);
    (0..COUNT).for_each(|number| announce(elsewhere(number)));
    for (number, key) in keys.into_iter().enumerate() {
        assert_eq!(read(&registry, region(number)).key(), key);
    }
    assert_eq!((device.counts().0, registry.stats().flushes), (1000, 0));
}

/// Several threads at once: what each announced is gone.
#[test]
fn a_storm_from_four_threads_loses_nothing() {
    let _turn = turn();
    let device = Device::new();
    let registry = registry_of_addresses(&device);
    let keys: Vec<_> = (0..COUNT / 5).map(|number| read(&registry, region(number)).lkey()).collect();
    at_once(4, &|thread| {
        for number in (thread..COUNT / 5).step_by(4) {
            announce(region(number));
            assert_ne!(read(&registry, region(number)).lkey(), keys[number], "a stale hit");
        }
    });
    assert_eq!(registry.stats().regions, COUNT as u64 / 5);
}

/// Graceful overflow: 100,000 events that touch 5 % of 100,000 regions cost at
/// most twice the touched ones.
#[test]
fn a_storm_that_touches_a_twentieth_takes_out_at_most_twice_that() {
    let _turn = turn();
    let device = Device::new();
    let registry = registry_of_addresses(&device);
    (0..COUNT).for_each(|number| drop(read(&registry, region(number))));
    for step in 0..COUNT {
        // Between two regions, or on every twentieth.
        let (at, len) = region(step);
        let touched = step % 20 == 0;
        announce((at.wrapping_add(if touched { 0 } else { PAGE }), len));
    }
    (0..COUNT).for_each(|number| drop(read(&registry, region(number))));
    let again = device.counts().0 - COUNT as u64;
    assert!((COUNT as u64 / 20..=COUNT as u64 / 10).contains(&again), "{again} registered again");
}

/// Graceful overflow, where a hook cannot walk what it is told: 100,000 events, each over more
/// than it may read, each another range, over a twentieth of the regions, in some areas.
fn storm_of_wide_events(regions: usize, stride: usize, areas: usize, at_least: usize) {
    const EVENTS: usize = 100_000;
    let _turn = turn();
    let device = Device::new();
    let registry = registry_of_addresses(&device);
    let region = |number: usize| ((BASE + number * stride * PAGE) as *const u8, PAGE);
    let key = |number| read(&registry, region(number)).lkey();
    let keys: Vec<_> = (0..regions).map(key).collect();
    let (size, apart) = (regions / 20 / areas, regions / areas);
    let mut random = Random::new(areas as u64);
    let mut touched = vec![false; regions];
    for event in 0..EVENTS {
        let first = random.below(size - at_least);
        let count = at_least + random.below(size - at_least - first + 1);
        let first = event % areas * apart + first;
        touched[first..first + count].fill(true);
        announce((region(first).0, (count - 1) * stride * PAGE + PAGE));
    }
    let again: Vec<bool> = (0..regions).map(|number| key(number) != keys[number]).collect();
    assert!(touched.iter().zip(&again).all(|(touched, again)| again >= touched), "an event was lost");
    let count = |of: &[bool]| of.iter().filter(|&&is| is).count();
    let (touched, again) = (count(&touched), count(&again));
    assert!(again <= 2 * touched, "{again} registered again, {touched} touched");
    let stats = registry.stats();
    assert!(stats.overflows > 0 && stats.flushes == 0, "{stats:?}");
}

#[test]
fn a_storm_of_wide_events_over_dense_regions_takes_out_at_most_twice_what_it_touches() {
    storm_of_wide_events(COUNT, 2, 1, 500);
    storm_of_wide_events(COUNT, 2, 10, 300);
}

#[test]
fn a_storm_of_wide_events_over_sparse_regions_takes_out_at_most_twice_what_it_touches() {
    storm_of_wide_events(COUNT / 5, 512, 10, 20);
    storm_of_wide_events(COUNT / 5, 512, 50, 10);
}

/// What no event can describe takes everything out.
#[test]
fn a_change_of_everything_takes_everything_out() {
    let _turn = turn();
    let device = Device::new();
    let registry = registry_of_addresses(&device);
    let keys: Vec<_> = (0..1000).map(|number| read(&registry, region(number)).lkey()).collect();
    pinyard_hooks::notify_unmapped(std::ptr::null(), usize::MAX);
    for (number, old) in keys.into_iter().enumerate() {
        assert_ne!(read(&registry, region(number)).lkey(), old, "{number}");
    }
    assert_eq!(registry.stats().flushes, 1);
}
