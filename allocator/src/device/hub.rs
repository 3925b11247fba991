//! Memory for all streams that are behind: what they have freed goes to a stream of
//! the pool's own, the hub, which waits for each of them on the device, and whoever
//! takes of it waits for the hub.
//!
//! An epoch costs each lender an event's record and a wait, and each borrower one wait
//! however much it takes: a hundredth of a slab; nothing once all lenders have passed. It
//! keeps a pool of many busy streams from holding each one's peak, and all of it merges.
//!
//! Dropped blocks that several streams use go there as well, where their own stream lends
//! and the others move: the hub waits for the marks of these.
//!
//! Memory is gathered only where the pool already has an eighth more than is in use, and
//! only from streams that were seen to move: one that is held up, by the host or by
//! another rank, would hold up its borrowers as well. A stream's first mark is asked for
//! when the pool comes to know it; without, new streams, which have most to lend, lend
//! nothing until they have done all that they were given first.
#![allow(unsafe_code)]

use super::alloc::Want;
use super::block::{ANYBODY, BlockRef, Owner, Stack};
use super::classes::Kind as Size;
use super::core::{Central, Core};
use super::marks::Marked;
use super::stream::{StreamInUse, StreamState};
use super::waiting::Used;
use crate::retire::Callable;
use crate::source::DriverToken;
use crate::trace::Kind;
use parking_lot::Mutex;
use pinyard_driver::{Capture, DriverError, Event};
use pinyard_worker::log;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A pool grows freely while it has at most this part more than is in use.
const SLACK: usize = 8;
/// For short ranges nothing is gathered while their slabs have less than this part of what is in
/// use: of sizes spread evenly from 4 KiB to 8 MiB they are a thirtieth of the bytes and were the
/// reason for most epochs, each of which costs its one caller as much as fifty waits.
const SHORT: usize = 6;
/// Less than this part of what is in use is not gathered: each epoch has to last.
const WORTH: usize = 40;
/// Of so many streams one is looked over for whole spans.
const LOOKS: usize = 4;
/// Streams that have less than this part of all that can be lent between them need not lend,
/// unless the pool would grow.
const REST: usize = 8;

/// Those of `all` that have most, by the bytes of each. Of many streams most have little: what
/// is left out is theirs until they have more.
pub(super) fn retain_most<T>(all: &mut Vec<T>, bytes: impl Fn(&T) -> usize) {
    all.sort_unstable_by_key(|one| Reverse(bytes(one)));
    let sum: usize = all.iter().map(&bytes).sum();
    let enough = sum - sum / REST;
    let mut sum = 0;
    all.retain(|one| {
        let is_missing = sum < enough;
        sum += bytes(one);
        is_missing
    });
}

/// A mark that does not pass.
pub(super) const NEVER: u64 = u64::MAX;
/// A lender is marked once in this part of `stall`: a mark costs five times what the
/// record and the wait of an epoch do.
const MARKS: u32 = 8;

#[derive(Default)]
pub(super) struct Hub {
    events: Mutex<Events>,
    /// A thread begins an epoch. Others grow meanwhile.
    busy: AtomicBool,
}

#[derive(Default)]
struct Events {
    /// Between uses. An event is free again as soon as it is waited for: the wait is for
    /// what it had recorded, whatever it records later.
    spare: Vec<Event>,
    /// Recorded by the hub's stream when an epoch begins. One suffices: a wait that comes
    /// late is for a later epoch, which is after the earlier one.
    begun: Option<Event>,
}

/// Streams in use that move.
struct Moving {
    streams: Arc<Vec<Arc<StreamState>>>,
    /// By owner less one, as `streams` are.
    moves: Vec<bool>,
}

impl Moving {
    fn has(&self, owner: Owner) -> bool {
        self.moves.get((owner as usize).wrapping_sub(1)).is_some_and(|&moves| moves)
    }

