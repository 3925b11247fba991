//! Invariants 3, 5, 6 and 8: hits go on while others register; what the program
//! gave up is unpinned; what is in use stays; the budget holds.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Backend, Custom, Fault, Faulty, IoUring, Limits, Mlock, Work};
use pinyard_registry::{Access, GetError, MemoryKey, Registry};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, mpsc};
use std::time::Duration;

fn registry(backend: impl Backend + 'static) -> Registry {
    Registry::builder().backend(backend).build().unwrap()
}

/// Invariant 3. The registration ends only after the hits have been made: a
/// cache whose hits wait for it never ends this test.
#[test]
fn hits_never_wait_for_a_registration() {
    let (begun, has_begun) = mpsc::channel();
    let (enough, hits_made) = mpsc::channel();
    let hits_made = std::sync::Mutex::new(hits_made);
    let wait: Work = Arc::new(move |_| {
        begun.send(()).unwrap();
        hits_made.lock().unwrap().recv_timeout(Duration::from_secs(10)).expect("hits waited");
    });
    let backend = Faulty::over(Device::new().backend())
        .registering(move |nth| (nth == 1).then(|| Fault::Run(wait.clone())));
    let registry = registry(backend);
    let (hot, cold) = (Pages::new(1), Pages::new(1));
    drop(read(&registry, &hot));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(read(&registry, &cold)));
        has_begun.recv().unwrap();
        for _ in 0..10_000 {
            drop(read(&registry, &hot));
        }
        // Nor do misses elsewhere, nor events.
        let other = Pages::new(1);
        drop(read(&registry, &other));
        other.advise(libc::MADV_DONTNEED);
        drop(read(&registry, &hot));
        assert_eq!(registry.stats().invalidations, 1);
        enough.send(()).unwrap();
    });
    assert_eq!(registry.stats().hits, 10_001);
}

/// Threads that miss parts of a range that is being registered wait for that registration.
/// It ends only after all three have missed.
#[test]
fn a_registration_under_way_serves_whoever_waits_for_it() {
    let (begun, has_begun) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let hold: Work = Arc::new(move |_| {
        begun.send(()).unwrap();
        // Also where the test has failed meanwhile.
        let _ = may_go_on.lock().unwrap().recv();
    });
    let device = Device::new();
    let backend =
        Faulty::over(device.backend()).registering(move |nth| (nth == 0).then(|| Fault::Run(hold.clone())));
    let registry = registry(backend);
    let pages = Pages::new(4);
    let keys = std::thread::scope(|scope| {
        let go_on = go_on;
        let first = scope.spawn(|| read(&registry, &pages).key());
        has_begun.recv().unwrap();
        let (registry, pages) = (&registry, &pages);
        let parts = [1, 2, 3].map(|part| scope.spawn(move || read(registry, pages.part(part, 1)).key()));
        // A miss is counted under the lock that its wait gives up.
        eventually(|| registry.stats().misses == 4);
        go_on.send(()).unwrap();
        (first.join().unwrap(), parts.map(|part| part.join().unwrap()))
    });
    assert_eq!(device.counts(), (1, 0));
    assert_eq!(keys.1, [keys.0; 3]);
}

/// Invariant 5: memory stays flat although nobody ever looks, and what is
/// registered beside the storm stays registered.
#[test]
fn forty_thousand_rounds_without_a_lookup_leave_nothing_behind() {
    let registry = registry(Device::new().backend());
    let anchor = Pages::new(1);
    drop(read(&registry, &anchor));
    // Around the anchor, so that hooks meet its leaf.
    let chunk = anchor.at & !((2 << 20) - 1);
    let round = |number: usize| {
        let pages = Pages::new(4);
        pages.unmap();
        let at = chunk + number % 512 * PAGE;
        if at != anchor.at {
            pinyard_hooks::notify_unmapped(at as *const u8, PAGE);
        }
    };
    (0..5_000).for_each(round);
    let before = resident();
    (0..40_000).for_each(round);
    let grown = resident().saturating_sub(before);
    assert!(grown < 1 << 20, "resident memory grew by {grown} bytes");
    let stats = registry.stats();
    assert_eq!((stats.regions, stats.invalidations, stats.flushes), (1, 0, 0));
    assert!(registry.lookup(&anchor, Access::LOCAL_READ).is_some());
}

