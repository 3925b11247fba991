//! Threads against each other; also run under ThreadSanitizer (xtask/ci/tsan.sh).
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, IoUring};
use pinyard_registry::{Access, MemoryKey, Registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

const ROUNDS: usize = 10_000;
const THREADS: usize = 8;

/// Readers on shared regions, changers that replace pages, both at once: every
/// registration given back once, and no reader holds one that was.
fn readers_and_changers() {
    const REGIONS: usize = 8;
    // Per key: alive or not. A deregistration under a holder would show.
    let alive: Arc<Vec<AtomicBool>> = Arc::new((0..400_000).map(|_| AtomicBool::new(false)).collect());
    let next = Arc::new(AtomicU64::new(0));
    let (born, dead) = (alive.clone(), alive.clone());
    let numbers = next.clone();
    let backend = Custom::new(
        "tracking",
        move |_, _| {
            let number = numbers.fetch_add(1, SeqCst);
            assert!(!born[number as usize].swap(true, SeqCst));
            Ok(MemoryKey { lkey: number, rkey: 0, handle: 0 })
        },
        move |key: MemoryKey, _| {
            assert!(dead[key.lkey as usize].swap(false, SeqCst), "deregistered twice");
            Ok(())
        },
    );
    let registry = Registry::builder().backend(backend).events(events()).build().unwrap();
    let pages: Vec<Pages> = (0..REGIONS).map(|_| Pages::new(2)).collect();
    let read = |reader: usize| {
        for round in 0..ROUNDS {
            let target = &pages[(round * 7 + reader) % REGIONS];
            let lease = registry.get(target, Access::LOCAL_READ).unwrap();
            assert!(alive[lease.lkey() as usize].load(SeqCst), "handed out after deregistration");
            if round % 16 == 0 {
                std::thread::yield_now();
            }
            assert!(alive[lease.lkey() as usize].load(SeqCst), "deregistered under its holder");
        }
    };
    let change = || {
        for round in 0..ROUNDS / 2 {
            pages[round % REGIONS].advise(libc::MADV_DONTNEED);
            if round % 10 == 0 {
                registry.invalidate(&pages[(round + 1) % REGIONS]).unwrap();
            }
            if round % 100 == 0 {
                registry.flush().unwrap();
            }
            if round % 64 == 0 {
                std::thread::yield_now();
            }
        }
    };
    at_once(THREADS, &|thread| if thread < THREADS - 1 { read(thread) } else { change() });
    registry.flush().unwrap();
    let stats = registry.stats();
    assert_eq!(stats.registrations, stats.deregistrations);
    assert_eq!(stats.registrations, next.load(SeqCst));
    assert!(alive.iter().all(|key| !key.load(SeqCst)));
    assert_eq!(stats.hits + stats.misses, (THREADS - 1) as u64 * ROUNDS as u64);
}

/// Each thread maps, registers, checks the device's view, and unmaps, on
/// addresses that the kernel hands from one to the other.
fn no_thread_ever_sees_another_ones_old_pages() {
    let ring = Arc::new(IoUring::new(64).unwrap());
    let registry = Registry::builder().backend(ring.clone()).events(events()).build().unwrap();
    at_once(THREADS, &|thread| {
        for round in 0..ROUNDS / 4 {
            let mut pages = Pages::new(2);
            let byte = (thread * 30 + round % 30 + 1) as u8;
            pages.fill(byte);
            let lease = read(&registry, &pages);
            assert_eq!(through(&ring, lease.key(), pages.at), byte, "old pages");
            drop(lease);
        }
    });
}

/// Overlapping ranges from all sides: merges, evictions and waits, no deadlock.
fn overlapping_gets_under_a_tight_budget() {
    let device = Device::new();
    let registry =
        Registry::builder().backend(device.backend()).events(events()).budget(64 * PAGE).build().unwrap();
    let pages = Pages::new(48);
    at_once(THREADS, &|thread| {
        for round in 0..ROUNDS {
            let first = (round * 5 + thread * 11) % 44;
            // In use all at once it may not fit: then it is refused.
            let _ = registry.get(pages.part(first, 1 + round % 4), Access::LOCAL_READ);
        }
    });
    assert!(registry.stats().pinned_bytes <= 64 * PAGE as u64);
    registry.flush().unwrap();
    let (registered, deregistered) = device.counts();
    assert_eq!(registered, deregistered);
}

/// Who asks to be called back when a registration is gone is called once, whoever takes it
/// back, and never while it is there.
fn every_completion_is_called_once() {
    const REGIONS: usize = 4;
    let device = Device::new();
    let registry = Registry::builder().backend(device.backend()).events(events()).build().unwrap();
    let pages: Vec<Pages> = (0..REGIONS).map(|_| Pages::new(1)).collect();
    let calls: Arc<Vec<AtomicU64>> =
        Arc::new((0..THREADS * ROUNDS / 10).map(|_| AtomicU64::new(0)).collect());
    at_once(THREADS, &|thread| {
        for round in 0..ROUNDS / 10 {
            let target = &pages[(round * 7 + thread) % REGIONS];
            let lease = read(&registry, target);
            let (calls, at) = (calls.clone(), thread * (ROUNDS / 10) + round);
            registry.invalidate_then(target, move || _ = calls[at].fetch_add(1, SeqCst)).unwrap();
            if round % 3 == 0 {
                std::thread::yield_now();
            }
            drop(lease);
        }
    });
    registry.flush().unwrap();
    eventually(|| calls.iter().all(|calls| calls.load(SeqCst) > 0));
    assert!(calls.iter().all(|calls| calls.load(SeqCst) == 1), "called twice");
    let (registered, deregistered) = device.counts();
    assert_eq!(registered, deregistered);
}

/// A harness of its own: the standard one's threads and channels are in the
/// library that the sanitizer cannot see into.
fn main() {
    let only = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let tests: [(&str, fn()); 4] = [
        ("readers_and_changers", readers_and_changers),
        ("no_thread_ever_sees_another_ones_old_pages", no_thread_ever_sees_another_ones_old_pages),
        ("overlapping_gets_under_a_tight_budget", overlapping_gets_under_a_tight_budget),
        ("every_completion_is_called_once", every_completion_is_called_once),
    ];
    let chosen = |name: &str| only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut passed = 0;
    for (name, test) in tests.into_iter().filter(|(name, _)| chosen(name)) {
        test();
        println!("test {name} ... ok");
        passed += 1;
    }
    println!(
        "\ntest result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; {} filtered out",
        tests.len() - passed
    );
}
