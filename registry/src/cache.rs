//! The cache proper: what a hit reads without a lock, and what the writer does
//! under one. No backend is called from here.
//!
//! ```text
//! hit:    news -> directory -> slot's state -> count a reference -> state again   (regions.rs)
//! writer: lock -> apply what hooks left                                        (cache/draining.rs)
//!              -> { begin | publish | kill }                                   (here)
//!              -> graves, for the backend to take back                         (cache/graveyard.rs)
//!              -> unlock
//! ```
//!
//! A hook marks a region in place, so what hooks leave for the writer is only to
//! be tidied away: regions that are marked or of an older epoch are found by
//! nobody. Applying it is done in slices, by whoever has the lock anyway; a
//! caller's own range is always settled before it is answered.

mod draining;
mod graveyard;

use graveyard::Grave;
pub(crate) use graveyard::{Done, Graves};

use crate::access::Access;
use crate::ahead::Resident;
use crate::backend::{MemoryKey, Unlocked};
use crate::budget::Budget;
use crate::completion::Completion;
use crate::directory::{Leaves, first_in, leaves_for};
use crate::eviction::EvictionList;
use crate::range::PageRange;
use crate::regions::{self, Counts, Held, Wanted};
use crate::stats::Counters;
use crate::sync::{MAX_COMING, Mutex, MutexGuard, SHARDS, lock};
use crate::times::Ticks;
use crate::traced::Traced;
use pinyard_hooks::map::{Map, MapSize, Slot, SlotId};
use pinyard_trace::Kind;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::Ordering::Relaxed;

/// Regions that are retired in one go: what a caller may pay for others.
const SLICE: usize = 128;
/// Retirements that `explain` remembers.
const REMEMBERED: usize = 1024;

/// Sizes, fixed at birth.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    /// Regions that can exist at a time, those being retired included.
    pub(crate) regions: usize,
    /// Bytes that can be pinned at a time, those being retired included.
    pub(crate) budget: Budget,
    /// Longest single registration, in bytes.
    pub(crate) max_region_bytes: usize,
}

/// The map that `regions` regions below `address_limit` need. A registration that
/// comes in the place of another has its slot before the other's is free.
pub(crate) fn map_size(regions: usize, address_limit: usize) -> MapSize {
    MapSize { slots: regions + MAX_COMING, leaves: leaves_for(regions), address_limit }
}

pub(crate) struct Cache<M> {
    pub(crate) map: M,
    pub(crate) counts: Counts,
    pub(crate) geometry: Geometry,
    writer: Mutex<Writer>,
}

pub(crate) struct Writer {
    pub(crate) leaves: Leaves,
    live: EvictionList,
    /// Retired since the counts were last ordered.
    dead: Vec<SlotId>,
    /// Retired, and to be looked at: does anybody hold them?
    ready: Vec<SlotId>,
    /// Retired, and held when last looked at.
    in_use: Vec<SlotId>,
    /// Scratch of `graves`.
    graves: Vec<Grave>,
    /// What `Geometry::regions` limits: live, dead and under way.
    regions: usize,
    free_slots: Vec<SlotId>,
    pub(crate) next_slot: SlotId,
    pub(crate) resident: Resident,
    inflight: Vec<Inflight>,
    next_ticket: u64,
    /// The epoch of the regions that are served.
    epoch: u64,
    /// The changes of files that `sweep` began for.
    files: u64,
    /// Live regions that have pages of a file.
    of_files: usize,
    /// Slots from here on may still be of an older epoch.
    sweep: SlotId,
    /// Wide events that are being applied; no two share a page.
    wide: Vec<PageRange>,
    /// Word of the marks where the next slice goes on.
    marks: usize,
    /// Graves handed out and not yet buried: their budget comes back soon.
    burying: Vec<SlotId>,
    /// Live, dead and in-flight bytes.
    pub(crate) pinned: usize,
    pub(crate) counters: Counters,
    /// How long the backend took to register and to deregister.
    pub(crate) registering: Ticks,
    pub(crate) deregistering: Ticks,
    /// The latest retirements.
    pub(crate) retired: VecDeque<Retired>,
    /// About now, in ticks.
    pub(crate) now: u64,
    /// How often the directory has changed.
    changes: u64,
    /// The registry's place in the process's trace.
    pub(crate) traced: Traced,
    /// Who is called back when a slot's registration is gone.
    waiting: Vec<(SlotId, Completion)>,
}

/// A registration that its thread is carrying out outside the lock.
struct Inflight {
    ticket: u64,
    slot: SlotId,
    /// Its place in the map's set.
    coming: usize,
    range: PageRange,
    access: Access,
}