/// Invariant 6, on real pins: the holder keeps the old pages, nobody else gets
/// them.
#[test]
fn a_region_in_use_stays_valid_for_its_holder_alone() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = registry(ring.clone());
    let mut pages = Pages::new(2);
    pages.fill(1);
    let old = read(&registry, &pages);
    pages.map_over();
    pages.fill(2);
    let new = read(&registry, &pages);
    assert_ne!(new.key(), old.key());
    // Any call may bury; it must pass over what is held.
    registry.invalidate(&Pages::new(1)).unwrap();
    assert_eq!(through(&ring, old.key(), pages.at), 1, "the old pages are still pinned");
    assert_eq!(through(&ring, new.key(), pages.at), 2);
    assert_eq!(registry.stats().graveyard, 1);
    drop(old);
    eventually(|| registry.stats().graveyard == 0);
    assert_eq!(registry.stats().deregistrations, 1);
}

thread_local! { static IN_CHANGE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) }; }

/// Invariant 6: deregistered once, after the last lease, never in a hook.
#[test]
fn deregistration_happens_once_and_never_in_a_hook() {
    let in_hook = Arc::new(AtomicBool::new(false));
    let seen = in_hook.clone();
    let look: Work = Arc::new(move |_| seen.store(seen.load(SeqCst) | IN_CHANGE.get(), SeqCst));
    let device = Device::new();
    let backend = Faulty::over(device.backend()).deregistering(move |_| Some(Fault::Run(look.clone())));
    let registry = registry(backend);
    for round in 0..40 {
        let pages = Pages::new(1);
        let (first, second) = (read(&registry, &pages), read(&registry, &pages));
        IN_CHANGE.set(true);
        pages.advise(libc::MADV_DONTNEED);
        pages.unmap();
        IN_CHANGE.set(false);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(first));
            scope.spawn(move || drop(second));
        });
        // Once each: another test's munmap of the same address may have been at its
        // second notice, and cost a registration more.
        eventually(|| matches!(device.counts(), (made, gone) if made == gone && made > round));
    }
    assert!(!in_hook.load(SeqCst), "deregistered inside a changing call");
}

/// Invariant 8, in bytes: idle regions go, oldest first; what is in use is
/// refused to exceed the budget, with an error that names it.
#[test]
fn the_byte_budget_evicts_then_refuses() {
    let device = Device::new();
    let registry = Registry::builder().backend(device.backend()).budget(3 * PAGE).build().unwrap();
    let pages = Pages::new(12);
    for index in [0, 2, 4] {
        drop(read(&registry, pages.part(index, 1)));
    }
    drop(read(&registry, pages.part(0, 1))); // used again: second chance
    let fourth = read(&registry, pages.part(6, 1));
    assert_eq!(registry.stats().evictions, 1);
    assert!(registry.lookup(pages.part(2, 1), Access::LOCAL_READ).is_none(), "the oldest unused went");
    eventually(|| registry.lookup(pages.part(0, 1), Access::LOCAL_READ).is_some());
    assert_eq!(registry.stats().pinned_bytes, 3 * PAGE as u64);

    let held = [read(&registry, pages.part(0, 1)), read(&registry, pages.part(4, 1))];
    let error = registry.get(pages.part(8, 1), Access::LOCAL_READ).unwrap_err();
    assert!(
        matches!(error, GetError::Budget { budget, pinned, .. } if (budget, pinned) == (3 * PAGE, 3 * PAGE)),
        "{error}"
    );
    assert!(error.to_string().contains("RLIMIT_MEMLOCK"), "{error}");
    assert_eq!(registry.stats().regions, 3, "what is in use stays findable");
    drop((held, fourth));
    drop(read(&registry, pages.part(8, 3)));
    assert_eq!(registry.stats().pinned_bytes, 3 * PAGE as u64);
    let error = registry.get(pages.part(0, 4), Access::LOCAL_READ).unwrap_err();
    assert!(matches!(error, GetError::Budget { .. }), "{error}");
}

/// Invariant 8, in regions.
#[test]
fn the_count_limit_evicts_then_refuses() {
    let registry = Registry::builder().backend(Device::new().backend()).max_regions(2).build().unwrap();
    let pages = Pages::new(8);
    let held = read(&registry, pages.part(0, 1));
    for index in [2, 4, 6, 2, 4] {
        drop(read(&registry, pages.part(index, 1)));
        assert!(registry.stats().regions <= 2);
    }
    let second = read(&registry, pages.part(6, 1));
    let error = registry.get(pages.part(2, 1), Access::LOCAL_READ).unwrap_err();
    assert!(matches!(error, GetError::TooManyRegions { limit: 2, .. }), "{error}");
    drop((held, second));
    drop(read(&registry, pages.part(2, 1)));
}

