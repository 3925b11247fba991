//! The process's maps: where a hook finds them, and who owns each.
//!
//! A map is never unmapped, since a hook may be walking it. One that its registry
//! has left is emptied and waits for the next registry of its size or less; sizes
//! are powers of two, so what larger maps leave unused is bounded.
#![allow(unsafe_code)]

use crate::map::{Map, MapSize};
use crate::monitor::MAX_SUBSCRIBERS;
use crate::sys;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

struct Place {
    claimed: AtomicBool,
    /// Null, or a map that lives as long as the process.
    map: AtomicPtr<Map>,
}

static PLACES: [Place; MAX_SUBSCRIBERS] =
    [const { Place { claimed: AtomicBool::new(false), map: AtomicPtr::new(null_mut()) } }; MAX_SUBSCRIBERS];
/// Places below this index have been claimed at some time.
static HIGH: AtomicU32 = AtomicU32::new(0);

impl Place {
    #[inline]
    fn map(&self) -> Option<&'static Map> {
        // SAFETY: null, or a map that `create` wrote before it was stored here
        // (Release, seen by this Acquire) and that is never freed.
        unsafe { self.map.load(Acquire).as_ref() }
    }
}

#[inline]
fn places() -> &'static [Place] {
    let high = HIGH.load(Acquire) as usize;
    &PLACES[..high.min(MAX_SUBSCRIBERS)]
}

/// Marks what `start..=last` touches in every map.
#[inline]
pub(crate) fn publish_to_maps(start: usize, last: usize) {
    // Without a call, so that a hook that has nothing to say saves no registers.
    if places().iter().filter_map(Place::map).any(|map| map.may_touch(start, last)) {
        publish_to_each_map(start, last);
    }
}

#[inline(never)]
fn publish_to_each_map(start: usize, last: usize) {
    for map in places().iter().filter_map(Place::map) {
        map.publish(start, last);
    }
}

pub(crate) fn publish_to_maps_everything() {
    for map in places().iter().filter_map(Place::map) {
        map.publish_everything();
    }
}

pub(crate) fn publish_file_to_maps() {
    for map in places().iter().filter_map(Place::map) {
        map.publish_file();
    }
}

/// A map of one's own; emptied and given back on drop.
pub struct MapPlace {
    map: &'static Map,
    place: usize,
}

impl core::ops::Deref for MapPlace {
    type Target = Map;
    #[inline]
    fn deref(&self) -> &Map {
        self.map
    }
}

impl MapPlace {
    /// See [`subscribe_map`](crate::subscribe_map).
    pub(crate) fn claim(size: MapSize) -> Result<MapPlace, Option<i32>> {
        let size = MapSize {
            slots: size.slots.next_power_of_two(),
            leaves: size.leaves.next_power_of_two(),
            ..size
        };
        let fits = |map: &Map| {
            let has = map.size();
            has.slots >= size.slots && has.leaves >= size.leaves && has.address_limit == size.address_limit
        };
        // A map that is there already, else an empty place, else one whose map is
        // too small and is left behind.
        let rank = |place: &Place| match place.map() {
            Some(map) if fits(map) => 0,
            None => 1,
            Some(_) => 2,
        };
        for wanted in 0..3 {
            for (index, place) in PLACES.iter().enumerate().filter(|(_, place)| rank(place) == wanted) {
                if place.claimed.compare_exchange(false, true, AcqRel, Acquire).is_err() {
                    continue;
                }
                let map = match place.map().filter(|map| fits(map)).map(Ok).unwrap_or_else(|| create(size)) {
                    Ok(map) => map,
                    Err(errno) => {
                        place.claimed.store(false, Release);
                        return Err(Some(errno));
                    }
                };
                // Release: pairs with the Acquire in `Place::map`.
                place.map.store(core::ptr::from_ref(map).cast_mut(), Release);
                // SeqCst: whoever begins a registration in this map is ordered after.
                HIGH.fetch_max(index as u32 + 1, SeqCst);
                return Ok(MapPlace { map, place: index });
            }
        }
        Err(None)
    }
}

impl Drop for MapPlace {
    fn drop(&mut self) {
        self.map.clear();
        if let Some(place) = PLACES.get(self.place) {
            // Release: pairs with the Acquire in `claim`.
            place.claimed.store(false, Release);
        }
    }
}

/// A map that is never freed, in a mapping of its own.
fn create(size: MapSize) -> Result<&'static Map, i32> {
    let map = Map::new(size)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping, which is never unmapped.
    let at = unsafe { sys::mmap(0, size_of::<Map>(), libc::PROT_READ | libc::PROT_WRITE, flags)? };
    // SAFETY: mmap does not return address 0 unless asked to with MAP_FIXED.
    let at = unsafe { NonNull::new_unchecked(at as *mut Map) };
    // SAFETY: page-aligned, writable and large enough for a Map; nobody else has
    // the address, and it stays for good, so a shared reference may be static.
    unsafe {
        at.write(map);
        Ok(at.as_ref())
    }
}
