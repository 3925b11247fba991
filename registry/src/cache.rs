//! The cache proper: what a hit reads without a lock, and what the writer does
//! under one. No backend is called from here.
//!
//! ```text
//! hit:    has news? -> directory -> slot -> count a reference -> state again
//! writer: lock -> drain the inbox -> { begin | publish | kill | graves } -> unlock
//! ```

use crate::access::Access;
use crate::backend::{MemoryKey, Unlocked};
use crate::directory::{Directory, Tables};
use crate::eviction::EvictionList;
use crate::range::{ByteRange, PageRange};
use crate::regions::{Held, Regions, SlotId};
use crate::stats::Counters;
use crate::sync::{Mutex, MutexGuard, lock};
use pinyard_hooks::{Event, Mark, Sink};
use std::ops::Deref;

/// Where the cache hears of changes. Implemented by every [`Sink`].
pub(crate) trait EventSource {
    fn has_news(&self) -> bool;
    fn begin(&self) -> Mark;
    fn take(&self, into: &mut Vec<Event>) -> bool;
    fn finish(&self, mark: Mark);
    fn watch(&self, range: PageRange);
    fn unwatch(&self, range: PageRange);
}

impl<const N: usize, const G: usize> EventSource for Sink<N, G> {
    #[inline]
    fn has_news(&self) -> bool {
        Sink::has_news(self)
    }
    fn begin(&self) -> Mark {
        Sink::begin(self)
    }
    fn take(&self, into: &mut Vec<Event>) -> bool {
        Sink::take(self, |event| into.push(event))
    }
    fn finish(&self, mark: Mark) {
        Sink::finish(self, mark);
    }
    fn watch(&self, range: PageRange) {
        Sink::watch(self, range.start..range.end);
    }
    fn unwatch(&self, range: PageRange) {
        Sink::unwatch(self, range.start..range.end);
    }
}

/// What a `get` asks for, and the shard that counts its reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) bytes: ByteRange,
    pub(crate) access: Access,
    pub(crate) shard: u32,
}

/// Sizes, fixed at birth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    /// Regions that can exist at a time, those being retired included.
    pub(crate) regions: usize,
    pub(crate) shards: usize,
    /// Addresses below this can be registered.
    pub(crate) address_limit: usize,
    /// Bytes that can be pinned at a time, those being retired included.
    pub(crate) budget: usize,
    /// Longest single registration, in bytes.
    pub(crate) max_region_bytes: usize,
}

pub(crate) struct Cache<S> {
    pub(crate) source: S,
    pub(crate) regions: Regions,
    directory: Directory,
    pub(crate) geometry: Geometry,
    writer: Mutex<Writer>,
}

pub(crate) struct Writer {
    tables: Tables,
    live: EvictionList,
    /// Dead regions that may still be held.
    dead: Vec<SlotId>,
    free_slots: Vec<SlotId>,
    next_slot: SlotId,
    inflight: Vec<Inflight>,
    next_ticket: u64,
    /// Graves handed out and not yet buried: their budget comes back soon.
    pub(crate) burying: usize,
    /// Live, dead and in-flight bytes.
    pub(crate) pinned: usize,
    pub(crate) counters: Counters,
    /// Scratch of `drain`.
    events: Vec<Event>,
}

/// A registration that its thread is carrying out outside the lock.
struct Inflight {
    ticket: u64,
    range: PageRange,
    access: Access,
    /// An event touched it: what the backend pinned may be the old pages.
    spoiled: bool,
}

/// The right to publish one registration.
#[derive(Debug)]
#[must_use = "a begun registration must be published or abandoned"]
pub(crate) struct Ticket {
    number: u64,
    slot: SlotId,
    pub(crate) range: PageRange,
    pub(crate) access: Access,
}

/// Why a registration cannot begin now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The byte budget is used up.
    Bytes,
    /// The count limit is reached.
    Regions,
}

/// What became of a finished registration.
#[derive(Debug)]
pub(crate) enum Published {
    /// In the cache.
    Cached(Held),
    /// Somebody else registered the same meanwhile; ours goes to the graveyard.
    Redundant(Held),
    /// The pages changed meanwhile; ours goes to the graveyard.
    Spoiled,
}

/// A registration to be taken back, outside the lock.
#[derive(Debug)]
pub(crate) struct Grave {
    slot: SlotId,
    pub(crate) key: MemoryKey,
    pub(crate) range: PageRange,
}

impl<S: Deref<Target: EventSource>> Cache<S> {
    /// The error is mmap's errno.
    pub(crate) fn new(source: S, geometry: Geometry) -> Result<Self, i32> {
        let (directory, tables) = Directory::new(geometry.regions, geometry.address_limit)?;
        Ok(Cache {
            source,
            regions: Regions::new(geometry.regions, geometry.shards)?,
            directory,
            geometry,
            writer: Mutex::new(Writer {
                tables,
                live: EvictionList::default(),
                dead: Vec::new(),
                free_slots: Vec::new(),
                next_slot: 1,
                inflight: Vec::new(),
                next_ticket: 0,
                burying: 0,
                pinned: 0,
                counters: Counters::default(),
                events: Vec::new(),
            }),
        })
    }

