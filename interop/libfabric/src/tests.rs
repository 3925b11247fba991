//! The monitor under a model of libfabric's cache, through the same function
//! pointers and the same lock as the real one.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

use super::import::Imported;
use super::monitor::Monitor;
use core::ffi::c_void;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;

const PAGE: usize = 4096;

/// Counts what is allocated where nothing may be: under `mm_lock`.
struct Watched;
thread_local! {
    static UNDER_MM_LOCK: Cell<bool> = const { Cell::new(false) };
    static ALLOCATED_UNDER_MM_LOCK: Cell<u64> = const { Cell::new(0) };
}

fn watch() {
    if UNDER_MM_LOCK.get() {
        ALLOCATED_UNDER_MM_LOCK.set(ALLOCATED_UNDER_MM_LOCK.get() + 1);
    }
}

// SAFETY: passes every call to `System`.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        watch();
        // SAFETY: the caller's contract is System's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        watch();
        // SAFETY: the caller's contract is System's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// Runs `callback` as libfabric does: with `mm_lock` held.
fn under_mm_lock<R>(mm_lock: &Mutex<()>, callback: impl FnOnce() -> R) -> R {
    let guard = mm_lock.try_lock().expect("mm_lock is not recursive: this hangs in libfabric");
    UNDER_MM_LOCK.set(true);
    let result = callback();
    UNDER_MM_LOCK.set(false);
    drop(guard);
    result
}

/// Memory whose pages have generations: a registration that was made in an older
/// generation refers to pages that are gone.
struct Memory {
    base: usize,
    generations: Vec<u64>,
}

impl Memory {
    /// `pages` pages that nothing is mapped at; between the heap and the
    /// libraries, where the hooks' self-test publishes nothing, and in granules
    /// that share no counter of the filter with another test's.
    fn new(nth: usize, pages: usize) -> Memory {
        Memory { base: 0x6000_0000_0000 + (nth << 28), generations: vec![0; pages] }
    }

    fn at(&self, page: usize, pages: usize) -> (usize, usize) {
        (self.base + page * PAGE, pages * PAGE)
    }

    /// What a hook does around munmap and mmap of the same place.
    fn remap(&mut self, page: usize, pages: usize) {
        let (base, len) = self.at(page, pages);
        pinyard_hooks::notify_unmapped(base as *const u8, len);
        self.remap_unseen(page, pages);
    }

    /// The same by a way that escapes the hooks.
    fn remap_unseen(&mut self, page: usize, pages: usize) {
        self.generations[page..page + pages].iter_mut().for_each(|generation| *generation += 1);
    }

    fn under(&self, (base, len): (usize, usize)) -> Vec<u64> {
        let first = (base - self.base) / PAGE;
        self.generations[first..first + len / PAGE].to_vec()
    }
}

#[derive(Debug, PartialEq)]
enum Found {
    Hit,
    Registered,
}

/// One domain's cache, as `prov/util/src/util_mr_cache.c` of 1.17 keeps it.
#[derive(Default)]
struct Cache {
    entries: BTreeMap<(usize, usize), Vec<u64>>,
}

/// The process's libfabric with one imported monitor.
struct Libfabric {
    imported: Box<Imported>,
    mm_lock: Mutex<()>,
    caches: Mutex<Vec<Cache>>,
}

impl Libfabric {
    fn new(caches: usize, keys: usize) -> Libfabric {
        let monitor = Monitor::new(pinyard_hooks::subscribe().unwrap(), keys).unwrap();
        let caches = (0..caches).map(|_| Cache::default()).collect();
        Libfabric { imported: Imported::new(monitor), mm_lock: Mutex::new(()), caches: Mutex::new(caches) }
    }

    fn monitor(&self) -> &Monitor {
        self.imported.monitor()
    }

    /// SAFETY of the calls below: the table of functions is static, and each gets
    /// the structure that it belongs to.
    fn valid(&self, (base, len): (usize, usize)) -> bool {
        let fid = self.imported.fid();
        // SAFETY: see above.
        under_mm_lock(&self.mm_lock, || unsafe {
            ((*(*fid).export_ops).valid)(fid, base as *const c_void, len)
        })
    }

