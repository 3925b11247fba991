//! What a registry says of itself, and what callers can ask of it beyond `get`:
//! explanations, counters, callbacks, shared budgets, coarse registrations.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, Fault, Faulty, IoUring, Work};
use pinyard_registry::{
    Access, Budget, CACHED_LIMIT, Coarsen, Explanation, GetError, MemoryKey, Registry, Retirement,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

fn counting(device: &Arc<Device>) -> Registry {
    Registry::builder().backend(device.backend()).build().unwrap()
}

#[test]
fn a_miss_is_explained() {
    let began = Instant::now();
    let device = Device::new();
    let registry = Registry::builder().backend(device.backend()).max_regions(3).build().unwrap();
    let pages = Pages::new(16);
    let explain = |buffer| registry.explain(buffer, Access::LOCAL_READ);
    assert!(matches!(explain(pages.part(0, 0)), Explanation::Range(_)));
    assert_eq!(explain(pages.part(0, 1)), Explanation::Unknown);

    drop(read(&registry, pages.part(2, 4)));
    let first = read(&registry, pages.part(2, 4)).key();
    assert!(matches!(explain(pages.part(3, 1)), Explanation::Hit { key, .. } if key == first));
    assert!(matches!(explain(pages.part(5, 2)), Explanation::Partly { .. }));
    let writing = registry.explain(pages.part(3, 1), Access::LOCAL_WRITE);
    assert!(matches!(writing, Explanation::Access { missing: Access::LOCAL_WRITE, .. }), "{writing}");

    let retired = |expected: Retirement| {
        let said = explain(pages.part(3, 1));
        let Explanation::Retired { reason, ago, .. } = said else { panic!("{said}") };
        assert_eq!(reason, expected);
        // A hundredth more: the processor's counter is calibrated, not a clock.
        let longest = began.elapsed().mul_f64(1.01);
        assert!(ago <= longest, "{ago:?} ago, of {longest:?}");
        drop(read(&registry, pages.part(2, 4)));
    };
    pages.advise(libc::MADV_DONTNEED);
    retired(Retirement::Invalidated);
    registry.flush().unwrap();
    retired(Retirement::Flushed);
    (8..11).for_each(|page| drop(read(&registry, pages.part(page, 1))));
    retired(Retirement::Evicted);
    drop(read(&registry, pages.part(1, 2)));
    assert!(matches!(explain(pages.part(3, 1)), Explanation::Hit { .. }), "merged into a larger one");
}

#[test]
fn a_registration_under_way_is_named() {
    let (begun, has_begun) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let gone = std::sync::Mutex::new(gone);
    let wait: Work = Arc::new(move |_| {
        begun.send(()).unwrap();
        gone.lock().unwrap().recv().unwrap();
    });
    let backend = Faulty::over(Device::new().backend()).registering(move |_| Some(Fault::Run(wait.clone())));
    let registry = Registry::builder().backend(backend).build().unwrap();
    let pages = Pages::new(1);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(read(&registry, &pages)));
        has_begun.recv().unwrap();
        let said = registry.explain(&pages, Access::LOCAL_READ);
        go.send(()).unwrap();
        assert!(matches!(said, Explanation::Coming { .. }), "{said}");
    });
}

/// A callback runs when the device has let go, however long a lease is held, and
/// exactly once.
#[test]
fn the_callback_of_an_invalidate_runs_once() {
    let device = Device::new();
    let registry = counting(&device);
    let pages = Pages::new(4);
    let calls = Arc::new(AtomicU64::new(0));
    let invalidate = || {
        let (calls, device, again) = (calls.clone(), device.clone(), registry.clone());
        let done = move || {
            assert_eq!(device.counts().0, device.counts().1, "something is still registered");
            // Callable from here, since no lock is held.
            assert!(matches!(again.explain((8 as *const u8, 8), Access::LOCAL_READ), Explanation::Unknown));
            calls.fetch_add(1, SeqCst);
        };
        registry.invalidate_then(pages.all(), done).unwrap();
    };
    invalidate();
    assert_eq!(calls.load(SeqCst), 1, "nothing to wait for");

    drop((read(&registry, pages.part(0, 1)), read(&registry, pages.part(2, 1))));
    invalidate();
    assert_eq!(calls.load(SeqCst), 2, "nobody held them");

    let (first, second) = (read(&registry, pages.part(0, 1)), read(&registry, pages.part(2, 1)));
    invalidate();
    invalidate();
    assert_eq!(calls.load(SeqCst), 2, "a lease is held");
    drop(first);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(calls.load(SeqCst), 2, "another lease is held");
    drop(second);
    eventually(|| calls.load(SeqCst) == 4);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(calls.load(SeqCst), 4);
}