    fn get(&self, owner: Owner) -> Option<&Arc<StreamState>> {
        let at = (owner as usize).wrapping_sub(1);
        self.streams.get(at).filter(|_| self.has(owner))
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<StreamState>> {
        self.streams.iter().filter(|state| self.has(state.owner))
    }
}

/// Who is asked to lend.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Those that have most of it, if there is so much that it lasts for a while.
    Most,
    /// All, if it suffices for what is wanted: what few have lies between what many have, and
    /// the pool would grow otherwise.
    All,
}

/// Who lends.
struct Lender {
    state: Arc<StreamState>,
    /// Free bytes, those included that wait for the stream's marks.
    bytes: usize,
    /// Of these what can be of the kind that is wanted.
    alike: usize,
    /// Of these what other streams use as well.
    used: usize,
    /// Its last mark is old.
    is_due: bool,
}

/// How far a stream had come at the last look, when it was last known to move, and when a
/// mark was last due.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    passed: Option<u64>,
    at: Option<Instant>,
    due: Option<Instant>,
}

impl Core {
    /// What is with the hub, for a stream that has not waited for it yet.
    pub(super) fn join(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        token: &mut DriverToken,
    ) -> Option<BlockRef> {
        let mut central = self.lock(token);
        let hub = central.hub.as_ref()?;
        let epoch = central.epoch;
        let fits = central.heap.longest(hub.owner, want.kind()) >= want.bytes();
        if !fits || state.epoch() == epoch {
            return None;
        }
        if hub.timeline.passed() >= central.epoch_mark {
            state.joins(epoch);
            return central.find(state, want);
        }
        drop(central);
        self.wait_for_hub(state, want, epoch, token)?;
        self.lock(token).find(state, want)
    }

    fn wait_for_hub(&self, state: &StreamState, want: Want, epoch: u64, token: &DriverToken) -> Option<()> {
        let begun = self.hub.events.lock().begun?;
        let in_use = self.may_wait(state, token)?;
        match self.driver.stream_wait_event(in_use.handle(), begun, token) {
            Ok(()) => {
                state.joins(epoch);
                self.watch.event(Kind::Wait, state.id, want.bytes(), 0);
                Some(())
            }
            Err(error) => {
                log!(debug, %error, "a stream could not be made to wait for others");
                None
            }
        }
    }