/// Invariant 8: a registration takes the place of others only once the device has
/// none of them left. The most that ever stood is counted by the device.
#[test]
fn the_device_never_has_more_than_the_limits_allow() {
    // What four threads hold at most.
    const LIMIT: usize = 8;
    let (standing, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (born, died) = (standing.clone(), standing.clone());
    let highest = most.clone();
    let backend = Custom::new(
        "counting",
        move |range, _| {
            let pages = (range.len() / PAGE) as u64;
            highest.fetch_max(born.fetch_add(pages, SeqCst) + pages, SeqCst);
            Ok(MemoryKey::default())
        },
        move |_, range| {
            std::thread::yield_now();
            died.fetch_sub((range.len() / PAGE) as u64, SeqCst);
            Ok(())
        },
    );
    let registry = Registry::builder().backend(backend).budget(LIMIT * PAGE).build().unwrap();
    let pages = Pages::new(64);
    at_once(4, &|thread| {
        let mut random = Random::new(thread as u64 + 1);
        for _ in 0..2_000 {
            // Of one page or two: what is evicted leaves more, less or just enough.
            let (first, count) = (16 * thread + 3 * random.below(5), 1 + random.below(2));
            drop(read(&registry, pages.part(first, count)));
        }
    });
    assert!(most.load(SeqCst) <= LIMIT as u64, "{most:?} pages stood at a time");
    let stats = registry.stats();
    assert_eq!(stats.pinned_bytes, standing.load(SeqCst) * PAGE as u64);
    assert!(stats.evictions > 1_000, "{stats:?}");
    registry.flush().unwrap();
    assert_eq!((standing.load(SeqCst), registry.stats().pinned_bytes), (0, 0));
    assert_eq!(registry.budget().pinned(), 0);
}

/// Whoever waits until something is deregistered does not wait for the
/// registration that comes in its place, however long that takes.
#[test]
fn a_flush_does_not_wait_for_a_registration() {
    let (begun, has_begun) = mpsc::channel();
    let (flushed, has_flushed) = mpsc::channel();
    let has_flushed = std::sync::Mutex::new(has_flushed);
    let wait: Work = Arc::new(move |_| {
        begun.send(()).unwrap();
        has_flushed.lock().unwrap().recv_timeout(Duration::from_secs(10)).expect("the flush waited");
    });
    let backend = Faulty::over(Device::new().backend())
        .registering(move |nth| (nth == 1).then(|| Fault::Run(wait.clone())));
    let registry = Registry::builder().backend(backend).max_regions(1).build().unwrap();
    let pages = Pages::new(3);
    drop(read(&registry, pages.part(0, 1)));
    std::thread::scope(|scope| {
        scope.spawn(|| drop(read(&registry, pages.part(2, 1))));
        has_begun.recv_timeout(Duration::from_secs(10)).unwrap();
        registry.flush().unwrap();
        flushed.send(()).unwrap();
    });
}

/// Invariant 4: however many changes are pending, none is lost, and each takes out
/// what it touched and nothing else.
#[test]
fn ten_thousand_pending_changes_take_out_what_they_touched() {
    let ring = Arc::new(IoUring::new(16_384).unwrap());
    let registry = registry(ring.clone());
    const COUNT: usize = 10_000;
    let mut pages = Pages::new(2 * COUNT);
    pages.fill(1);
    for index in 0..COUNT {
        drop(read(&registry, pages.part(2 * index, 1)));
    }
    let changed = |index: usize| !index.is_multiple_of(20);
    for index in (0..COUNT).filter(|&index| changed(index)) {
        let (at, len) = pages.part(2 * index, 1);
        // SAFETY: the test's own page.
        unsafe { libc::madvise(at as *mut _, len, libc::MADV_DONTNEED) };
    }
    let before = registry.stats();
    pages.fill(2);
    for index in 0..COUNT {
        let part = pages.part(2 * index, 1);
        let lease = read(&registry, part);
        assert_eq!(through(&ring, lease.key(), part.0.addr()), 2, "event {index} was lost");
    }
    let after = registry.stats();
    assert_eq!(after.registrations - before.registrations, (COUNT - COUNT / 20) as u64);
    assert_eq!(after.flushes, 0);
}

/// Events so wide that a hook leaves them to the registry, more of them than fit: what
/// they cover goes, the last of them included, what lies beside stays, and nobody waits for
/// all of it.
#[test]
fn more_wide_events_than_fit_take_out_what_they_cover() {
    const COUNT: usize = 20_000;
    for events in [1, 100, 1000, 10_000] {
        let device = Device::new();
        let registry = registry(device.backend());
        let made = || device.counts().0;
        let at = |index: usize| ((1usize << 40) + 2 * index * PAGE) as *const u8;
        for index in 0..COUNT {
            drop(read(&registry, (at(index), PAGE)));
        }
        let beside = (at(COUNT), PAGE);
        drop(read(&registry, beside));
        // Each holds one region more than those before it.
        for event in 1..=events {
            pinyard_hooks::notify_unmapped(at(0), at(COUNT - events + event).addr() - at(0).addr());
        }
        assert_eq!(registry.lookup((at(COUNT - 1), PAGE), Access::LOCAL_READ), None);
        const SOME: u64 = COUNT.div_ceil(997) as u64;
        let read_some = || {
            let before = made();
            (0..COUNT).rev().step_by(997).for_each(|index| drop(read(&registry, (at(index), PAGE))));
            made() - before
        };
        assert_eq!(read_some(), SOME, "found what had changed");
        let before = made();
        drop(read(&registry, beside));
        let (flushes, overflows) = (registry.stats().flushes, registry.stats().overflows);
        assert!((1..=events as u64).contains(&overflows), "{overflows} of {events}");
        assert_eq!((made() - before, flushes), (0, 0), "{events} events took out what lies beside");
        eventually(|| registry.stats().regions == SOME + 1 && registry.stats().graveyard == 0);
        assert_eq!(read_some(), 0, "a late event took out what is newer");
    }
}

/// A backend that is out of room gets what is only cached back, then another try.
#[test]
fn an_exhausted_backend_is_squeezed() {
    let device = Device::new();
    let tight = Limits { max_region_bytes: usize::MAX, max_regions: 100 };
    let backend = Faulty::over(device.backend().with_limits(tight))
        .registering(|nth| (nth == 3).then_some(Fault::Fail(libc::ENOMEM)));
    let registry = registry(backend);
    let pages = Pages::new(8);
    for index in [0, 2, 4, 6] {
        drop(read(&registry, pages.part(index, 1)));
    }
    let stats = registry.stats();
    assert_eq!((stats.evictions, stats.registrations, stats.regions), (3, 4, 1));
}

#[test]
fn a_failing_registration_leaves_the_cache_usable() {
    let device = Device::new();
    let backend =
        Faulty::over(device.backend()).registering(|nth| (nth == 0).then_some(Fault::Fail(libc::EIO)));
    let registry = registry(backend);
    let pages = Pages::new(1);
    let error = registry.get(&pages, Access::LOCAL_READ).unwrap_err();
    assert!(error.to_string().contains("errno 5"), "{error}");
    assert_eq!(registry.stats().pinned_bytes, 0);
    drop(read(&registry, &pages));
}

#[test]
fn a_failing_deregistration_is_counted_and_not_repeated() {
    let backend = Faulty::over(Device::new().backend()).deregistering(|_| Some(Fault::Fail(libc::EIO)));
    let registry = registry(backend);
    let pages = Pages::new(1);
    drop(read(&registry, &pages));
    registry.flush().unwrap();
    registry.flush().unwrap();
    let stats = registry.stats();
    assert_eq!((stats.failed_deregistrations, stats.deregistrations, stats.pinned_bytes), (1, 1, 0));
}

/// A custom backend's panic reaches its caller and nothing waits for it.
#[test]
fn a_panicking_backend_hangs_nobody() {
    let panic: Work = Arc::new(|_| panic!("by plan"));
    let backend = Faulty::over(Device::new().backend())
        .registering(move |nth| (nth == 0).then(|| Fault::Run(panic.clone())));
    let registry = registry(backend);
    let pages = Pages::new(1);
    let get = || drop(registry.get(&pages, Access::LOCAL_READ));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(get)).is_err());
    drop(read(&registry, &pages));
}