    fn subscribe(&self, (base, len): (usize, usize)) -> bool {
        let fid = self.imported.fid();
        // SAFETY: see above.
        under_mm_lock(&self.mm_lock, || unsafe {
            ((*(*fid).export_ops).subscribe)(fid, base as *const c_void, len) == 0
        })
    }

    /// `fi_mr_reg` on `cache`, then `fi_close`. Fails on a stale hit.
    fn register(&self, memory: &Memory, cache: usize, range: (usize, usize)) -> Found {
        let (base, len) = range;
        let mut caches = self.caches.lock().unwrap();
        let entries = &mut caches[cache].entries;
        // The tree's order finds an entry that lies in the range or contains it.
        let nested = |&(start, length): &(usize, usize)| {
            (start <= base && base + len <= start + length) || (base <= start && start + length <= base + len)
        };
        let found = entries.keys().copied().find(nested);
        if let Some(key) = found
            && key.0 <= base
            && base + len <= key.0 + key.1
            && self.valid(key)
        {
            assert_eq!(entries[&key], memory.under(key), "stale hit on {key:x?} in cache {cache}");
            return Found::Hit;
        }
        entries.retain(|key, _| !nested(key));
        let registered = memory.under(range);
        if self.subscribe(range) {
            entries.insert(range, registered);
        }
        Found::Registered
    }

    /// What the eviction of an old entry tells the monitor: nothing.
    fn evict(&self, cache: usize, nth: usize) {
        let mut caches = self.caches.lock().unwrap();
        let entries = &mut caches[cache].entries;
        if let Some(key) = entries.keys().nth(nth).copied() {
            entries.remove(&key);
        }
    }

    /// Two rounds of the helper: what is stale in the first leaves in the second.
    fn deliver(&self) {
        self.round();
        self.round();
    }

    fn round(&self) {
        self.monitor().deliver(|base, len| {
            let _guard = self.mm_lock.try_lock().expect("no callback runs");
            for cache in self.caches.lock().unwrap().iter_mut() {
                cache.entries.retain(|key, _| key.0 + key.1 <= base || base + len <= key.0);
            }
        });
    }

    fn cached(&self, cache: usize) -> usize {
        self.caches.lock().unwrap()[cache].entries.len()
    }
}

#[test]
fn one_registration_serves_until_the_pages_change() {
    let (mut memory, libfabric) = (Memory::new(0, 64), Libfabric::new(1, 64));
    let buffer = memory.at(0, 63);
    assert_eq!(libfabric.register(&memory, 0, buffer), Found::Registered);
    // What an earlier owner of the sink left in it was drained just now.
    let left_over = libfabric.monitor().stats().events;
    for _ in 0..200 {
        assert_eq!(libfabric.register(&memory, 0, buffer), Found::Hit);
    }
    for _ in 0..200 {
        memory.remap(62, 1);
        assert_eq!(libfabric.register(&memory, 0, buffer), Found::Registered);
        assert_eq!(libfabric.register(&memory, 0, buffer), Found::Hit, "a late event took out a newer entry");
    }
    memory.remap(63, 1);
    assert_eq!(libfabric.register(&memory, 0, buffer), Found::Hit, "the next page is none of it");
    let stats = libfabric.monitor().stats();
    assert_eq!((stats.valid_calls, stats.stale_answers, stats.subscriptions), (601, 200, 201));
    assert_eq!((stats.events - left_over, stats.refusals, stats.keys), (201, 0, 1));
}

/// The event is still in the inbox when the next range over it is subscribed.
#[test]
fn an_event_older_than_the_subscription_leaves_it_alone() {
    let (mut memory, libfabric) = (Memory::new(1, 64), Libfabric::new(1, 64));
    let (old, new) = (memory.at(0, 8), memory.at(4, 8));
    assert_eq!(libfabric.register(&memory, 0, old), Found::Registered);
    memory.remap(4, 4);
    assert_eq!(libfabric.register(&memory, 0, new), Found::Registered, "not nested: valid() is not asked");
    assert_eq!(libfabric.register(&memory, 0, new), Found::Hit);
    assert_eq!(libfabric.register(&memory, 0, old), Found::Registered);
}