    /// The stream can be made to wait: it is neither being captured nor retired. While the answer
    /// lives it is not retired, so that its last mark is behind what it waits for: what it has then
    /// is anybody's once that mark has passed.
    pub(super) fn may_wait<'a>(
        &self,
        state: &'a StreamState,
        token: &DriverToken,
    ) -> Option<StreamInUse<'a>> {
        let in_use = state.in_use(token).ok()?;
        let captured = self.driver.stream_capture(in_use.handle(), token);
        matches!(captured, Ok(Capture::None)).then_some(in_use)
    }

    /// Brings what the streams have freed to the hub, and takes of it.
    pub(super) fn gather(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        reach: Reach,
        token: &mut DriverToken,
    ) -> Option<BlockRef> {
        if self.settings.stall.is_zero() {
            return None;
        }
        let mut central = self.lock(token);
        if central.streams.len() < 2 {
            return None;
        }
        let live = central.live_bytes();
        if central.reserved + want.bytes() <= live + live / SLACK {
            return None;
        }
        if want.kind() == Size::Small {
            // Within the limit: where the device has no more, the squeeze finds them.
            let room = self.settings.limit().saturating_sub(central.reserved);
            let slab = want.bytes().next_multiple_of(self.sources[Size::Small as usize].granularity());
            if slab <= room && central.heap.slab_bytes(Size::Small) + want.bytes() <= live / SHORT {
                return None;
            }
        }
        let now = Instant::now();
        let moving = self.moving(&mut central, now);
        if want.kind() == Size::Small {
            // Classes that nobody uses now hold ranges of that kind: of many streams and two
            // dozen classes, more than is in use. Of some streams each time: to look whether
            // spans are whole costs more than all the rest.
            let part = if reach == Reach::All { 1 } else { LOOKS };
            let turn = central.epoch as usize % part;
            moving.iter().skip(turn).step_by(part).for_each(|state| central.dissolve_kept(state));
        }
        let mut lenders = self.lenders(&mut central, &moving, want.kind(), reach, now);
        let suffice = |lenders: &[Lender]| {
            let lent: usize = lenders.iter().map(|lender| lender.bytes).sum();
            let alike: usize = lenders.iter().map(|lender| lender.alike).sum();
            alike >= want.bytes() && (reach == Reach::All || lent >= live / WORTH)
        };
        if !suffice(&lenders) && want.kind() == Size::Small {
            moving.iter().for_each(|state| central.dissolve_kept(state));
            lenders = self.lenders(&mut central, &moving, want.kind(), reach, now);
        }
        drop(central);
        if !suffice(&lenders) {
            return None;
        }
        drop(self.may_wait(state, token)?);
        // Acquire and Release: one epoch's record is after all of the one before.
        if self.hub.busy.swap(true, Acquire) {
            return None;
        }
        let begun = self.begin_epoch(lenders, &moving, token);
        self.hub.busy.store(false, Release);
        let epoch = match begun {
            Ok(epoch) => epoch,
            Err(error) => {
                log!(debug, %error, "the streams' memory could not be brought together");
                return None;
            }
        };
        self.wait_for_hub(state, want, epoch, token)?;
        self.lock(token).find(state, want)
    }

    fn moving(&self, central: &mut Central, now: Instant) -> Moving {
        let streams = central.streams.clone();
        let moves = |state: &Arc<StreamState>| {
            state.last_mark().is_none() && central.is_moving(state, now, self.settings.stall)
        };
        let moves = streams.iter().map(moves).collect();
        Moving { streams, moves }
    }

    /// Those that have something to lend, for the one that wants memory of `size`.
    fn lenders(
        &self,
        central: &mut Central,
        moving: &Moving,
        size: Size,
        reach: Reach,
        now: Instant,
    ) -> Vec<Lender> {
        // A watched block is looked at before it is used again, by its own stream.
        let used = if self.watch.poisons() || central.waiting.used_blocks == 0 {
            BTreeMap::new()
        } else {
            central.waiting.movable(|owner| moving.has(owner))
        };
        let mut lenders = Vec::new();
        for state in moving.iter() {
            central.collect(state);
            let stolen = central.waiting.stolen_from(state.owner);
            let used = used.get(&state.owner).copied().unwrap_or(0);
            let bytes = central.heap.free_bytes(state.owner) + stolen + used;
            let alike = central.heap.free_bytes_of(state.owner, size) + stolen + used;
            if bytes > 0 {
                let is_due = central.is_mark_due(state, now, self.settings.stall);
                lenders.push(Lender { state: state.clone(), bytes, alike, used, is_due });
            }
        }
        if reach == Reach::All {
            return lenders;
        }
        retain_most(&mut lenders, |lender| lender.alike);
        lenders
    }

    fn begin_epoch(
        &self,
        lenders: Vec<Lender>,
        moving: &Moving,
        token: &mut DriverToken,
    ) -> Result<u64, DriverError> {
        let hub = self.hub(token)?;
        // Nobody retires it.
        let own = hub.in_use(token).map_err(|_| no_hub())?;
        let event = self.event(token)?;
        self.coming.fetch_add(1, SeqCst);
        // Before the records: what these blocks' own streams were given before the drops is
        // before what they record now.
        let used = self.take_used(&lenders, moving, token);
        let (mut gathered, mut lent) = (Stack::default(), Vec::new());
        for Lender { state: lender, is_due, .. } in lenders {
            let mut central = self.lock(token);
            let mut blocks = Stack::default();
            for mut stolen in central.waiting.take_back(lender.owner) {
                central.take_in(&mut stolen.blocks, lender.owner);
            }
            central.collect(&lender);
            central.heap.detach(lender.owner, &mut blocks);
            drop(central);
            // After the detaching: all work that used the blocks is before the record.
            match self.lend(&lender, &own, event, token) {
                Ok(true) => {
                    lent.push(lender.owner);
                    gathered.append(&mut blocks);
                    // So that it shows whether it goes on moving.
                    if is_due {
                        self.mark(&lender, token);
                    }
                }
                other => {
                    if let Err(error) = other {
                        log!(debug, %error, "a stream could not lend");
                    }
                    self.lock(token).take_in(&mut blocks, lender.owner);
                }
            }
        }
        self.gather_used(used, &own, &lent, moving, &mut gathered, token);
        let mut events = self.hub.events.lock();
        events.spare.push(event);
        let begun = events.begun;
        drop(events);
        let begun = begun.map_or_else(|| self.event(token), Ok);
        let recorded = match &begun {
            Ok(begun) => self.driver.event_record(*begun, own.handle(), token),
            Err(error) => Err(error.clone()),
        };
        // Before the memory is there to be had: without a record that is after all lenders,
        // nobody can wait for the hub until the next epoch has one.
        let mut events = self.hub.events.lock();
        events.begun = None;
        match &recorded {
            Ok(()) => events.begun = begun.ok(),
            Err(_) => events.spare.extend(begun),
        }
        drop(events);
        let mark = self.mark_hub(&hub, &own, token);
        let mut central = self.lock(token);
        central.epoch_mark = mark;
        // What is anybody's as well: it merges with the rest, and costs its borrower no more.
        central.heap.detach(ANYBODY, &mut gathered);
        central.take_in(&mut gathered, hub.owner);
        central.epoch += 1;
        let epoch = central.epoch;
        drop(central);
        self.coming.fetch_sub(1, SeqCst);
        Core::count(&self.tallies.holds);
        recorded.map(|()| epoch)
    }

    /// A mark behind all that the hub waits for: once it has passed, nobody need wait for the
    /// hub. [`NEVER`] where it would be an event that somebody has to ask.
    fn mark_hub(&self, hub: &StreamState, own: &StreamInUse<'_>, token: &mut DriverToken) -> u64 {
        if hub.timeline.has_events() {
            return NEVER;
        }
        match hub.timeline.mark(&*self.driver, own, token) {
            Ok(Marked::At(value)) => value,
            Ok(Marked::Capturing) => NEVER,
            Err(error) => {
                log!(debug, %error, "the pool's own stream could not be marked");
                NEVER
            }
        }
    }

    /// Takes dropped blocks of the lenders' that other streams use, where all of these move.
    fn take_used(&self, lenders: &[Lender], moving: &Moving, token: &mut DriverToken) -> Vec<Used> {
        let with_some = lenders.iter().filter(|lender| lender.used > 0);
        let homes: BTreeSet<Owner> = with_some.map(|lender| lender.state.owner).collect();
        if homes.is_empty() {
            return Vec::new();
        }
        self.lock(token).waiting.take_movable(|owner| homes.contains(&owner), |owner| moving.has(owner))
    }

    /// Lets the hub wait for the users of these blocks; those whose own stream did not lend
    /// wait on.
    fn gather_used(
        &self,
        used: Vec<Used>,
        own: &StreamInUse<'_>,
        lent: &[Owner],
        moving: &Moving,
        gathered: &mut Stack,
        token: &mut DriverToken,
    ) {
        let mut last: BTreeMap<Owner, u64> = BTreeMap::new();
        for mark in used.iter().flat_map(|used| &used.marks) {
            let value = last.entry(mark.owner).or_default();
            *value = mark.value.max(*value);
        }
        last.retain(|&owner, &mut value| {
            let Some(user) = moving.get(owner) else { return false };
            // A lender's record was after these marks.
            let passed = lent.contains(&owner) || user.timeline.passed() >= value;
            let held = if passed { Ok(()) } else { user.timeline.hold(own, value, &*self.driver, token) };
            held.inspect_err(|error| log!(debug, %error, "the pool could not wait for a stream")).is_ok()
        });
        let mut central = self.lock(token);
        for used in used {
            let lent = lent.contains(&used.home());
            if lent && used.marks.iter().all(|mark| last.contains_key(&mark.owner)) {
                central.retrieve(used.block);
                gathered.push(used.block);
            } else {
                central.waiting.add_used(used);
            }
        }
    }

    /// Lets the hub wait for what the lender has been given so far; `false` while that
    /// is being captured, and of one that is retired.
    fn lend(
        &self,
        lender: &StreamState,
        own: &StreamInUse<'_>,
        event: Event,
        token: &DriverToken,
    ) -> Result<bool, DriverError> {
        let driver = &*self.driver;
        let Ok(lender) = lender.in_use(token) else { return Ok(false) };
        if driver.stream_capture(lender.handle(), token)? != Capture::None {
            return Ok(false);
        }
        driver.event_record(event, lender.handle(), token)?;
        driver.stream_wait_event(own.handle(), event, token)?;
        Ok(true)
    }

    /// The hub's stream, made when it is first needed.
    fn hub(&self, token: &mut DriverToken) -> Result<Arc<StreamState>, DriverError> {
        if let Some(hub) = &self.lock(token).hub {
            return Ok(hub.clone());
        }
        let stream = self.driver.stream_create(token)?;
        let id = self.driver.stream_id(stream, token);
        let mut central = self.lock(token);
        if let (Ok(id), None) = (&id, &central.hub) {
            let state = central.enter(self.itself.as_ptr(), self.words.as_ref(), stream, *id);
            central.hub = Some(state.clone());
            return Ok(state);
        }
        let made = central.hub.clone();
        drop(central);
        // SAFETY: just created, seen by nobody.
        unsafe { self.driver.stream_destroy(stream, token) }?;
        match (made, id) {
            (Some(hub), _) => Ok(hub),
            (None, Err(error)) => Err(error),
            (None, Ok(_)) => self.hub(token),
        }
    }

    fn event(&self, token: &DriverToken) -> Result<Event, DriverError> {
        let spare = self.hub.events.lock().spare.pop();
        spare.map_or_else(|| self.driver.event_create(token), Ok)
    }

    /// The pool is closed, and all its streams' work has passed.
    pub(super) fn destroy_hub(&self, hub: Option<Arc<StreamState>>, token: &DriverToken) {
        let Events { spare, begun } = std::mem::take(&mut *self.hub.events.lock());
        for event in spare.into_iter().chain(begun) {
            // SAFETY: ours, and out of every list. A failure leaves an event behind.
            if let Err(error) = unsafe { self.driver.event_destroy(event, token) } {
                log!(warn, %error, "an event of a closed pool stays");
            }
        }
        if let Some(hub) = hub
            && let Ok(own) = hub.retiring(token)
            // SAFETY: ours; the pool, which alone used it, is closed.
            && let Err(error) = unsafe { self.driver.stream_destroy(own.handle(), token) }
        {
            log!(warn, %error, "the stream of a closed pool stays");
        }
    }
}

