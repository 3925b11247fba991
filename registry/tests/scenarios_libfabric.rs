//! The black-box cases that libfabric's and Open MPI's caches are judged by
//! (fabtests `mr_cache_evict`, `unmap_mem`; the incidents behind them), asked of
//! ours. `docs/src/scenarios.md` has the whole list, a to k.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{BackendError, Custom, Fault, Faulty, IoUring, Work};
use pinyard_registry::{Access, Lease, MemoryKey, Registry};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock};

/// Case a: hit, containment, and overlap from below, from above and from both sides.
#[test]
fn hit_containment_hit_and_overlap_from_either_side() {
    for (first, count) in [(4, 4), (5, 1), (7, 1)] {
        let device = Device::new();
        let registry = registry_over(device.backend());
        let pages = Pages::new(12);
        let whole = read(&registry, pages.part(4, 4)).key();
        assert_eq!(read(&registry, pages.part(first, count)).key(), whole);
        assert_eq!((device.counts().0, registry.stats().hits), (1, 1));
    }
    for (first, count, union) in [(2, 3, (2, 6)), (7, 3, (4, 6)), (3, 6, (3, 6))] {
        let registry = registry_over(Device::new().backend());
        let pages = Pages::new(12);
        drop(read(&registry, pages.part(4, 4)));
        let lease = read(&registry, pages.part(first, count));
        let expected = pages.part(union.0, union.1);
        assert_eq!((lease.base(), lease.len()), (expected.0.addr(), expected.1));
        assert_eq!(registry.stats().regions, 1, "no two regions overlap");
    }
}

/// Pages that change whenever somebody looks away: the event, made by the thread
/// that is inside the registry at that moment.
struct Fickle {
    pages: Pages,
    times: AtomicU64,
}

impl Fickle {
    fn new() -> Arc<Fickle> {
        Arc::new(Fickle { pages: Pages::new(8), times: AtomicU64::new(0) })
    }

    /// The lower half changes; what is registered of the upper half stands still.
    fn change(&self) {
        self.times.fetch_add(1, SeqCst);
        let (at, len) = self.pages.part(0, 4);
        // SAFETY: the test's own pages, of which nobody needs the bytes.
        unsafe { libc::madvise(at as *mut _, len, libc::MADV_DONTNEED) };
        drop(std::hint::black_box(vec![1u8; 5000]));
    }
}

/// Case d: events from inside register and deregister, which merge, eviction,
/// invalidation, flush and the reaper call; two and three levels deep.
#[test]
fn events_from_inside_register_deregister_and_evict() {
    or_be_killed();
    let fickle = Fickle::new();
    let cell: Arc<OnceLock<Registry>> = Arc::default();
    let (inner, other) = (cell.clone(), fickle.clone());
    thread_local! { static DEPTH: Cell<u32> = const { Cell::new(0) }; }
    let meddle: Work = Arc::new(move |_| {
        other.change();
        if DEPTH.get() < 2 {
            DEPTH.set(DEPTH.get() + 1);
            let registry = inner.get().unwrap();
            // Registered inside a registration; the first changes while it is, each time.
            let page = if DEPTH.get() == 1 { 1 } else { 5 };
            let inside = registry.get(other.pages.part(page, 1), Access::LOCAL_READ);
            assert!(page == 1 || inside.is_ok());
            registry.stats();
            DEPTH.set(DEPTH.get() - 1);
        }
    });
    let also = meddle.clone();
    let backend = Faulty::over(Device::new().backend())
        .registering(move |_| Some(Fault::Run(meddle.clone())))
        .deregistering(move |_| Some(Fault::Run(also.clone())));
    let registry = cell.get_or_init(|| builder_over(backend).budget(20 * PAGE).build().unwrap());
    let pages = Pages::new(64);
    for round in 0..10 {
        for index in 0..8 {
            drop(registry.get(pages.part(6 * index, 1 + round % 3), Access::LOCAL_READ));
        }
        drop(read(registry, pages.part(0, 8)));
        registry.invalidate(pages.part(6 * (round % 8), 1)).unwrap();
    }
    let stats = registry.stats();
    assert!(stats.evictions > 0 && stats.merges > 0 && stats.invalidations > 0, "{stats:?}");
    assert!(fickle.times.load(SeqCst) > 500);
}

/// What a program's log callback may do: change registered memory, and ask the
/// registry.
struct Meddling {
    work: Arc<dyn Fn() + Send + Sync>,
    lines: Arc<AtomicUsize>,
}