/// The right to publish one registration.
#[derive(Debug)]
#[must_use = "a begun registration must be published or abandoned"]
pub(crate) struct Ticket {
    number: u64,
    slot: SlotId,
    /// The directory had changed this often when nothing overlapped the range.
    vacant_at: Option<u64>,
    pub(crate) range: PageRange,
    pub(crate) access: Access,
    /// The backend's call is to be timed.
    pub(crate) is_timed: bool,
    /// `Map::files` when it began.
    files: u64,
    /// Filled in by the caller: userfaultfd watches the range for it.
    pub(crate) watched: bool,
    /// Filled in by the caller: the range has pages of a file, or shared ones.
    pub(crate) of_files: bool,
}

/// Why a registration cannot begin now.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The byte budget is used up.
    Bytes,
    /// The count limit is reached.
    Regions,
    /// Too many registrations are under way.
    Coming,
}

/// For whom a finished registration is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// For later `get`s as well.
    pub(crate) is_kept: bool,
    /// For its caller, even if its pages changed meanwhile.
    pub(crate) is_last: bool,
}

/// What became of a finished registration.
#[derive(Debug)]
pub(crate) enum Published {
    /// Its first reference.
    Cached(Held),
    /// Somebody else registered the same meanwhile; ours goes to the graveyard.
    Redundant(Held),
    /// The pages changed meanwhile; ours goes to the graveyard.
    Spoiled,
}

/// A region that was taken out, and when, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    pub(crate) range: PageRange,
    pub(crate) reason: Reason,
    pub(crate) at: u64,
}

/// Why a region is retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// An event touched it, or it was asked for.
    Invalidated,
    /// Everything was.
    Flushed,
    /// A registration that overlaps it takes its place.
    Merged,
    /// To make room.
    Evicted,
}

impl<M: Deref<Target = Map>> Cache<M> {
    /// The error is mmap's errno.
    pub(crate) fn new(map: M, geometry: Geometry) -> Result<Self, i32> {
        let size = map.size();
        let (epoch, files) = (map.epoch(), map.files());
        Ok(Cache {
            counts: Counts::new(size.slots + 1, SHARDS)?,
            map,
            geometry,
            writer: Mutex::new(Writer {
                leaves: Leaves::new(size.leaves),
                live: EvictionList::default(),
                dead: Vec::new(),
                ready: Vec::new(),
                in_use: Vec::new(),
                graves: Vec::new(),
                regions: 0,
                free_slots: Vec::new(),
                next_slot: 1,
                resident: Resident::default(),
                inflight: Vec::new(),
                next_ticket: 0,
                epoch,
                files,
                of_files: 0,
                sweep: SlotId::MAX,
                wide: Vec::new(),
                marks: 0,
                burying: Vec::new(),
                pinned: 0,
                counters: Counters::default(),
                registering: Ticks::default(),
                deregistering: Ticks::default(),
                retired: VecDeque::new(),
                now: 0,
                changes: 0,
                traced: Traced::default(),
                waiting: Vec::new(),
            }),
        })
    }

    /// A reference to a region that serves the bytes, or `None` where the
    /// writer must be asked. No lock; after a region's first hit the only writes
    /// are to counters of the thread's own shard.
    #[inline(always)]
    pub(crate) fn hit(&self, start: usize, len: usize, access: Access, shard: u32) -> Option<Held> {
        // Before the state: if events that were left for the writer have been
        // applied by now, what they retired is seen below.
        let news = self.map.news();
        self.counts.hit(&self.map, news, start, len, access, shard)
    }

    /// As `hit`, without a reference.
    #[inline(always)]
    pub(crate) fn peek(&self, start: usize, len: usize, access: Access) -> Option<MemoryKey> {
        let news = self.map.news();
        Counts::peek(&self.map, news, start, len, access)
    }

    /// The slot of a reference or of a number that the writer knows.
    #[inline]
    pub(crate) fn slot(&self, id: SlotId) -> &Slot {
        &self.map.slots()[id as usize]
    }

    /// Takes the writer's lock. While the guard lives, `unlocked` is borrowed,
    /// so no backend can be called.
    pub(crate) fn lock<'a>(&'a self, unlocked: &'a mut Unlocked) -> Locked<'a, M> {
        Locked { cache: self, writer: lock(&self.writer), unlocked }
    }
}

/// The cache with its writer's lock held.
pub(crate) struct Locked<'a, M> {
    pub(crate) cache: &'a Cache<M>,
    pub(crate) writer: MutexGuard<'a, Writer>,
    /// Lent by whoever has no lock but this one.
    unlocked: &'a mut Unlocked,
}

