//! loom models of the real cache: a `get` against an event, and a registration
//! against a change of the pages that it pins.
//!
//! Run with `xtask/ci/loom.sh`.
#![cfg(test)]

use crate::access::Access;
use crate::backend::{MemoryKey, Unlocked};
use crate::cache::{Cache, Geometry, Graves, Published, Terms, map_size};
use crate::range::{ByteRange, PageRange};
use crate::regions::{self, Held, Wanted};
use crate::sync::SHARED;
use loom::sync::atomic::{AtomicBool, Ordering::*};
use loom::sync::{Arc, Mutex};
use loom::thread;
use pinyard_hooks::Begun;
use pinyard_hooks::map::Map;

type Model = Arc<Cache<Arc<Map>>>;

const PAGE: usize = 0x1000;
/// The last page but one: an event that begins at 0 is too wide for a hook to
/// walk that far.
const PAGES: PageRange = PageRange { start: 14 * PAGE, end: 15 * PAGE };
const LAST: usize = PAGES.end - 1;

fn wanted(shard: u32) -> Wanted {
    Wanted { bytes: ByteRange { start: PAGES.start, len: PAGE }, access: Access::LOCAL_READ, shard }
}

fn cache() -> Model {
    let geometry = Geometry { regions: 2, budget: usize::MAX.into(), max_region_bytes: usize::MAX };
    let map = Map::new(map_size(2, 16 * PAGE)).unwrap();
    Arc::new(Cache::new(Arc::new(map), geometry).unwrap())
}

fn hit(cache: &Model, shard: u32) -> Option<Held> {
    cache.hit(PAGES.start, PAGE, Access::LOCAL_READ, shard)
}

fn key_of(cache: &Model, held: &Held) -> u64 {
    regions::key_of(cache.slot(held.0)).lkey
}

/// Registers the page outside the lock; the key is what was pinned.
fn register(cache: &Model, begun: &Begun, pin: impl FnOnce() -> u64) -> Published {
    register_range(cache, begun, PAGES, false, pin)
}

fn register_range(
    cache: &Model,
    begun: &Begun,
    range: PageRange,
    of_files: bool,
    pin: impl FnOnce() -> u64,
) -> Published {
    let mut unlocked = Unlocked::at_entry();
    let mut locked = cache.lock(&mut unlocked);
    locked.drain();
    let mut ticket = locked.begin(range, Access::LOCAL_READ, false, &mut Graves::default()).unwrap();
    drop(locked);
    ticket.of_files = of_files;
    begun.declare();
    let pinned = pin();
    let key = MemoryKey { lkey: pinned, rkey: pinned, handle: pinned };
    cache.lock(&mut unlocked).publish(ticket, key, wanted(0), Terms { is_kept: true, is_last: false })
}

/// A cache with the page registered.
fn registered(begun: &Begun) -> Model {
    registered_as(begun, false)
}

fn registered_as(begun: &Begun, of_files: bool) -> Model {
    let cache = cache();
    let published = register_range(&cache, begun, PAGES, of_files, || 1);
    let Published::Cached(held) = published else { unreachable!() };
    cache.counts.release(&held, 0);
    cache
}

/// Deregisters what nobody holds; how many.
fn bury(cache: &Model, deregister: impl Fn()) -> usize {
    let mut unlocked = Unlocked::at_entry();
    let mut locked = cache.lock(&mut unlocked);
    while locked.tidy() {}
    locked.look_again();
    let graves = locked.graves();
    drop(locked);
    let count = graves.list.len();
    (0..count).for_each(|_| deregister());
    drop(cache.lock(&mut unlocked).buried(graves));
    count
}