impl tracing::Subscriber for Meddling {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.lines.fetch_add(1, SeqCst);
        (self.work)();
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Case d once more: who waited for an invalidation changes mappings, registers and
/// invalidates again, from the `get` that gave the room back and from `invalidate_then`.
#[test]
fn events_from_inside_the_callback_of_an_invalidate() {
    or_be_killed();
    let (fickle, calls) = (Fickle::new(), Arc::new(AtomicU64::new(0)));
    let registry = builder_over(Device::new().backend()).budget(8 * PAGE).build().unwrap();
    let pages = Pages::new(16);
    let invalidate = || {
        let (inside, same, calls) = (registry.clone(), fickle.clone(), calls.clone());
        let done = move || {
            let lease = read(&inside, same.pages.part(4, 1));
            same.change();
            drop(lease);
            inside.invalidate(same.pages.all()).unwrap();
            assert!(inside.stats().misses > 0);
            calls.fetch_add(1, SeqCst);
        };
        registry.invalidate_then(pages.all(), done).unwrap();
    };
    for round in 1..=50 {
        let held = read(&registry, pages.part(0, 4));
        invalidate();
        drop(held);
        // The room of the first is needed, so that this thread takes it back.
        drop(read(&registry, pages.part(8, 8)));
        eventually(|| calls.load(SeqCst) == 2 * round - 1);
        invalidate();
        eventually(|| calls.load(SeqCst) == 2 * round);
    }
    assert_eq!(fickle.times.load(SeqCst), 100, "each ran once");
}

/// Case d, and UCX #8265: a line of log was a deadlock.
#[test]
fn events_from_inside_the_log_callback() {
    or_be_killed();
    let backend = Faulty::over(Device::new().backend()).deregistering(|_| Some(Fault::Fail(libc::EIO)));
    let registry = registry_over(backend);
    let (fickle, lines) = (Fickle::new(), Arc::new(AtomicUsize::new(0)));
    let (inside, same) = (registry.clone(), fickle.clone());
    let work = Arc::new(move || {
        let lease = read(&inside, &same.pages);
        same.change();
        drop(lease);
        assert!(inside.stats().misses > 0);
    });
    let pages = Pages::new(2);
    let subscriber = Meddling { work, lines: lines.clone() };
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..10 {
            drop(read(&registry, &pages));
            registry.invalidate(&pages).unwrap();
        }
    });
    assert!(lines.load(SeqCst) > 0, "the failed deregistrations were logged on this thread");
    assert_eq!(lines.load(SeqCst) as u64, fickle.times.load(SeqCst));
}

static VERSION: AtomicU64 = AtomicU64::new(0);
static TARGET: AtomicUsize = AtomicUsize::new(0);

/// New pages in place of the old, with the next version in them.
extern "C" fn replace_the_pages(_: i32) {
    let version = VERSION.load(SeqCst) + 1;
    let at = TARGET.load(SeqCst);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the test's own pages, at addresses that nobody else is given; the
    // calls are async-signal-safe.
    unsafe {
        assert_eq!(libc::munmap(at as *mut _, PAGE), 0);
        let mapped = libc::mmap(at as *mut _, PAGE, protection, flags | libc::MAP_FIXED_NOREPLACE, -1, 0);
        assert_eq!(mapped as usize, at);
        (at as *mut u8).write_volatile(version as u8);
    }
    VERSION.store(version, SeqCst);
}

fn block(signal: i32, how: i32) {
    // SAFETY: a set that is made empty, for this thread alone.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        assert_eq!(libc::pthread_sigmask(how, &set, std::ptr::null_mut()), 0);
    }
}

/// Case h: a handler unmaps a registered page and maps another while its thread
/// is inside `get` or `stats` (case d), judged by the bytes that the device sees.
#[test]
fn a_signal_handler_that_unmaps_a_registered_page_during_get() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = registry_over(ring.clone());
    let pages = Pages::apart(1);
    TARGET.store(pages.at, SeqCst);
    // SAFETY: the handler is async-signal-safe; pthread_self has no preconditions.
    let main = unsafe {
        libc::signal(libc::SIGALRM, replace_the_pages as *const () as usize);
        libc::pthread_self()
    };
    let done = AtomicBool::new(false);
    let (mut looks, mut interrupted, mut interrupted_stats, mut served) = (0, 0, 0, 0);
    std::thread::scope(|scope| {
        let _finally = Finally(&done);
        scope.spawn(|| {
            for number in 0_u64.. {
                if done.load(SeqCst) {
                    return;
                }
                // SAFETY: the thread lives until the scope ends.
                unsafe { libc::pthread_kill(main, libc::SIGALRM) };
                // Sometimes long enough for a get on a slow machine as well.
                let pause = if number % 4 == 0 { 600 } else { 60 };
                std::thread::sleep(std::time::Duration::from_micros(pause));
            }
        });
        while VERSION.load(SeqCst) < 3000 || served < 1000 || interrupted.min(interrupted_stats) < 10 {
            looks += 1;
            // Every other time the counters are asked for longer than `get` takes.
            let in_stats = VERSION.load(SeqCst);
            (0..20 * (looks % 2)).for_each(|_| _ = std::hint::black_box(registry.stats()));
            interrupted_stats += usize::from(VERSION.load(SeqCst) != in_stats);
            let before = VERSION.load(SeqCst);
            let lease = registry.get(&pages, Access::LOCAL_READ);
            block(libc::SIGALRM, libc::SIG_BLOCK);
            let now = VERSION.load(SeqCst);
            if now != before {
                interrupted += 1;
            } else if let Ok(lease) = &lease {
                served += 1;
                let seen = through(&ring, lease.key(), pages.at);
                assert_eq!(seen, now as u8, "old pages: version {now}");
            }
            drop(lease);
            block(libc::SIGALRM, libc::SIG_UNBLOCK);
        }
    });
}