    /// A reference to a region that serves the bytes, or `None` where the
    /// writer must be asked. No lock; after a region's first hit the only write is
    /// to a counter of the thread's own shard.
    #[inline]
    pub(crate) fn hit(&self, Wanted { bytes, access, shard }: Wanted) -> Option<Held> {
        // An event that was published before this call is news until it has
        // been applied, so what is found below is not older than it.
        if self.source.has_news() {
            return None;
        }
        self.regions.acquire(self.directory.find(bytes.start), bytes, access, shard)
    }

    /// As `hit`, without a reference.
    #[inline]
    pub(crate) fn peek(&self, range: ByteRange, access: Access) -> Option<MemoryKey> {
        if self.source.has_news() {
            return None;
        }
        self.regions.peek(self.directory.find(range.start), range, access)
    }

    /// Takes the writer's lock. While the guard lives, `unlocked` is borrowed,
    /// so no backend can be called.
    pub(crate) fn lock<'a>(&'a self, _unlocked: &'a mut Unlocked) -> Locked<'a, S> {
        Locked { cache: self, writer: lock(&self.writer) }
    }
}

/// The cache with its writer's lock held.
pub(crate) struct Locked<'a, S> {
    cache: &'a Cache<S>,
    pub(crate) writer: MutexGuard<'a, Writer>,
}

