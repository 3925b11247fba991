//! Threads that come, go, and get in each other's way: UCX's multi-threaded
//! fixtures (6 to 10 threads), libfabric's case f, and what a count of references
//! per thread must survive.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Fault, Faulty, IoUring, Work};
use pinyard_registry::{Access, OwnedLease, Registry};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};

/// `test_rcache::basic` with 10 threads.
#[test]
fn ten_threads_get_and_put_one_range() {
    let device = Device::new();
    let registry = registry_over(device.backend());
    let pages = Pages::new(4);
    at_once(10, &|thread| {
        for round in 0..1000 {
            drop(read(&registry, pages.part((thread + round) % 4, 1)));
            drop(read(&registry, &pages));
        }
    });
    let whole = read(&registry, &pages).key();
    assert_eq!(read(&registry, pages.part(3, 1)).key(), whole);
    let stats = registry.stats();
    assert!(device.counts().0 <= 5, "four parts at most, and their union: {:?}", device.counts());
    assert_eq!(stats.hits + stats.misses, 20_002);
}

/// `test_rcache::shared_region` and issue UCX #4016: two threads on one region,
/// which a third takes out at random moments and in every way.
#[test]
fn two_threads_on_one_region_with_random_invalidation() {
    let ledger = Ledger::new();
    let registry = registry_over(ledger.backend());
    let pages = Pages::new(2);
    let running = AtomicUsize::new(2);
    let taken_out = AtomicUsize::new(0);
    at_once(3, &|thread| {
        let mut random = Random::new(thread as u64 + 1);
        if thread == 2 {
            while running.load(SeqCst) > 0 {
                taken_out.fetch_add(1, Relaxed);
                match random.below(4) {
                    0 => pages.advise(libc::MADV_DONTNEED),
                    1 => registry.invalidate(&pages).unwrap(),
                    2 => pinyard_hooks::notify_unmapped(pages.at as *const u8, 1),
                    _ => registry.flush().unwrap(),
                }
                (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
            }
            return;
        }
        for _ in 0..20_000 {
            // It may be taken out during each of a get's attempts.
            if let Ok(lease) = registry.get(&pages, Access::LOCAL_READ) {
                (0..random.below(50)).for_each(|_| std::hint::spin_loop());
                assert!(ledger.stands(lease.lkey()), "taken back under its holder");
            }
        }
        running.fetch_sub(1, SeqCst);
    });
    registry.flush().unwrap();
    assert_eq!(ledger.standing(), 0);
    assert!(taken_out.load(SeqCst) > 10);
}

/// Case f: eight threads map, register, look through the device and unmap, hold
/// what the others take out, and hand leases on.
#[test]
fn eight_threads_churn_and_everything_is_given_back() {
    let ring = Arc::new(IoUring::new(256).unwrap());
    let registry = registry_over(ring.clone());
    let shared: Vec<Pages> = (0..4).map(|_| Pages::new(4)).collect();
    let handed_on: Mutex<Vec<OwnedLease>> = Mutex::default();
    at_once(8, &|thread| {
        let mut random = Random::new(thread as u64 + 1);
        for round in 0..400 {
            let mut own = Pages::new(1 + random.below(3));
            let byte = (thread * 30 + round % 30 + 1) as u8;
            own.fill(byte);
            let lease = read(&registry, &own);
            assert_eq!(through(&ring, lease.key(), own.at), byte, "old pages");
            let common = &shared[random.below(4)];
            match random.below(4) {
                0 => common.advise(libc::MADV_DONTNEED),
                1 => registry.invalidate(common.part(random.below(4), 1)).unwrap(),
                _ => {
                    if let Ok(lease) = registry.get(common.part(random.below(3), 2), Access::LOCAL_READ) {
                        let mut handed_on = handed_on.lock().unwrap();
                        handed_on.push(lease.into_owned());
                        if handed_on.len() > 20 {
                            drop(handed_on.swap_remove(random.below(20)));
                        }
                    }
                }
            }
            drop(lease);
        }
    });
    handed_on.lock().unwrap().clear();
    registry.flush().unwrap();
    eventually(|| registry.stats().graveyard == 0);
    let stats = registry.stats();
    assert_eq!((stats.registrations, stats.pinned_bytes), (stats.deregistrations, 0));
    assert_eq!(stats.failed_deregistrations, 0);
}

/// A reference is given back by another thread than took it, after that one has
/// ended, by more threads than there are places to count in.
#[test]
fn leases_outlive_the_threads_that_took_them() {
    let ledger = Ledger::new();
    let registry = registry_over(ledger.backend());
    let pages = Pages::new(1);
    let kept: Mutex<Vec<OwnedLease>> = Mutex::default();
    for _ in 0..50 {
        at_once(4, &|_| kept.lock().unwrap().push(read(&registry, &pages).into_owned()));
    }
    registry.invalidate(&pages).unwrap();
    let mut kept = kept.into_inner().unwrap();
    assert_eq!((kept.len(), ledger.made(), ledger.standing()), (200, 1, 1));
    let last = kept.pop();
    at_once(1, &|_| {});
    std::thread::scope(|scope| _ = scope.spawn(move || drop(kept)));
    registry.invalidate(&pages).unwrap();
    assert_eq!(ledger.standing(), 1, "one of them is left");
    drop(last);
    eventually(|| ledger.standing() == 0);
    assert_eq!(registry.stats().hits, 199);
}

thread_local! { static LATE: RefCell<Option<Late>> = const { RefCell::new(None) }; }

/// Uses the registry as its thread's variables are destroyed.
struct Late {
    registry: Registry,
    lease: Option<OwnedLease>,
    at: usize,
    done: Arc<AtomicUsize>,
}

impl Drop for Late {
    fn drop(&mut self) {
        drop(self.lease.take());
        let lease = read(&self.registry, (self.at as *const u8, PAGE));
        assert_eq!(lease.len(), PAGE);
        drop(lease);
        self.done.fetch_add(1, SeqCst);
    }
}

/// Exit from any thread: the counts of a thread that is on its way out.
#[test]
fn a_thread_that_ends_may_still_use_the_registry() {
    let device = Device::new();
    let registry = registry_over(device.backend());
    let (pages, done) = (Pages::new(1), Arc::new(AtomicUsize::new(0)));
    for used_before in [false, true] {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let lease = used_before.then(|| read(&registry, &pages).into_owned());
                let late = Late { registry: registry.clone(), lease, at: pages.at, done: done.clone() };
                LATE.set(Some(late));
            });
            // Joined: the scope itself does not wait for a thread's variables.
            thread.join().unwrap();
        });
    }
    assert_eq!(done.load(SeqCst), 2);
    registry.flush().unwrap();
    assert_eq!(device.counts(), (1, 1), "no reference was left behind");
}