impl<'a, M> Locked<'a, M> {
    /// Gives the lock back.
    pub(crate) fn unlock(self) -> &'a mut Unlocked {
        self.unlocked
    }
}

impl<M: Deref<Target = Map>> Locked<'_, M> {
    /// As `hit`, after a `drain` and a `settle` under this lock; the hit is not
    /// counted.
    pub(crate) fn find_settled(&self, wanted: Wanted) -> Option<Held> {
        self.cache.counts.find(&self.cache.map, self.writer.epoch, wanted)
    }

    /// Whether a registration under way will serve the bytes.
    pub(crate) fn is_coming(&self, range: PageRange, access: Access) -> bool {
        let serves = |flight: &Inflight| {
            flight.range.contains(range) && flight.access.contains(access) && self.doom(flight.slot).is_none()
        };
        self.writer.inflight.iter().any(serves)
    }

    /// A registration under way that overlaps the range.
    pub(crate) fn coming(&self, range: PageRange) -> Option<PageRange> {
        self.writer.inflight.iter().map(|flight| flight.range).find(|flight| flight.overlaps(range))
    }

    /// The range and access that a registration of `range` should have so that
    /// it can take the place of the regions that it overlaps.
    pub(crate) fn merged(&self, range: PageRange, access: Access) -> (PageRange, Access) {
        let mut union = (range, access);
        let mut rest = Some(range);
        while let Some(id) = rest.and_then(|rest| self.first_in(rest)) {
            let slot = self.cache.slot(id);
            let other = regions::range_of(slot);
            union = (union.0.union(other), union.1 | regions::access_of(slot));
            rest = PageRange::from(other.end, range.end);
        }
        let geometry = &self.cache.geometry;
        if union.0.len() > geometry.max_region_bytes.min(geometry.budget.bytes()) {
            (range, access)
        } else {
            union
        }
    }

    /// Reserves budget and a slot, from what `graves` leave where that is all there
    /// is; events mark the registration from now on. The caller has the backend take
    /// `graves` back, and register, without the lock. `vacant`: nothing overlaps the
    /// range now.
    #[inline(always)] // the ticket stays in registers
    pub(crate) fn begin(
        &mut self,
        range: PageRange,
        access: Access,
        vacant: bool,
        graves: &mut Graves,
    ) -> Result<Ticket, NoRoom> {
        let vacant_at = vacant.then_some(self.writer.changes);
        let geometry = &self.cache.geometry;
        let lent = graves.room_for(range.len());
        let (regions, bytes) = (1 - lent.regions, range.len() - lent.bytes);
        let writer = &mut *self.writer;
        if writer.regions + regions > geometry.regions {
            return Err(NoRoom::Regions);
        }
        let slot = match writer.free_slots.pop() {
            Some(slot) => slot,
            None if writer.next_slot as usize <= self.cache.map.size().slots => {
                writer.next_slot += 1;
                writer.resident.take(writer.next_slot);
                writer.next_slot - 1
            }
            None => return Err(NoRoom::Coming),
        };
        if bytes != 0 && !geometry.budget.take(bytes) {
            writer.free_slots.push(slot);
            return Err(NoRoom::Bytes);
        }
        let files = self.cache.map.files();
        self.cache.slot(slot).begin(range.start, range.end, writer.epoch);
        let Some(coming) = self.cache.map.coming(slot) else {
            self.cache.slot(slot).retire();
            self.cache.slot(slot).free();
            writer.free_slots.push(slot);
            geometry.budget.give(bytes);
            return Err(NoRoom::Coming);
        };
        graves.lent = lent;
        writer.regions += regions;
        writer.pinned += bytes;
        writer.next_ticket += 1;
        let number = writer.next_ticket;
        writer.inflight.push(Inflight { ticket: number, slot, coming, range, access });
        let is_timed = writer.registering.times_next();
        Ok(Ticket {
            number,
            slot,
            vacant_at,
            range,
            access,
            is_timed,
            files,
            watched: false,
            of_files: false,
        })
    }

    fn land(&mut self, ticket: &Ticket) {
        let inflight = &mut self.writer.inflight;
        if let Some(at) = inflight.iter().position(|flight| flight.ticket == ticket.number) {
            self.cache.map.landed(inflight.swap_remove(at).coming);
        }
    }

    /// The backend refused: gives back what `begin` took. Who waits for it is to be
    /// dropped without the lock.
    #[must_use = "dropping it calls somebody back, which is not for under the lock"]
    pub(crate) fn abandon(&mut self, ticket: Ticket) -> Done {
        self.land(&ticket);
        let slot = self.cache.slot(ticket.slot);
        slot.retire();
        slot.free();
        self.cache.geometry.budget.give(ticket.range.len());
        self.writer.regions -= 1;
        self.writer.pinned -= ticket.range.len();
        self.writer.free_slots.push(ticket.slot);
        let mut done = None;
        self.writer.tell(ticket.slot, &mut done);
        done
    }

    /// The backend has registered: enters the region unless its pages changed
    /// since `begin`. A region that is not kept is found by nobody and retired with its
    /// only reference.
    pub(crate) fn publish(
        &mut self,
        ticket: Ticket,
        key: MemoryKey,
        wanted: Wanted,
        terms: Terms,
    ) -> Published {
        self.drain();
        self.writer.counters.registrations += 1;
        let Ticket { slot: id, range, access, watched, of_files, .. } = ticket;
        let slot = self.cache.slot(id);
        regions::set_key(slot, key);
        regions::set_access(slot, access, watched);
        slot.touched.store(0, Relaxed);
        if of_files {
            slot.depends_on_files(ticket.files);
        }
        let fresh = self.doom(id).is_none();
        let vacant = ticket.vacant_at == Some(self.writer.changes);
        let redundant = if fresh && !vacant && self.settle(range) { self.find_settled(wanted) } else { None };
        let mut entered = false;
        if fresh && redundant.is_none() && terms.is_kept {
            while !vacant && let Some(other) = self.first_in(range) {
                self.kill(other, Reason::Merged);
            }
            self.writer.changes += 1;
            entered = self.writer.leaves.insert(self.cache.map.directory(), range, id);
        }
        // In the directory first, off the set of what is coming last: an event
        // meets it in one or the other. Marked before it went live, it does not.
        // What is not in the directory does not: a hook that has the slot from an old
        // entry would pass over what it overlaps.
        let unmarked = if entered { slot.go_live() } else { !slot.state().is_stale() };
        let map = &self.cache.map;
        let live = unmarked && map.is_current(slot, map.epoch());
        self.land(&ticket);
        if live && entered {
            self.writer.live.push_back(id);
            self.writer.of_files += usize::from(of_files);
            return Published::Cached(self.cache.counts.hold(id, wanted.shard));
        }
        if entered {
            self.writer.leaves.remove(self.cache.map.directory(), range);
        }
        let published = match redundant {
            Some(held) => Published::Redundant(held),
            None if !live && !terms.is_last => {
                self.writer.counters.retries += 1;
                Published::Spoiled
            }
            None => {
                self.writer.counters.uncached += 1;
                Published::Cached(self.cache.counts.hold(id, wanted.shard))
            }
        };
        slot.retire();
        self.writer.dead.push(id);
        published
    }

    /// Takes a region out of the map and leaves it to its holders.
    fn kill(&mut self, id: SlotId, reason: Reason) {
        let slot = self.cache.slot(id);
        let range = regions::range_of(slot);
        let writer = &mut *self.writer;
        writer.leaves.remove(self.cache.map.directory(), range);
        slot.retire();
        writer.live.remove(id);
        writer.of_files -= usize::from(slot.has_file_pages());
        writer.dead.push(id);
        if writer.retired.len() == REMEMBERED {
            writer.retired.pop_front();
        }
        writer.retired.push_back(Retired { range, reason, at: writer.now });
        writer.changes += 1;
        match reason {
            Reason::Invalidated | Reason::Flushed => writer.counters.invalidations += 1,
            Reason::Merged => writer.counters.merges += 1,
            Reason::Evicted => writer.counters.evictions += 1,
        }
        match reason {
            Reason::Invalidated | Reason::Flushed => writer.traced.event(Kind::Invalidate, range),
            Reason::Evicted => writer.traced.event(Kind::Evict, range),
            Reason::Merged => {}
        }
    }

    #[inline]
    pub(crate) fn first_in(&self, range: PageRange) -> Option<SlotId> {
        first_in(self.cache.map.directory(), range)
    }

    /// Live regions, and dead ones that wait for their holders or their burial.
    pub(crate) fn population(&self) -> (usize, usize) {
        let writer = &self.writer;
        (writer.live.len(), writer.dead.len() + writer.ready.len() + writer.in_use.len())
    }

    /// Regions that are held, retired or not.
    pub(crate) fn in_use(&self) -> usize {
        (1..self.writer.next_slot).filter(|&id| self.cache.counts.is_held(id)).count()
    }

    /// Nothing is registered or being retired.
    pub(crate) fn is_idle(&self) -> bool {
        self.population() == (0, 0)
    }
}