/// One that is being deregistered, or still registered, counts as well.
#[test]
fn the_callback_of_an_invalidate_waits_for_what_others_are_at() {
    for deregistering in [true, false] {
        let (begun, has_begun) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let gone = std::sync::Mutex::new(gone);
        let wait: Work = Arc::new(move |_| {
            begun.send(()).unwrap();
            gone.lock().unwrap().recv().unwrap();
        });
        let device = Device::new();
        let backend = Faulty::over(device.backend());
        let once = move |nth| (nth == 0).then(|| Fault::Run(wait.clone()));
        let backend = if deregistering { backend.deregistering(once) } else { backend.registering(once) };
        let registry = Registry::builder().backend(backend).build().unwrap();
        let (pages, calls) = (Pages::new(1), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                drop(read(&registry, &pages));
                registry.invalidate(&pages).unwrap();
            });
            has_begun.recv().unwrap();
            let counted = calls.clone();
            registry.invalidate_then(&pages, move || _ = counted.fetch_add(1, SeqCst)).unwrap();
            let early = calls.load(SeqCst);
            go.send(()).unwrap();
            assert_eq!(early, 0, "called while the device is at it (deregistering: {deregistering})");
        });
        eventually(|| calls.load(SeqCst) == 1);
    }
}

/// A callback's panic ends with it: the reaper goes on.
#[test]
fn a_callback_that_panics_stops_nobody() {
    let device = Device::new();
    let registry = counting(&device);
    let pages = Pages::new(2);
    let held = read(&registry, pages.part(0, 1));
    registry.invalidate_then(pages.part(0, 1), || panic!("by plan")).unwrap();
    drop(held);
    eventually(|| device.counts() == (1, 1));
    drop(read(&registry, pages.part(1, 1)));
    pages.unmap();
    eventually(|| device.counts() == (2, 2));
}

#[test]
fn the_backend_s_times_are_counted() {
    let backend = Faulty::over(Device::new().backend())
        .registering(|_| Some(Fault::Stall(Duration::from_millis(3))))
        .deregistering(|_| Some(Fault::Stall(Duration::from_millis(1))));
    let registry = Registry::builder().backend(backend).build().unwrap();
    let pages = Pages::new(4);
    (0..4).for_each(|page| drop(read(&registry, pages.part(page, 1))));
    registry.flush().unwrap();
    let stats = registry.stats();
    assert_eq!((stats.registering.count(), stats.deregistering.count()), (4, 4));
    let least = |times: pinyard_registry::Times, milliseconds: u64| {
        // A hundredth less: the processor's counter is calibrated, not a clock.
        let expected = Duration::from_micros(990 * milliseconds);
        assert!(times.quantile(0.0) >= expected && times.total() >= 4 * expected, "{times:?}");
    };
    least(stats.registering, 3);
    least(stats.deregistering, 1);
}

#[test]
fn two_registries_share_a_budget() {
    let budget = Budget::new(8 * PAGE);
    let ring = Arc::new(IoUring::new(64).unwrap());
    let device = Device::new();
    let pinning = Registry::builder().backend(ring).budget(budget.clone()).build().unwrap();
    let counting = Registry::builder().backend(device.backend()).budget(budget.clone()).build().unwrap();
    let (mine, theirs) = (Pages::new(8), Pages::new(8));

    drop(read(&pinning, mine.part(0, 6)));
    assert_eq!((budget.pinned(), budget.bytes()), (6 * PAGE, 8 * PAGE));
    // What the other only caches makes way.
    let held = read(&counting, theirs.part(0, 5));
    assert_eq!((pinning.stats().pinned_bytes, pinning.stats().evictions), (0, 1));
    drop(read(&pinning, mine.part(0, 3)));
    assert_eq!(budget.pinned(), 8 * PAGE);
    // What is in use does not, and is named.
    let error = pinning.get(mine.part(0, 8), Access::LOCAL_READ).unwrap_err();
    let GetError::Budget { ref holdings, pinned, .. } = error else { panic!("{error}") };
    assert_eq!((pinned, holdings.0.len()), (5 * PAGE, 2));
    assert!(error.to_string().contains("counting 20480 bytes in 1 regions"), "{error}");
    drop(held);
    drop(read(&pinning, mine.part(0, 8)));
    assert_eq!((counting.stats().pinned_bytes, budget.pinned()), (0, 8 * PAGE));
    // A registry that goes gives its bytes back.
    drop(pinning);
    eventually(|| budget.pinned() == 0);
}