/// Invalidations of the same regions from all sides: each taken back once.
#[test]
fn many_threads_invalidate_the_same_regions() {
    let ledger = Ledger::new();
    let registry = registry_over(ledger.backend());
    let pages = Pages::new(64);
    for round in 0..50 {
        for index in 0..16 {
            drop(read(&registry, pages.part(4 * index, 2)));
        }
        at_once(4, &|thread| match (thread + round) % 4 {
            0 => registry.flush().unwrap(),
            1 => pages.advise(libc::MADV_DONTNEED),
            2 => (0..16).for_each(|index| registry.invalidate(pages.part(4 * index, 1)).unwrap()),
            _ => registry.invalidate(&pages).unwrap(),
        });
        registry.invalidate(&pages).unwrap();
        assert_eq!(ledger.standing(), 0, "an invalidation returns when all is given back");
    }
    assert_eq!((ledger.made(), registry.stats().deregistrations), (800, 800));
}

/// A thread that registers without pause starves nobody: each of its registrations ends
/// only after a hundred further hits. UCX's readers made one to seven hits in two seconds
/// beside such a thread.
#[test]
fn hits_go_on_beside_back_to_back_registrations() {
    const REGISTRATIONS: usize = 20;
    const HITS: u64 = 100;
    let hits = Arc::new(AtomicU64::new(0));
    let seen = hits.clone();
    let outlast: Work = Arc::new(move |_| {
        let before = seen.load(SeqCst);
        eventually(|| seen.load(SeqCst) >= before + HITS);
    });
    let device = Device::new();
    let backend =
        Faulty::over(device.backend()).registering(move |nth| (nth > 0).then(|| Fault::Run(outlast.clone())));
    let registry = registry_over(backend);
    let (hot, cold) = (Pages::new(1), Pages::new(2 * REGISTRATIONS));
    drop(read(&registry, &hot));
    std::thread::scope(|scope| {
        let registrar = scope.spawn(|| {
            (0..REGISTRATIONS).for_each(|index| drop(read(&registry, cold.part(2 * index, 1))));
        });
        while !registrar.is_finished() {
            drop(read(&registry, &hot));
            hits.fetch_add(1, SeqCst);
        }
        registrar.join().unwrap();
    });
    assert_eq!(device.counts().0, 1 + REGISTRATIONS as u64);
    assert_eq!(registry.stats().hits, hits.load(SeqCst), "each get of the hot page was a hit");
}