fn no_hub() -> DriverError {
    DriverError {
        call: "a wait of the pool's own stream".to_owned(),
        code: 400,
        text: "not called: the pool's own stream is retired".to_owned(),
    }
}

impl Central {
    /// Whether the stream has passed a mark, and has not been behind another for `stall`.
    pub(super) fn is_moving(&mut self, state: &StreamState, now: Instant, stall: Duration) -> bool {
        let at = state.owner as usize;
        if self.hub.as_ref().is_some_and(|hub| hub.owner == state.owner) {
            return false;
        }
        let passed = state.timeline.passed();
        if self.seen.len() <= at {
            self.seen.resize(at + 1, Seen::default());
        }
        let seen = &mut self.seen[at];
        // One that is behind when first looked at has to come further first.
        if passed >= state.timeline.asked() || seen.passed.is_some_and(|before| before != passed) {
            seen.at = Some(now);
        }
        seen.passed = Some(passed);
        passed > state.began && seen.at.is_some_and(|at| now.duration_since(at) < stall)
    }

    /// Whether a stream that moves should be marked now: one mark at a time, and none while
    /// the last is not old.
    fn is_mark_due(&mut self, state: &StreamState, now: Instant, stall: Duration) -> bool {
        let Some(seen) = self.seen.get_mut(state.owner as usize) else { return false };
        let old = seen.due.is_none_or(|due| now.duration_since(due) >= stall / MARKS);
        let is_due = old && !state.timeline.is_behind();
        if is_due {
            seen.due = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::Want;
    use crate::device::{DevicePool, PoolStream};
    use crate::source::DriverToken;
    use pinyard_driver::{Call, Driver, Simulated};
    use std::sync::Arc;
    use std::time::Duration;

    const MIB: usize = 1 << 20;

    /// Where slabs for short ranges are a small part of the pool, which cannot have more of them.
    #[test]
    fn short_ranges_are_gathered_where_the_pool_cannot_grow() {
        let token = &mut DriverToken::at_entry();
        let gpu = Arc::new(Simulated::new(1 << 30));
        let builder = DevicePool::builder(gpu.clone()).stall(Duration::from_secs(3600));
        let pool = builder.limit(41 * MIB).patience(Duration::ZERO).build().unwrap();
        let [one, other] =
            [0; 2].map(|_| pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap());
        gpu.synchronize(token).unwrap();
        let short: Vec<_> = (0..20).map(|_| one.alloc(200 << 10).unwrap()).collect();
        let long = one.alloc(8 * MIB).unwrap();
        let mut all = Vec::new();
        for bytes in [8 * MIB, 2 * MIB] {
            all.extend(std::iter::from_fn(|| other.alloc(bytes).ok()));
        }
        let before = pool.stats();
        assert!(before.reserved_bytes > 38 << 20 && before.live_bytes > 30 << 20, "{before:?}");
        gpu.kernel(one.stream(), 5_000_000, token);
        drop((short, long));
        let waits = gpu.calls(Call::StreamWaitEvent);
        let _block = other.alloc(200 << 10).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.hits.squeeze, stats.hits.others), (before.hits.squeeze, before.hits.others + 1));
        assert!(gpu.calls(Call::StreamWaitEvent) > waits);
    }