/// What can never fit takes out nothing on its way to being refused.
#[test]
fn what_exceeds_the_whole_budget_takes_nothing_out() {
    let device = Device::new();
    let registry = Registry::builder().backend(device.backend()).budget(3 * PAGE).build().unwrap();
    let pages = Pages::new(8);
    drop(read(&registry, pages.part(0, 1)));
    let error = registry.get(pages.part(2, 4), Access::LOCAL_READ).unwrap_err();
    assert!(matches!(error, GetError::Budget { .. }), "{error}");
    assert_eq!((registry.stats().evictions, registry.stats().regions), (0, 1));
}

/// What an event has taken out is the room that a miss needs: what is still valid stays.
#[test]
fn stale_regions_make_room_before_valid_ones_are_evicted() {
    let device = Device::new();
    let registry = builder_over(device.backend()).budget(2 * PAGE).build().unwrap();
    let hot = Pages::apart(1);
    let key = read(&registry, &hot).key();
    let mut other = Pages::apart(1);
    drop(read(&registry, &other));
    // Many, since the reaper may be the first to find the stale one.
    for _ in 0..50 {
        other.advise(libc::MADV_DONTNEED);
        other = Pages::apart(1);
        drop(read(&registry, &other));
    }
    assert_eq!((registry.stats().evictions, registry.stats().regions), (0, 2));
    assert_eq!(read(&registry, &hot).key(), key);
}

/// Two registries in two threads that each need all of the budget.
#[test]
fn registries_of_one_budget_do_not_wait_for_each_other_for_ever() {
    let budget = Budget::new(4 * PAGE);
    at_once(4, &|_| {
        let device = Device::new();
        let registry = Registry::builder().backend(device.backend()).budget(budget.clone()).build().unwrap();
        let pages = Pages::new(4);
        let mut served = 0;
        while served < 200 {
            match registry.get(&pages, Access::LOCAL_READ) {
                Ok(_) => served += 1,
                Err(GetError::Budget { .. }) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        }
    });
    eventually(|| budget.pinned() == 0);
}

/// What a registry retires to make room for another one, a third thread may be the
/// one to take back: it is room that comes, not a refusal.
#[test]
fn room_that_another_thread_gives_back_is_waited_for() {
    let budget = Budget::new(4 * PAGE);
    let slow: Work = Arc::new(|_| std::thread::sleep(Duration::from_micros(300)));
    let backend =
        Faulty::over(Device::new().backend()).deregistering(move |_| Some(Fault::Run(slow.clone())));
    let first = Registry::builder().backend(backend).budget(budget.clone()).build().unwrap();
    let second = Registry::builder().backend(Device::new().backend()).budget(budget).build().unwrap();
    let (pages, elsewhere, is_over) = (Pages::new(4), Pages::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    first.invalidate(&elsewhere).unwrap();
                }
            });
        }
        let get = |registry: &Registry| registry.get(&pages, Access::LOCAL_READ).map(drop).err();
        // Fewer rounds where other work takes the cores.
        let until = Instant::now() + Duration::from_secs(10);
        let mut rounds = (0..2500).take_while(|_| Instant::now() < until);
        let refused = rounds.find_map(|_| get(&first).or_else(|| get(&second)));
        is_over.store(true, SeqCst);
        assert!(refused.is_none(), "{}", refused.unwrap());
    });
}