/// Case k: an event that is applied late leaves alone what was registered after it.
#[test]
fn late_delivery_does_not_take_out_a_newer_entry() {
    // More than a hook marks and a `get` retires, so that the registry has the rest to do later.
    const MANY: usize = 1000;
    let device = Device::new();
    let registry = registry_over(device.backend());
    let pages = Pages::new(12 + 2 * MANY);
    let (beside, entry) = (pages.part(6, 1), pages.part(8 + 2 * MANY, 2));
    drop(read(&registry, beside));
    for round in 0..48 {
        let wide = round % 2 == 0;
        if wide {
            (0..MANY).for_each(|number| drop(read(&registry, pages.part(8 + 2 * number, 1))));
        }
        let made = device.counts().0;
        // Older than the entry, which is there or not; nobody has looked since.
        let (from, _) = if wide { pages.part(8, 1) } else { entry };
        pinyard_hooks::notify_unmapped(from, entry.0.addr() + 2 * PAGE - from.addr());
        let newer = read(&registry, entry).key();
        assert_eq!(device.counts().0, made + 1);
        // What the event has taken out is buried, and its place used again.
        registry.invalidate_then(pages.part(0, 3), || ()).unwrap();
        let others = [0, 2].map(|page| read(&registry, pages.part(page, 1)).key());
        // Whatever applies events from now on:
        match round / 2 % 4 {
            0 => registry.invalidate(pages.part(4, 1)).unwrap(),
            1 => drop(registry.stats()),
            2 => drop(read(&registry, beside)),
            _ => std::thread::sleep(std::time::Duration::from_millis(30)),
        }
        assert_eq!(read(&registry, entry).key(), newer, "round {round}");
        assert_eq!([0, 2].map(|page| read(&registry, pages.part(page, 1)).key()), others, "round {round}");
    }
    let stats = registry.stats();
    assert!(stats.overflows > 0 && stats.flushes == 0, "{stats:?}");
}

/// Open MPI #11125: a cache over a cache. The upper one's entries hold the lower
/// one's; an event takes out both, and what is found afterwards is new in both.
#[test]
fn two_caches_stacked() {
    let ring = Arc::new(IoUring::new(64).unwrap());
    let lower = registry_over(ring.clone());
    let held: Arc<Mutex<Vec<Option<pinyard_registry::OwnedLease>>>> = Arc::default();
    let (taking, giving, below) = (held.clone(), held.clone(), lower.clone());
    let stacked = Custom::new(
        "stacked",
        move |range, access| {
            let lease = below.get((range.start as *const u8, range.len()), access);
            // Out of room below: the upper one gives back what it has retired, and asks again.
            let lease = lease.map_err(|error| BackendError::new(error.to_string(), libc::ENOMEM))?;
            let lease = lease.into_owned();
            let mut held = taking.lock().unwrap();
            let MemoryKey { lkey, .. } = lease.key();
            held.push(Some(lease));
            Ok(MemoryKey { lkey, rkey: 0, handle: held.len() as u64 - 1 })
        },
        move |key: MemoryKey, _| {
            drop(giving.lock().unwrap()[key.handle as usize].take());
            Ok(())
        },
    );
    let upper = registry_over(stacked);
    let mut pages = Pages::new(2);
    for version in 1..100 {
        pages.fill(version);
        let lease: Lease = read(&upper, &pages);
        assert_eq!(through(&ring, lease.key(), pages.at), version);
        drop(lease);
        pages.map_over();
    }
    drop(pages);
    eventually(|| upper.stats().pinned_bytes == 0 && lower.stats().pinned_bytes == 0);
    assert!(held.lock().unwrap().iter().all(Option::is_none), "each lower lease was given back");
}