#[test]
fn a_second_domain_gets_no_stale_entry() {
    let (mut memory, libfabric) = (Memory::new(2, 64), Libfabric::new(2, 64));
    let buffer = memory.at(0, 8);
    libfabric.register(&memory, 0, buffer);
    libfabric.register(&memory, 1, buffer);
    memory.remap(0, 1);
    assert_eq!(libfabric.register(&memory, 0, buffer), Found::Registered);
    assert_eq!(libfabric.register(&memory, 1, buffer), Found::Registered);
    // An entry that its cache never asks about again must not be revived either.
    libfabric.register(&memory, 0, buffer);
    memory.remap(0, 1);
    for _ in 0..3 {
        libfabric.register(&memory, 1, buffer);
    }
    assert_eq!(libfabric.register(&memory, 0, buffer), Found::Registered);
}

#[test]
fn the_helper_empties_the_caches_of_what_nobody_asks_about() {
    let (mut memory, libfabric) = (Memory::new(3, 64), Libfabric::new(2, 64));
    for page in 0..32 {
        libfabric.register(&memory, 0, memory.at(page, 1));
        libfabric.register(&memory, 1, memory.at(page, 1));
    }
    libfabric.deliver();
    assert_eq!(libfabric.cached(0), 32, "nothing has changed");
    memory.remap(0, 16);
    libfabric.deliver();
    assert_eq!((libfabric.cached(0), libfabric.cached(1)), (16, 16));
    let stats = libfabric.monitor().stats();
    assert_eq!((stats.keys, stats.deliveries), (16, 16));
    assert_eq!(libfabric.register(&memory, 1, memory.at(0, 1)), Found::Registered);
    assert_eq!(libfabric.register(&memory, 1, memory.at(0, 1)), Found::Hit, "afresh after the delivery");
}

/// The scenario of 400 hits in 400 rounds: a round of the helper between the change
/// and the next lookup takes nothing away that the lookup then makes anew.
#[test]
fn the_helper_keeps_out_of_what_is_looked_up_again() {
    let (mut memory, libfabric) = (Memory::new(10, 64), Libfabric::new(1, 64));
    let buffer = memory.at(0, 8);
    for _ in 0..400 {
        assert_eq!(libfabric.register(&memory, 0, buffer), Found::Registered);
        libfabric.round();
        assert_eq!(libfabric.register(&memory, 0, buffer), Found::Hit);
        memory.remap(0, 8);
        libfabric.round();
    }
    assert_eq!(libfabric.monitor().stats().refusals, 0);
}

#[test]
fn more_events_than_an_inbox_holds_invalidate_what_they_touched() {
    let (mut memory, libfabric) = (Memory::new(4, 40_000), Libfabric::new(1, 64));
    let (rest, last, beside) = (memory.at(0, 19_999), memory.at(19_999, 1), memory.at(39_999, 1));
    libfabric.register(&memory, 0, rest);
    libfabric.register(&memory, 0, last);
    libfabric.register(&memory, 0, beside);
    for page in 0..20_000 {
        memory.remap(page, 1);
    }
    assert_eq!(libfabric.register(&memory, 0, last), Found::Registered, "its own event found no place");
    assert_eq!(libfabric.register(&memory, 0, last), Found::Hit);
    assert_eq!(libfabric.register(&memory, 0, rest), Found::Registered);
    assert_eq!(libfabric.register(&memory, 0, beside), Found::Hit);
}

#[test]
fn a_full_table_means_uncached_until_the_helper_has_been() {
    let (mut memory, libfabric) = (Memory::new(5, 64), Libfabric::new(1, 4));
    for page in 0..8 {
        libfabric.register(&memory, 0, memory.at(page, 1));
    }
    assert_eq!((libfabric.cached(0), libfabric.monitor().stats().refusals), (4, 4));
    memory.remap(0, 8);
    for page in 0..8 {
        assert_eq!(libfabric.register(&memory, 0, memory.at(page, 1)), Found::Registered);
    }
    libfabric.deliver();
    assert_eq!((libfabric.cached(0), libfabric.monitor().stats().keys), (0, 0), "all dropped, once");
    assert_eq!(libfabric.register(&memory, 0, memory.at(7, 1)), Found::Registered);
    assert_eq!(libfabric.register(&memory, 0, memory.at(7, 1)), Found::Hit);
}

