//! loom models of the real cache: a `get` against an event, and a registration
//! against a change of the pages that it pins.
//!
//! Run with `ci/loom.sh`.
#![cfg(test)]

use crate::access::Access;
use crate::backend::{MemoryKey, Unlocked};
use crate::cache::{Cache, Geometry, Published, Wanted};
use crate::range::{ByteRange, PageRange};
use loom::sync::atomic::{AtomicBool, Ordering::*};
use loom::sync::{Arc, Mutex};
use loom::thread;
use pinyard_hooks::{Begun, Sink};

type Source = Arc<Sink<2, 2>>;

const PAGE: usize = 0x1000;
const PAGES: PageRange = PageRange { start: PAGE, end: 2 * PAGE };

fn wanted(shard: u32) -> Wanted {
    Wanted { bytes: ByteRange { start: PAGE, end: 2 * PAGE }, access: Access::LOCAL_READ, shard }
}

fn cache() -> Arc<Cache<Source>> {
    let geometry = Geometry {
        regions: 2,
        shards: 2,
        address_limit: 4 * PAGE,
        budget: usize::MAX,
        max_region_bytes: usize::MAX,
    };
    Arc::new(Cache::new(Arc::new(Sink::new()), geometry).unwrap())
}

/// Registers the page outside the lock; the key is what was pinned.
fn register(cache: &Cache<Source>, begun: &Begun, pin: impl FnOnce() -> u64) -> Published {
    let mut unlocked = Unlocked::at_entry();
    let ticket = cache.lock(&mut unlocked).begin(PAGES, Access::LOCAL_READ).unwrap();
    begun.declare();
    let key = MemoryKey { lkey: pin(), rkey: 0, handle: 0 };
    cache.lock(&mut unlocked).publish(ticket, key, wanted(0), false)
}

/// Deregisters what nobody holds; how many.
fn bury(cache: &Cache<Source>, deregister: impl Fn()) -> usize {
    let mut unlocked = Unlocked::at_entry();
    let mut locked = cache.lock(&mut unlocked);
    locked.drain();
    let graves = locked.graves();
    drop(locked);
    for grave in &graves {
        deregister();
        cache.lock(&mut unlocked).buried(grave);
    }
    graves.len()
}

/// Invariants 2 and 6: after the event was published nobody gets the region,
/// whoever held it has it until it lets go, and it is deregistered once.
#[test]
fn get_against_invalidate() {
    loom::model(|| {
        let cache = cache();
        let begun = Begun::new();
        let Published::Cached(held) = register(&cache, &begun, || 7) else { unreachable!() };
        cache.regions.release(&held);
        let registered = Arc::new(AtomicBool::new(true));

        let reader = {
            let (cache, registered) = (cache.clone(), registered.clone());
            thread::spawn(move || {
                if let Some(held) = cache.hit(wanted(1)) {
                    assert_eq!(cache.regions.key_of(held.slot).lkey, 7);
                    assert!(registered.load(Acquire), "deregistered under its holder");
                    cache.regions.release(&held);
                }
            })
        };
        cache.source.publish(PAGE, PAGE);
        // From here on the mapping may change: nobody may be handed the region.
        assert!(cache.hit(wanted(0)).is_none(), "a stale hit");
        let deregister = || registered.store(false, Release);
        let mut buried = bury(&cache, deregister);
        assert!(cache.hit(wanted(0)).is_none(), "a stale hit after the drain");
        reader.join().unwrap();
        buried += bury(&cache, deregister);
        assert_eq!(buried, 1, "deregistered once");
        assert!(!registered.load(Acquire));
    });
}

/// Invariant 2, the gap that others leave open: the pages are replaced while the
/// backend pins them. What a later `get` finds was pinned after the change.
#[test]
fn register_against_change() {
    loom::model(|| {
        let cache = cache();
        let begun = Arc::new(Begun::new());
        // Pinning and changing both take the kernel's lock of the address space.
        let version = Arc::new(Mutex::new(0));
        let registrar = {
            let (cache, begun, version) = (cache.clone(), begun.clone(), version.clone());
            thread::spawn(move || {
                let published = register(&cache, &begun, || *version.lock().unwrap());
                if let Published::Cached(held) = published {
                    cache.regions.release(&held);
                }
            })
        };
        // What a hook does (hooks/src/monitor.rs).
        let ticket = begun.ticket();
        cache.source.publish(PAGE, PAGE);
        *version.lock().unwrap() = 1;
        if begun.any_since(ticket) {
            cache.source.publish(PAGE, PAGE);
        }
        if let Some(held) = cache.hit(wanted(1)) {
            assert_eq!(cache.regions.key_of(held.slot).lkey, 1, "stale pages");
            cache.regions.release(&held);
        }
        registrar.join().unwrap();
        let mut unlocked = Unlocked::at_entry();
        let mut locked = cache.lock(&mut unlocked);
        locked.drain();
        if let Some(held) = locked.find(wanted(1)) {
            assert_eq!(cache.regions.key_of(held.slot).lkey, 1, "stale pages");
            cache.regions.release(&held);
        }
    });
}

/// Two threads retire and reuse the slot while a third reads it: a hit never
/// mixes two generations.
#[test]
fn a_reused_slot_is_not_confused() {
    loom::model(|| {
        let cache = cache();
        let begun = Begun::new();
        let Published::Cached(held) = register(&cache, &begun, || 1) else { unreachable!() };
        cache.regions.release(&held);
        let reader = {
            let cache = cache.clone();
            thread::spawn(move || {
                if let Some(held) = cache.hit(wanted(1)) {
                    let key = cache.regions.key_of(held.slot).lkey;
                    assert!(key == 1 || key == 2);
                    assert_eq!(cache.regions.range_of(held.slot), PAGES);
                    cache.regions.release(&held);
                }
            })
        };
        cache.source.publish(PAGE, PAGE);
        bury(&cache, || ());
        if let Published::Cached(held) = register(&cache, &begun, || 2) {
            assert_eq!(cache.regions.key_of(held.slot).lkey, 2);
            cache.regions.release(&held);
        }
        reader.join().unwrap();
    });
}