/// A backend that uses its own registry, on the same and on other memory.
#[test]
fn a_backend_may_call_the_registry() {
    let cell: Arc<std::sync::OnceLock<Registry>> = Arc::default();
    let (inner, other) = (cell.clone(), Pages::new(1));
    let at = other.at;
    let reenter: Work = Arc::new(move |range| {
        if let Some(registry) = inner.get() {
            drop(registry.get((at as *const u8, PAGE), Access::LOCAL_READ).unwrap());
            registry.invalidate((range.end as *const u8, PAGE)).unwrap();
            assert!(registry.stats().misses > 0);
        }
    });
    let backend = Faulty::over(Device::new().backend())
        .registering(move |nth| (nth % 2 == 0).then(|| Fault::Run(reenter.clone())));
    cell.set(registry(backend)).ok().unwrap();
    let pages = Pages::new(4);
    drop(read(cell.get().unwrap(), pages.part(0, 2)));
    drop(read(cell.get().unwrap(), pages.part(3, 1)));
}

#[test]
fn merging_takes_the_access_and_the_range_of_what_it_replaces() {
    let device = Device::new();
    let registry = registry(device.backend());
    let pages = Pages::new(8);
    drop(registry.get(pages.part(0, 2), Access::LOCAL_WRITE).unwrap());
    drop(registry.get(pages.part(4, 2), Access::REMOTE_READ).unwrap());
    let merged = registry.get(pages.part(1, 4), Access::LOCAL_READ).unwrap();
    assert_eq!((merged.base(), merged.len()), (pages.at, 6 * PAGE));
    let both = Access::LOCAL_WRITE | Access::REMOTE_READ;
    assert_eq!(registry.get(pages.part(0, 6), both).unwrap().key(), merged.key());
    assert_eq!((registry.stats().merges, device.counts().0), (2, 3));
}