#[test]
fn distrust_answers_no_and_regained_trust_starts_afresh() {
    let (mut memory, libfabric) = (Memory::new(6, 8), Libfabric::new(2, 4));
    let buffer = memory.at(0, 8);
    libfabric.register(&memory, 0, buffer);
    libfabric.register(&memory, 1, buffer);
    libfabric.monitor().trust(false);
    assert_eq!(libfabric.register(&memory, 0, buffer), Found::Registered);
    assert_eq!(libfabric.cached(0), 0, "refused while calls escape");
    memory.remap_unseen(0, 1);
    libfabric.monitor().trust(true);
    assert_eq!(libfabric.register(&memory, 1, buffer), Found::Registered);
    libfabric.deliver();
    assert_eq!(libfabric.register(&memory, 0, buffer), Found::Registered);
    assert_eq!(libfabric.register(&memory, 0, buffer), Found::Hit);
}

#[test]
fn the_last_cache_takes_its_keys_along() {
    let (memory, libfabric) = (Memory::new(7, 8), Libfabric::new(1, 4));
    let (fid, buffer) = (libfabric.imported.fid(), memory.at(0, 8));
    libfabric.register(&memory, 0, buffer);
    // SAFETY: as for `valid`.
    unsafe { ((*(*fid).export_ops).stop)(fid) };
    assert_eq!(libfabric.monitor().stats().keys, 0);
    assert!(!libfabric.valid(buffer));
}

#[test]
fn start_says_whether_the_hooks_are_complete() {
    let (memory, libfabric) = (Memory::new(8, 8), Libfabric::new(1, 4));
    let fid = libfabric.imported.fid();
    let complete = pinyard_hooks::verify();
    assert!(!libfabric.monitor().is_attached(), "no cache has asked for it");
    // SAFETY: as for `valid`.
    assert_eq!(unsafe { ((*(*fid).export_ops).start)(fid) } == 0, complete);
    assert!(libfabric.monitor().is_attached());
    libfabric.register(&memory, 0, memory.at(0, 8));
    assert_eq!(libfabric.cached(0), usize::from(complete));
}

#[test]
fn ranges_that_name_no_memory_are_refused() {
    let libfabric = Libfabric::new(1, 4);
    for range in [(0x1000, 0), (usize::MAX, 2), (usize::MAX - 4095, 4096)] {
        assert!(!libfabric.subscribe(range) && !libfabric.valid(range), "{range:x?}");
    }
    assert_eq!(libfabric.monitor().stats().keys, 0);
}

/// Two domains, nested and overlapping ranges, silent evictions, deliveries and
/// a table that overflows: no lookup ever hits an entry of an older generation
/// (asserted in `register`), and nothing is allocated under `mm_lock`.
#[test]
fn no_sequence_of_calls_gives_a_stale_hit() {
    const PAGES: u64 = 24;
    for seed in 1..=40_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below) as usize
        };
        let (mut memory, libfabric) = (Memory::new(9, PAGES as usize), Libfabric::new(2, 48));
        let mut hits = 0;
        for _ in 0..2000 {
            let page = random(PAGES);
            let pages = 1 + random((PAGES - page as u64).min(6));
            match random(20) {
                0..12 => {
                    let found = libfabric.register(&memory, random(2), memory.at(page, pages));
                    hits += u32::from(found == Found::Hit);
                }
                12..17 => memory.remap(page, pages),
                17 | 18 => libfabric.evict(random(2), page),
                _ => libfabric.deliver(),
            }
        }
        assert!(hits > 20, "seed {seed}: {hits} hits: the cache does not cache");
    }
    assert_eq!(ALLOCATED_UNDER_MM_LOCK.get(), 0);
}

#[test]
fn the_trap_for_allocations_works() {
    let mm_lock = Mutex::new(());
    drop(under_mm_lock(&mm_lock, || Box::new([0_u8; 64])));
    assert!(ALLOCATED_UNDER_MM_LOCK.get() > 0);
}