impl<S: Deref<Target: EventSource>> Locked<'_, S> {
    /// Applies every event published so far.
    pub(crate) fn drain(&mut self) {
        let source = &self.cache.source;
        if !source.has_news() {
            return;
        }
        let mark = source.begin();
        let mut events = std::mem::take(&mut self.writer.events);
        if source.take(&mut events) {
            self.flush();
        } else {
            for event in &events {
                self.invalidate(PageRange { start: event.start(), end: event.end() });
            }
        }
        events.clear();
        self.writer.events = events;
        source.finish(mark);
    }

    /// Takes out every region that shares a page with `range`.
    pub(crate) fn invalidate(&mut self, range: PageRange) {
        for flight in &mut self.writer.inflight {
            flight.spoiled |= flight.range.overlaps(range);
        }
        while let Some(slot) = self.first_in(range) {
            self.kill(slot);
            self.writer.counters.invalidations += 1;
        }
    }

    /// Takes out every region.
    pub(crate) fn flush(&mut self) {
        for flight in &mut self.writer.inflight {
            flight.spoiled = true;
        }
        while let Some(slot) = self.writer.live.front() {
            self.kill(slot);
            self.writer.counters.invalidations += 1;
        }
        self.writer.counters.flushes += 1;
    }

    /// As `hit`, after a `drain` under this lock.
    pub(crate) fn find(&self, Wanted { bytes, access, shard }: Wanted) -> Option<Held> {
        self.cache.regions.acquire(self.cache.directory.find(bytes.start), bytes, access, shard)
    }

    /// Whether a registration under way will serve the bytes.
    pub(crate) fn is_coming(&self, range: PageRange, access: Access) -> bool {
        let serves = |flight: &Inflight| {
            !flight.spoiled && flight.range.contains(range) && flight.access.contains(access)
        };
        self.writer.inflight.iter().any(serves)
    }

    /// The range and access that a registration of `range` should have so that
    /// it can take the place of the regions that it overlaps.
    pub(crate) fn merged(&self, range: PageRange, access: Access) -> (PageRange, Access) {
        let mut union = (range, access);
        let mut from = range.start;
        while let Some(slot) = self.first_in(PageRange { start: from, end: range.end }) {
            let other = self.cache.regions.range_of(slot);
            union = (union.0.union(other), union.1 | self.cache.regions.access_of(slot));
            if other.end >= range.end {
                break;
            }
            from = other.end;
        }
        let geometry = &self.cache.geometry;
        if union.0.len() > geometry.max_region_bytes.min(geometry.budget) { (range, access) } else { union }
    }

    /// Reserves budget and a slot, and watches the range from now on. The caller
    /// asks the backend next, without the lock.
    pub(crate) fn begin(&mut self, range: PageRange, access: Access) -> Result<Ticket, NoRoom> {
        let geometry = &self.cache.geometry;
        let writer = &mut *self.writer;
        if range.len() > geometry.budget.saturating_sub(writer.pinned) {
            return Err(NoRoom::Bytes);
        }
        let slot = match writer.free_slots.pop() {
            Some(slot) => slot,
            None if writer.next_slot as usize <= geometry.regions => {
                writer.next_slot += 1;
                writer.next_slot - 1
            }
            None => return Err(NoRoom::Regions),
        };
        writer.pinned += range.len();
        writer.next_ticket += 1;
        let number = writer.next_ticket;
        writer.inflight.push(Inflight { ticket: number, range, access, spoiled: false });
        self.cache.source.watch(range);
        Ok(Ticket { number, slot, range, access })
    }

    fn land(&mut self, ticket: &Ticket) -> bool {
        let inflight = &mut self.writer.inflight;
        let at = inflight.iter().position(|flight| flight.ticket == ticket.number);
        at.is_some_and(|at| inflight.swap_remove(at).spoiled)
    }

    /// The backend refused: gives back what `begin` took.
    pub(crate) fn abandon(&mut self, ticket: Ticket) {
        let _ = self.land(&ticket);
        self.cache.source.unwatch(ticket.range);
        self.writer.pinned -= ticket.range.len();
        self.writer.free_slots.push(ticket.slot);
    }

    /// The backend has registered: enters the region unless its pages changed
    /// since `begin`. An `uncached` region is found by nobody and retired with its only reference.
    pub(crate) fn publish(
        &mut self,
        ticket: Ticket,
        key: MemoryKey,
        wanted: Wanted,
        uncached: bool,
    ) -> Published {
        self.drain();
        let spoiled = self.land(&ticket);
        self.writer.counters.registrations += 1;
        let Ticket { slot, range, access, .. } = ticket;
        let redundant = if spoiled { None } else { self.find(wanted) };
        if !spoiled && redundant.is_none() {
            while let Some(other) = self.first_in(range) {
                self.kill(other);
                self.writer.counters.merges += 1;
            }
        }
        let regions = &self.cache.regions;
        regions.publish(slot, range, access, key);
        let held = match redundant {
            Some(held) => Some(Published::Redundant(held)),
            None if spoiled => None,
            None => regions.acquire(slot, wanted.bytes, wanted.access, wanted.shard).map(Published::Cached),
        };
        // Being registered is no second use.
        regions.take_touched(slot);
        let writer = &mut *self.writer;
        let enter = matches!(held, Some(Published::Cached(_))) && !uncached;
        if enter && self.cache.directory.insert(&mut writer.tables, range, slot) {
            writer.live.push_back(slot);
        } else {
            regions.kill(slot);
            self.cache.source.unwatch(range);
            writer.dead.push(slot);
            writer.counters.uncached += enter as u64 | uncached as u64;
        }
        held.unwrap_or(Published::Spoiled)
    }

    /// Whether another thread is about to give room back: it is deregistering, or
    /// registering what may become evictable.
    pub(crate) fn makes_room(&self) -> bool {
        self.writer.burying > 0 || !self.writer.inflight.is_empty()
    }

    /// Takes a region out of the map and leaves it to its holders.
    fn kill(&mut self, slot: SlotId) {
        let range = self.cache.regions.range_of(slot);
        self.cache.directory.remove(&mut self.writer.tables, range);
        self.cache.regions.kill(slot);
        self.cache.source.unwatch(range);
        self.writer.live.remove(slot);
        self.writer.dead.push(slot);
    }

    fn first_in(&self, range: PageRange) -> Option<SlotId> {
        Some(self.cache.directory.first_in(range.start, range.end)).filter(|&slot| slot != 0)
    }

    /// Takes out the region that was used least recently and is not in use.
    pub(crate) fn evict(&mut self) -> bool {
        let regions = &self.cache.regions;
        let victim = self.writer.live.victim(|slot| regions.is_held(slot) || regions.take_touched(slot));
        if let Some(slot) = victim {
            self.kill(slot);
            self.writer.counters.evictions += 1;
        }
        victim.is_some()
    }

    /// The dead regions that nobody holds. Each is handed out once; the caller
    /// asks the backend, then calls [`buried`](Locked::buried).
    pub(crate) fn graves(&mut self) -> Vec<Grave> {
        let regions = &self.cache.regions;
        let idle = self.writer.dead.extract_if(.., |&mut slot| !regions.is_held(slot));
        let grave = |slot| Grave { slot, key: regions.key_of(slot), range: regions.range_of(slot) };
        let graves: Vec<Grave> = idle.map(grave).collect();
        self.writer.burying += graves.len();
        graves
    }

    /// The backend has taken the registration back.
    pub(crate) fn buried(&mut self, grave: &Grave) {
        self.cache.regions.free(grave.slot);
        self.writer.free_slots.push(grave.slot);
        self.writer.burying -= 1;
        self.writer.pinned -= grave.range.len();
        self.writer.counters.deregistrations += 1;
    }

    /// Live regions, and dead ones that wait for their holders.
    pub(crate) fn population(&self) -> (usize, usize) {
        (self.writer.live.len(), self.writer.dead.len())
    }

    /// References ever taken, on all slots.
    pub(crate) fn references(&self) -> u64 {
        (1..self.writer.next_slot).map(|slot| self.cache.regions.references(slot)).sum()
    }

    /// Nothing is registered or being retired.
    pub(crate) fn is_idle(&self) -> bool {
        self.population() == (0, 0)
    }
}