    /// By another handle, while this one searches. What it took then would be anybody's once its
    /// last mark has passed, which was before the wait.
    #[test]
    fn a_stream_that_is_retired_meanwhile_is_made_to_wait_for_nothing() {
        let token = &mut DriverToken::at_entry();
        let gpu = Arc::new(Simulated::new(1 << 30));
        let pool = DevicePool::builder(gpu.clone()).stall(Duration::from_secs(3600)).build().unwrap();
        let [one, other, third] =
            [0; 3].map(|_| pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap());
        gpu.synchronize(token).unwrap();
        let (lent, kept) = (one.alloc(256 * MIB).unwrap(), one.alloc(64 * MIB).unwrap());
        gpu.kernel(one.stream(), 5_000_000, token);
        drop(lent);
        let _begins = other.alloc(64 * MIB).unwrap();
        let (core, want) = (pool.core(), Want::Large(64 * MIB));
        let streams = core.lock(token).streams.clone();
        let of = |stream: &PoolStream| streams[stream.state().owner as usize - 1].clone();
        let (state, other) = (of(&third), of(&other));
        drop(kept);
        core.steal(vec![of(&one)], token);
        third.clone().retire().unwrap();
        let epoch = core.lock(token).epoch;
        let waits = gpu.calls(Call::StreamWaitEvent);
        assert!(core.wait_for_hub(&state, want, epoch, token).is_none() && state.epoch() != epoch);
        assert!(core.hold(&state, want, token).is_none());
        assert_eq!(gpu.calls(Call::StreamWaitEvent), waits);
        // What it would have been: of a stream that is in use.
        assert!(core.wait_for_hub(&other, want, epoch, token).is_some());
        assert!(core.hold(&other, want, token).is_some());
    }
}