/// A neighbour that cannot be written must not spoil a registration beside it.
#[test]
fn a_merge_that_fails_is_given_up_for_the_range_alone() {
    let registry = registry(Mlock::new());
    let mut pages = Pages::new(4);
    pages.fill(1);
    drop(registry.get(pages.part(0, 2), Access::LOCAL_READ).unwrap());
    // SAFETY: the test's own page.
    unsafe { libc::mprotect(pages.at as *mut _, PAGE, libc::PROT_READ) };
    let lease = registry.get(pages.part(1, 2), Access::LOCAL_WRITE).unwrap();
    assert_eq!((lease.base(), lease.len()), (pages.at + PAGE, 2 * PAGE));
}

/// The device may be closed as soon as the drop returns, though the reaper is just
/// then deregistering something.
#[test]
fn nothing_is_registered_once_the_last_handle_is_gone() {
    let device = Device::new();
    let (begun, has_begun) = mpsc::channel();
    let slow: Work = Arc::new(move |_| {
        let _ = begun.send(());
        std::thread::sleep(Duration::from_millis(50));
    });
    let backend =
        Faulty::over(device.backend()).deregistering(move |nth| (nth == 0).then(|| Fault::Run(slow.clone())));
    let registry = registry(backend);
    let (gone, kept) = (Pages::new(1), Pages::new(1));
    drop(read(&registry, &gone));
    drop(read(&registry, &kept));
    gone.advise(libc::MADV_DONTNEED);
    has_begun.recv_timeout(Duration::from_secs(10)).unwrap();
    drop(registry);
    assert_eq!(device.counts(), (2, 2));
}

#[test]
fn an_owned_lease_outlives_the_registry_handle() {
    let device = Device::new();
    let registry = registry(device.backend());
    let pages = Pages::new(1);
    let owned = read(&registry, &pages).into_owned();
    drop(registry);
    assert_eq!(device.counts(), (1, 0));
    assert_eq!(owned.len(), PAGE);
    drop(owned);
    eventually(|| device.counts() == (1, 1));
}

/// A child finds neither the parent's registrations nor its lock held.
#[test]
fn a_forked_child_is_refused_and_does_not_hang() {
    let device = Device::new();
    let registry = registry(device.backend());
    let pages = Pages::new(1);
    drop(read(&registry, &pages));
    // SAFETY: the child ends with _exit and touches only this test's memory.
    let status = unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::alarm(10);
            let refused = matches!(registry.get(&pages, Access::LOCAL_READ), Err(GetError::Forked));
            pages.advise(libc::MADV_DONTNEED);
            drop(registry);
            libc::_exit(if refused && device.counts() == (1, 0) { 0 } else { 1 });
        }
        let mut status = 0;
        libc::waitpid(pid, &mut status, 0);
        status
    };
    assert_eq!(status, 0);
    drop(read(&registry, &pages));
    assert_eq!(registry.stats().misses, 1, "the parent's registration is untouched");
}

/// A union that does not fit must not cost the request that does.
#[test]
fn what_fits_alone_is_not_refused_for_its_neighbours() {
    let registry = Registry::builder().backend(Device::new().backend()).budget(16 * PAGE).build().unwrap();
    let pages = Pages::new(32);
    drop(read(&registry, pages.part(0, 12)));
    let idle = read(&registry, pages.part(11, 6)); // union: 17 pages
    assert_eq!(idle.len(), 6 * PAGE);
    drop(idle);
    registry.flush().unwrap();
    let held = read(&registry, pages.part(0, 8));
    let beside = read(&registry, pages.part(7, 4)); // union: 11 more pages
    assert_eq!(beside.len(), 4 * PAGE);
    drop((held, beside));
}