/// Invariants 2 and 6: after the event was published nobody gets the region,
/// whoever held it has it until it lets go, and it is deregistered once.
fn get_against(event: impl Fn(&Map) + Copy + Send + Sync + 'static, shard: u32, of_files: bool) {
    loom::model(move || {
        let cache = registered_as(&Begun::new(), of_files);
        let is_registered = Arc::new(AtomicBool::new(true));
        let reader = {
            let (cache, is_registered) = (cache.clone(), is_registered.clone());
            thread::spawn(move || {
                if let Some(held) = hit(&cache, shard) {
                    assert_eq!(key_of(&cache, &held), 1);
                    assert!(is_registered.load(Acquire), "deregistered under its holder");
                    cache.counts.release(&held, shard);
                }
            })
        };
        event(&cache.map);
        // From here on the mapping may change: nobody may be handed the region.
        assert!(hit(&cache, 0).is_none(), "a stale hit");
        let deregister = || is_registered.store(false, Release);
        let mut buried = bury(&cache, deregister);
        assert!(hit(&cache, 0).is_none(), "a stale hit after the drain");
        reader.join().unwrap();
        buried += bury(&cache, deregister);
        assert_eq!(buried, 1, "deregistered once");
        assert!(!is_registered.load(Acquire));
    });
}

#[test]
fn get_against_a_mark() {
    get_against(|map| map.publish(PAGES.start, LAST), 1, false);
}

#[test]
fn get_on_the_shared_shard_against_a_mark() {
    get_against(|map| map.publish(PAGES.start, LAST), SHARED, false);
}

#[test]
fn get_against_a_wide_event() {
    get_against(|map| map.publish(0, LAST), 1, false);
}

#[test]
fn get_against_everything() {
    get_against(|map| map.publish_everything(), 1, false);
}

#[test]
fn get_of_a_file_against_its_change() {
    get_against(|map| map.publish_file(), 1, true);
}

#[test]
fn get_of_a_file_against_a_wide_event() {
    get_against(|map| map.publish(0, LAST), 1, true);
}

#[test]
fn get_of_a_file_against_everything() {
    get_against(|map| map.publish_everything(), 1, true);
}

/// While one thread applies what hooks left, another one's `get` does not find
/// what its own change has touched.
fn drain_against(event: impl Fn(&Map) + Copy + Send + Sync + 'static) {
    loom::model(move || {
        let cache = registered(&Begun::new());
        let drainer = {
            let cache = cache.clone();
            thread::spawn(move || bury(&cache, || ()))
        };
        event(&cache.map);
        assert!(hit(&cache, 1).is_none(), "a stale hit");
        let buried = drainer.join().unwrap() + bury(&cache, || ());
        assert_eq!(buried, 1);
        assert!(hit(&cache, 1).is_none());
    });
}

#[test]
fn drain_against_a_mark() {
    drain_against(|map| map.publish(PAGES.start, LAST));
}

#[test]
fn drain_against_a_wide_event() {
    drain_against(|map| map.publish(0, LAST));
}

/// Two hooks mark the region at the same time: one retirement.
#[test]
fn two_marks_at_a_time() {
    loom::model(|| {
        let cache = registered(&Begun::new());
        let other = {
            let cache = cache.clone();
            thread::spawn(move || cache.map.publish(PAGES.start, LAST))
        };
        cache.map.publish(PAGES.start, LAST);
        assert!(hit(&cache, 0).is_none(), "a stale hit");
        let mut buried = bury(&cache, || ());
        other.join().unwrap();
        buried += bury(&cache, || ());
        assert_eq!(buried, 1);
    });
}

/// Invariant 2, the gap that others leave open: the pages are replaced while the
/// backend pins them. What a later `get` finds was pinned after the change.
fn register_against(event: impl Fn(&Map) + Copy + Send + Sync + 'static, of_files: bool) {
    loom::model(move || {
        let cache = cache();
        let begun = Arc::new(Begun::new());
        // Pinning and changing both take the kernel's lock of the address space.
        let version = Arc::new(Mutex::new(0));
        let registrar = {
            let (cache, begun, version) = (cache.clone(), begun.clone(), version.clone());
            thread::spawn(move || {
                let pin = || *version.lock().unwrap();
                let published = register_range(&cache, &begun, PAGES, of_files, pin);
                if let Published::Cached(held) = published {
                    cache.counts.release(&held, 0);
                }
            })
        };
        // What a hook does (hooks/src/monitor.rs).
        let ticket = begun.ticket();
        event(&cache.map);
        *version.lock().unwrap() = 1;
        if begun.any_since(ticket) {
            event(&cache.map);
        }
        if let Some(held) = hit(&cache, 1) {
            assert_eq!(key_of(&cache, &held), 1, "stale pages");
            cache.counts.release(&held, 1);
        }
        registrar.join().unwrap();
        let mut unlocked = Unlocked::at_entry();
        let mut locked = cache.lock(&mut unlocked);
        locked.drain();
        if locked.settle(PAGES)
            && let Some(held) = locked.find_settled(wanted(1))
        {
            assert_eq!(key_of(&cache, &held), 1, "stale pages");
            cache.counts.release(&held, 1);
        }
    });
}