#[test]
fn coarse_registrations_serve_what_lies_beside() {
    for (coarsen, expected) in [
        (Coarsen::Never, 64),
        (Coarsen::HugePage, 2),
        (Coarsen::Blocks(32 << 10), 32),
        (Coarsen::Blocks(usize::MAX), 1),
    ] {
        let device = Device::new();
        let registry = Registry::builder().backend(device.backend()).coarsen(coarsen).build().unwrap();
        // 64 buffers of 2 KiB at a stride of 16 KiB, in one mapping of its own.
        let pages = Pages::new(258);
        pages.enclose();
        for buffer in 0..64 {
            drop(read(&registry, (pages.part(1 + 4 * buffer, 1).0, 2048)));
        }
        let made = device.counts().0;
        assert!(made.abs_diff(expected) <= expected / 16 + 1, "{coarsen:?}: {made} registrations");
        for edge in [0, 257] {
            let said = registry.explain(pages.part(edge, 1), Access::LOCAL_READ);
            assert_eq!(said, Explanation::Unknown, "left its mapping");
        }
    }
}

/// Where the larger one is refused, the buffer's own pages are registered.
#[test]
fn a_coarse_registration_that_does_not_fit_is_made_small() {
    let device = Device::new();
    let builder = Registry::builder().backend(device.backend()).coarsen(Coarsen::HugePage);
    let registry = builder.budget(4 * PAGE).build().unwrap();
    let pages = Pages::new(512);
    assert_eq!(read(&registry, pages.part(100, 2)).len(), 2 * PAGE);
    let refuse =
        Faulty::over(device.backend()).registering(|nth| (nth == 0).then_some(Fault::Fail(libc::EFAULT)));
    let registry = Registry::builder().backend(refuse).coarsen(Coarsen::HugePage).build().unwrap();
    assert_eq!(read(&registry, pages.part(100, 2)).len(), 2 * PAGE);
}

/// Addresses that only 5-level page tables have: registered, and not cached.
#[test]
fn five_level_addresses_are_registered_each_time() {
    let device = Device::new();
    let registry = Registry::builder().backend(device.backend()).budget(1 << 41).build().unwrap();
    for at in [CACHED_LIMIT, CACHED_LIMIT - PAGE, (1 << 56) - 2 * PAGE] {
        let before = device.counts().0;
        for _ in 0..2 {
            let lease = read(&registry, (at as *const u8, 2 * PAGE));
            assert_eq!((lease.base(), lease.len()), (at, 2 * PAGE));
        }
        assert_eq!(device.counts().0 - before, 2);
        eventually(|| device.counts().0 == device.counts().1);
        let said = registry.explain((at as *const u8, 2 * PAGE), Access::LOCAL_READ);
        assert_eq!(said, Explanation::TooHigh);
    }
    let huge = (1usize << 40) as *const u8;
    assert_eq!(read(&registry, (huge, 1 << 40)).len(), 1 << 40);
    drop(read(&registry, (huge.wrapping_add(1 << 39), PAGE)));
    assert_eq!(registry.stats().hits, 1, "a terabyte is one region");
    pinyard_hooks::notify_unmapped(huge.wrapping_add(123 << 30), 1);
    assert_eq!(registry.lookup((huge, PAGE), Access::LOCAL_READ), None);
}

/// Whoever knows an rkey may read or write the memory from elsewhere: no text has it.
#[test]
fn no_text_has_an_rkey() {
    const RKEY: u64 = 0x5ec3_e75e;
    let key = MemoryKey { lkey: 7, rkey: RKEY, handle: RKEY };
    let backend = Custom::new("keyed", move |_, _| Ok(key), |_, _| Ok(()));
    let registry = registry_over(backend);
    let pages = Pages::new(1);
    let lease = read(&registry, &pages);
    assert_eq!(lease.key().rkey, RKEY);
    let texts = [
        format!("{:?}", lease.key()),
        format!("{lease:?}"),
        format!("{:?}", registry.stats()),
        registry.explain(&pages, Access::REMOTE_WRITE).to_string(),
        format!("{:?}", registry.explain(&pages, Access::REMOTE_WRITE)),
    ];
    for text in texts {
        for secret in [format!("{RKEY}"), format!("{RKEY:x}"), format!("{RKEY:X}")] {
            assert!(!text.contains(&secret), "{text}");
        }
    }
}