#[test]
fn register_against_change() {
    register_against(|map| map.publish(PAGES.start, LAST), false);
}

#[test]
fn register_against_a_wide_change() {
    register_against(|map| map.publish(0, LAST), false);
}

#[test]
fn register_against_everything() {
    register_against(|map| map.publish_everything(), false);
}

#[test]
fn register_of_a_file_against_its_change() {
    register_against(|map| map.publish_file(), true);
}

/// A region is retired, and its slot used again for a wider registration that is
/// still under way, while a hook stands on the region's entry: the hook passes over
/// nothing that is served.
#[test]
fn a_walk_does_not_follow_a_slot_that_is_used_again() {
    const BEFORE: PageRange = PageRange { start: PAGES.start - PAGE, end: PAGES.start };
    loom::model(|| {
        let begun = Begun::new();
        let cache = registered(&begun);
        let Published::Cached(held) = register_range(&cache, &begun, BEFORE, false, || 2) else {
            unreachable!()
        };
        cache.counts.release(&held, 0);
        let registrar = {
            let cache = cache.clone();
            thread::spawn(move || {
                let mut unlocked = Unlocked::at_entry();
                let mut locked = cache.lock(&mut unlocked);
                locked.invalidate(BEFORE, None);
                let graves = locked.graves();
                drop(locked.buried(graves));
                // It ends here, as if preempted before it declares the registration.
                drop(locked.begin(BEFORE.union(PAGES), Access::LOCAL_READ, false, &mut Graves::default()));
            })
        };
        cache.map.publish(BEFORE.start, LAST);
        assert!(hit(&cache, 1).is_none(), "a stale hit");
        registrar.join().unwrap();
        assert!(hit(&cache, 1).is_none(), "a stale hit");
    });
}

/// A slot is retired and used again while another thread reads it: a hit never
/// mixes two generations.
#[test]
fn a_reused_slot_is_not_confused() {
    loom::model(|| {
        let begun = Begun::new();
        let cache = registered(&begun);
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || {
                if let Some(held) = hit(&cache, 1) {
                    let key = key_of(&cache, &held);
                    assert!(key == 1 || key == 2);
                    assert_eq!(regions::range_of(cache.slot(held.0)), PAGES);
                    cache.counts.release(&held, 1);
                }
            })
        };
        cache.map.publish(PAGES.start, LAST);
        bury(&cache, || ());
        if let Published::Cached(held) = register(&cache, &begun, || 2) {
            assert_eq!(key_of(&cache, &held), 2);
            cache.counts.release(&held, 0);
        }
        reader.join().unwrap();
    });
}

/// Likewise for a lookup without a reference: its key is of one generation.
#[test]
fn a_lookup_of_a_reused_slot_is_not_confused() {
    loom::model(|| {
        let begun = Begun::new();
        let cache = registered(&begun);
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || {
                if let Some(key) = cache.peek(PAGES.start, PAGE, Access::LOCAL_READ) {
                    assert!(key.lkey == key.rkey && key.lkey == key.handle, "a mixed key: {key:?}");
                }
            })
        };
        cache.map.publish(PAGES.start, LAST);
        bury(&cache, || ());
        drop(register(&cache, &begun, || 2));
        reader.join().unwrap();
    });
}
