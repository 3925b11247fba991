//! An allocation that the stream's cache does not serve: what the stream has freed,
//! what is for anybody, what waited, what others keep, a new slab; and before it
//! fails, the squeeze.
#![allow(unsafe_code)]

use super::block::{ANYBODY, BlockRef, NO_CLASS, Owner, Span, Stack};
use super::classes::{self, Class, Kind};
use super::core::{Central, Core};
use super::counts::slot_of;
use super::error::DeviceError;
use super::hub::Reach;
use super::levels::Level;
use super::slab::Slab;
use super::stream::StreamState;
use crate::requests::guarded;
use crate::source::{DriverToken, Segment, by_program};
use crate::trace;
use pinyard_registry::MemoryKey;
use pinyard_worker::{log, span};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;

/// Blocks that a stream takes from the shared bin at a time, and their bytes, at most: of
/// many streams each keeps that of every class that it has used.
const REFILL: usize = 8;
const REFILL_BYTES: usize = 32 << 10;
/// A stream's own range that is longer than what is wanted by at most this part of it need not be
/// compared with others' ranges.
const CLOSE: usize = 4;
/// Before a slab is added for short ranges, small blocks for anybody become ranges again if
/// they are more than this part of the pool.
const BINS: usize = 64;
/// A slab for large blocks is at least this long, twice that from where the stream has eight
/// times as much, unless for one block of more than half of it, or of a source that joins. In
/// shorter ones blocks of 8 to 16 MiB were alone, and what lengths of one batch had left was too
/// short for those of the next.
const SHARED: usize = 16 << 20;
/// Of what the stream has.
const SHARED_OF: usize = 4;
/// A slab has this part of what the stream has, if it is more.
const AHEAD: usize = 12;
/// Several streams that have this part more than is in use grow by what is wanted alone: 1.5
/// times what is in use was 1.45 so. From an eighth on, slabs for one block each make it more.
const PLENTY: usize = 4;
/// A slab is at most this long. Not where the memory of a pool's only stream does not join, and
/// enough is free, in pieces: then up to `slab_bytes`, and no multiple of what is wanted, as more
/// lengths fit into a longer one. Random use of 256 B to 64 MiB, 96 times twice the same, grows 9
/// times the second time so, 54 times without, at 1.22 and 1.24 times what is in use.
const WHOLE: usize = 64 << 20;
/// A slab that is longer for pieces' sake has this part of what is in use: 4 to 12 were tried.
const AHEAD_OF_PIECES: usize = 6;
/// A slab of a source that joins is at most this long.
const PIECE: usize = 32 << 20;

/// What is wanted.
#[derive(Clone, Copy)]
pub(super) enum Want {
    Small(Class),
    Large(usize),
}

/// What a source that joins its segments brings.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Pieces {
    /// What the last range lacks, in pieces of a size: each can be given back, and mapped
    /// elsewhere, by itself.
    Joined,
    /// One that suffices by itself.
    One,
}

/// How much an allocation does before it fails.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effort {
    /// Everything, with the pool's patience.
    Patient,
    /// Everything that needs no waiting; observers are not told.
    Once,
}

impl Want {
    /// Bytes of a range that can hold it.
    pub(super) fn bytes(self) -> usize {
        match self {
            Want::Small(class) => classes::span(class).1,
            Want::Large(bytes) => bytes,
        }
    }

    /// Where it is counted.
    #[inline(always)]
    pub(super) fn slot(self) -> usize {
        match self {
            Want::Small(class) => class as usize,
            Want::Large(bytes) => slot_of(NO_CLASS, bytes),
        }
    }

    pub(super) fn kind(self) -> Kind {
        Kind::of(self.bytes())
    }
}

impl Core {
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_slow(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        wanted: usize,
        effort: Effort,
    ) -> Result<BlockRef, DeviceError> {
        let mut token = DriverToken::at_entry();
        if state.last_mark().is_some() {
            return Err(DeviceError::Retired);
        }
        let block = self.search(state, want, effort, &mut token).inspect_err(|_| {
            if effort == Effort::Patient {
                self.failed(state, wanted);
            }
        })?;
        state.local(&mut token).allocated(block, wanted, Arc::as_ptr(state), want.slot());
        Ok(block)
    }

    /// Counts an allocation that failed for good.
    pub(super) fn failed(&self, state: &StreamState, wanted: usize) {
        state.levels.failed();
        self.watch.event(trace::Kind::Oom, state.id, wanted, 0);
    }

    fn search(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        effort: Effort,
        token: &mut DriverToken,
    ) -> Result<BlockRef, DeviceError> {
        if let Some((block, level)) = self.lock(token).find_at(state, want) {
            state.levels.hit(level);
            return Ok(block);
        }
        self.search_further(state, want, effort, token)
    }

    /// Where neither the stream nor anybody has what is wanted.
    #[cold]
    fn search_further(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        effort: Effort,
        token: &mut DriverToken,
    ) -> Result<BlockRef, DeviceError> {
        loop {
            if state.last_mark().is_some() {
                return Err(DeviceError::Retired);
            }
            if let Some((block, level)) = self.find_elsewhere(state, want, token) {
                state.levels.hit(level);
                return Ok(block);
            }
            match self.grow_for(state, want, Pieces::Joined, token) {
                Ok(Some(block)) => {
                    state.levels.hit(Level::Growth);
                    return Ok(block);
                }
                // Another thread added a slab, and others took it all.
                Ok(None) => {}
                Err(error) => {
                    let block = self.squeeze(state, want, effort, error, token)?;
                    state.levels.hit(Level::Squeeze);
                    return Ok(block);
                }
            }
        }
    }

    /// What is free elsewhere in the pool, the cheapest first.
    fn find_elsewhere(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        token: &mut DriverToken,
    ) -> Option<(BlockRef, Level)> {
        let others = |block| (block, Level::Others);
        self.join(state, want, token)
            .or_else(|| self.gather(state, want, Reach::Most, token))
            .map(others)
            .or_else(|| self.find_settled(state, want, token))
            .or_else(|| self.take_from_others(state, want, token).map(others))
            .or_else(|| self.lock(token).find_in_bins(state, want).map(|block| (block, Level::Pool)))
            .or_else(|| self.gather(state, want, Reach::All, token).map(others))
    }

    /// Of what had been dropped and waited for others. Streams are marked for it, which the pool's
    /// thread does as well: what that has marked was the hub's already.
    fn find_settled(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        token: &mut DriverToken,
    ) -> Option<(BlockRef, Level)> {
        if !self.settle_dropped(token) {
            return None;
        }
        let found = self.lock(token).find(state, want).map(|block| (block, Level::Settled));
        found.or_else(|| Some((self.gather(state, want, Reach::Most, token)?, Level::Others)))
    }

    /// Adds a slab and takes a block of it, or waits for the thread that adds one.
    pub(super) fn grow_for(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        pieces: Pieces,
        token: &mut DriverToken,
    ) -> Result<Option<BlockRef>, DeviceError> {
        let (kind, bytes) = (want.kind(), want.bytes());
        // The stream's own: what it frees later merges with what is left of the slab.
        let owner = state.owner;
        let joins = pieces == Pieces::Joined && self.joins(kind);
        // What another thread adds, or the limit forbids, costs nobody what is free.
        let central = self.lock(token);
        let is_others = central.growing.is_for_others();
        let may_grow = !is_others && self.exact_for(&central, owner, want, joins).is_ok();
        drop(central);
        let short = may_grow && self.is_short_for(bytes, kind as usize, token);
        let mut central = self.lock(token);
        if central.growing.is_for_others() {
            self.grown.wait(&mut central);
            return Ok(central.find(state, want));
        }
        if is_others {
            // It has ended meanwhile; for a slab of ours nobody has looked what is left.
            return Ok(central.find(state, want));
        }
        let exact = self.exact_for(&central, owner, want, joins)?;
        let preferred = if short { exact } else { self.slab_for(&mut central, state, want, exact) };
        let granularity = self.sources[kind as usize].granularity();
        central.growing.begin();
        central.reserved += preferred;
        drop(central);
        let mut growth = Growth { core: self, reserved: preferred };
        if joins {
            while growth.reserved > 0 {
                let piece = growth.reserved.min(PIECE.next_multiple_of(granularity));
                growth.add(piece, kind, owner, token)?;
            }
        } else if let Err(error) = growth.add(preferred, kind, owner, token) {
            if exact == preferred {
                return Err(error);
            }
            self.lock(token).reserved -= preferred - exact;
            growth.reserved = exact;
            growth.add(exact, kind, owner, token)?;
        }
        let mut central = self.lock(token);
        let found = central.find(state, want);
        drop(central);
        drop(growth);
        // Its sleep may have been without a timeout.
        if short || self.settings.keep_idle.is_some() {
            self.wake();
        }
        Core::count(&self.tallies.growths);
        if joins && found.is_none() {
            // The pieces lie where the last range does not end: of no use.
            return self.grow_for(state, want, Pieces::One, token);
        }
        Ok(found)
    }

    /// Bytes that a slab for `want` has at least: behind what `owner` has at the last one's end, where
    /// it joins.
    fn exact_for(
        &self,
        central: &Central,
        owner: Owner,
        want: Want,
        joins: bool,
    ) -> Result<usize, DeviceError> {
        let (kind, wanted) = (want.kind(), want.bytes());
        let tail = if joins { central.heap.tail(owner, kind) } else { 0 };
        let missing = wanted.saturating_sub(tail).max(1);
        let exact = missing.checked_next_multiple_of(self.sources[kind as usize].granularity());
        let (limit, reserved) = (self.settings.limit(), central.reserved);
        let fits = exact.filter(|&exact| exact <= limit.saturating_sub(reserved));
        fits.ok_or(DeviceError::Limit { limit, wanted, reserved })
    }

    /// Bytes of a slab for `want`, where memory is not short: `exact`, for which there is room,
    /// or more.
    fn slab_for(&self, central: &mut Central, state: &StreamState, want: Want, exact: usize) -> usize {
        let (kind, limit, reserved) = (want.kind(), self.settings.limit(), central.reserved);
        let several = central.streams.len() > 1;
        let used = central.live_bytes();
        // Nothing is left over then: neither the last of the limit, nor where plenty lies about.
        if reserved > limit / 4 * 3 || several && reserved > used + used / PLENTY {
            return exact;
        }
        let granularity = self.sources[kind as usize].granularity();
        // So that small programs stay small and one of many streams does not take for all.
        let live = state.local_within(central).live_bytes() as usize;
        let shared = (live / SHARED_OF).clamp(SHARED, 2 * SHARED);
        let alike = kind == Kind::Small || self.joins(kind);
        let least = if alike || want.bytes() > shared / 2 { 0 } else { shared };
        let is_in_pieces = !several && !alike && reserved >= used + exact;
        let most = self.settings.slab_bytes;
        let (ahead, most, unit) =
            if is_in_pieces { (AHEAD_OF_PIECES, most, granularity) } else { (AHEAD, most.min(WHOLE), exact) };
        let part = (live / ahead).max(least).next_multiple_of(granularity).min(most) / unit * unit;
        // The limit is any number, and may just have been lowered.
        let part = part.min(limit - reserved);
        exact.max(part - part % granularity)
    }

    /// Whether neighbouring slabs are one piece. Not where each is registered by itself: a
    /// block that lay in two would have two keys.
    pub(super) fn joins(&self, kind: Kind) -> bool {
        self.registrar.is_none() && self.sources[kind as usize].joins()
    }

    /// On an error nothing stays.
    fn slab_birth(&self, bytes: usize, kind: Kind, token: &DriverToken) -> Result<Slab, DeviceError> {
        let source = &self.sources[kind as usize];
        let _span = span!(debug_span, "slab", source = source.name(), bytes);
        let failed = |error| DeviceError::Source { bytes, name: source.name(), source: error };
        let segment = source.grow(bytes, token).map_err(failed)?;
        let key = match &self.registrar {
            None => MemoryKey::default(),
            Some(registrar) => {
                match by_program("Registrar::register", segment, || registrar.register(segment, token)) {
                    Ok(key) => key,
                    Err(error) => {
                        self.shrink(segment, kind, token);
                        return Err(DeviceError::Registration { bytes, source: error });
                    }
                }
            }
        };
        log!(debug, source = source.name(), bytes = segment.bytes, "a device pool grew by a slab");
        Ok(Slab { segment, key, kind, used: Cell::new(0) })
    }

    fn shrink(&self, segment: Segment, kind: Kind, token: &DriverToken) -> bool {
        // SAFETY: no block lies in it, and it is registered no more.
        let shrink = || unsafe { self.sources[kind as usize].shrink(segment, token) };
        let shrunk = by_program("Source::shrink", segment, shrink);
        if let Err(error) = &shrunk {
            log!(warn, %error, "a segment could not be given back");
        }
        shrunk.is_ok()
    }

    /// Gives slabs back that hold no block and that no stream's work reaches, and those
    /// that could not be deregistered before; bytes.
    pub(super) fn release(&self, mut slabs: Vec<Slab>, token: &mut DriverToken) -> usize {
        let fresh = slabs.len();
        slabs.append(&mut self.lock(token).registered_still);
        let mut bytes = 0;
        let mut still = Vec::new();
        for (at, slab) in slabs.into_iter().enumerate() {
            let Slab { segment, key, kind, .. } = slab;
            if let Some(registrar) = &self.registrar
                && let Err(error) =
                    by_program("Registrar::deregister", segment, || registrar.deregister(segment, key, token))
            {
                // Still registered: its memory must not become another's.
                if at < fresh {
                    log!(warn, %error, "a slab could not be deregistered: it stays");
                }
                still.push(slab);
                continue;
            }
            guarded("an alarm", || self.inspect_slab(segment.start as u64, segment.bytes as u64, token));
            self.watch.event(trace::Kind::Trim, 0, segment.bytes, segment.start as u64);
            let source = self.sources[kind as usize].name();
            log!(debug, source, bytes = segment.bytes, "a device pool gives a slab back");
            if self.shrink(segment, kind, token) {
                Core::count(&self.tallies.releases);
            }
            bytes += segment.bytes;
        }
        let mut central = self.lock(token);
        central.reserved -= bytes;
        central.registered_still.append(&mut still);
        bytes
    }
}

/// A slab that is being added. Its end, whatever it is, lets others try.
struct Growth<'a> {
    core: &'a Core,
    /// Bytes counted as reserved that no slab has.
    reserved: usize,
}

impl Growth<'_> {
    /// A slab of `bytes`, which are counted as reserved already.
    fn add(
        &mut self,
        bytes: usize,
        kind: Kind,
        owner: Owner,
        token: &mut DriverToken,
    ) -> Result<(), DeviceError> {
        let slab = self.core.slab_birth(bytes, kind, token)?;
        self.core.watch.event(trace::Kind::Grow, 0, slab.segment.bytes, slab.start());
        let mut central = self.core.lock(token);
        central.reserved += slab.segment.bytes - bytes;
        self.reserved -= bytes;
        central.peak_reserved = central.peak_reserved.max(central.reserved);
        central.heap.add(slab, self.core.joins(kind), owner);
        Ok(())
    }
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let mut token = DriverToken::at_entry();
        let mut central = self.core.lock(&mut token);
        central.reserved -= self.reserved;
        central.growing.end();
        drop(central);
        self.core.grown.notify_all();
    }
}

impl Central {
    /// In what the stream may have now.
    pub(super) fn find(&mut self, state: &Arc<StreamState>, want: Want) -> Option<BlockRef> {
        self.find_at(state, want).map(|(block, _)| block)
    }

    /// The same, and whether it is the hub's ([`Level::Others`]).
    pub(super) fn find_at(&mut self, state: &Arc<StreamState>, want: Want) -> Option<(BlockRef, Level)> {
        let first = self.find_now(state, want);
        let found = first.or_else(|| if self.poll() { self.find_now(state, want) } else { None });
        found.or_else(|| self.find_united(state, want))
    }

    /// Blocks of these lengths, all of one kind, side by side: of one range if there is
    /// one. In their order.
    pub(super) fn find_row(
        &mut self,
        state: &Arc<StreamState>,
        kind: Kind,
        lengths: &[usize],
    ) -> Option<(Vec<BlockRef>, Level)> {
        let (last, others) = lengths.split_last()?;
        let sum = lengths.iter().try_fold(0usize, |sum, &bytes| sum.checked_add(bytes))?;
        self.collect(state);
        let (mut rest, level) = self.take(state, kind, sum)?;
        let mut row = Vec::with_capacity(lengths.len());
        for &bytes in others {
            let next = self.heap.split(rest, bytes);
            row.push(std::mem::replace(&mut rest, next));
        }
        debug_assert!(rest.bytes.get() >= *last);
        row.push(rest);
        Some((row, level))
    }

    fn find_now(&mut self, state: &Arc<StreamState>, want: Want) -> Option<(BlockRef, Level)> {
        self.collect(state);
        match want {
            Want::Large(bytes) => self.take(state, want.kind(), bytes),
            Want::Small(class) => {
                let kept = state.local_within(self).pop_small(class);
                let kept = kept.or_else(|| self.refill(state, class));
                kept.map(|block| (block, Level::Pool)).or_else(|| self.carve(state, class))
            }
        }
    }

    fn take(&mut self, state: &StreamState, kind: Kind, bytes: usize) -> Option<(BlockRef, Level)> {
        let (others, count) = self.open_to(state);
        let slack = if self.streams.len() > 1 { bytes / CLOSE } else { usize::MAX };
        let (block, owner) = self.heap.take((state.owner, &others[..count]), kind, bytes, slack)?;
        let is_ours = owner == state.owner || owner == ANYBODY;
        Some((block, if is_ours { Level::Pool } else { Level::Others }))
    }

    /// Whose memory the stream may have besides its own.
    fn open_to(&self, state: &StreamState) -> ([Owner; 2], usize) {
        match &self.hub {
            Some(hub) if state.epoch() == self.epoch => ([ANYBODY, hub.owner], 2),
            _ => ([ANYBODY; 2], 1),
        }
    }

    /// Where ranges of the stream's and of those that it may have besides are neighbours. The only
    /// stream of a pool gets all that is anybody's: among several it would have everything.
    fn find_united(&mut self, state: &Arc<StreamState>, want: Want) -> Option<(BlockRef, Level)> {
        if self.streams.len() > 1 {
            let (others, count) = self.open_to(state);
            let owners = [state.owner, others[0], others[1]];
            let united = self.heap.unite(&owners[..=count], want.kind(), want.bytes());
            return united.then(|| self.find_now(state, want)).flatten();
        }
        let (own, anybody) = (self.heap.free_bytes(state.owner), self.heap.free_bytes(ANYBODY));
        if own == 0 || anybody == 0 || own + anybody < want.bytes() {
            return None;
        }
        let mut all = Stack::default();
        self.heap.detach(ANYBODY, &mut all);
        self.take_in(&mut all, state.owner);
        self.find_now(state, want)
    }

    /// In ranges that small blocks for anybody leave when they go: those of the spans of which
    /// nothing is in use.
    fn find_in_bins(&mut self, state: &Arc<StreamState>, want: Want) -> Option<BlockRef> {
        if want.kind() == Kind::Large || self.bin_bytes < self.reserved / BINS + want.bytes() {
            return None;
        }
        self.dissolve_spans();
        self.find_now(state, want).map(|(block, _)| block)
    }

    fn refill(&mut self, state: &Arc<StreamState>, class: Class) -> Option<BlockRef> {
        let block = self.pop_bin(class)?;
        let count = (REFILL_BYTES / classes::size_of(class)).clamp(1, REFILL);
        for _ in 1..count {
            let Some(more) = self.pop_bin(class) else { break };
            state.local_within(self).put(more);
        }
        Some(block)
    }

    /// Cuts a range into blocks of `class`; all but one go to the stream's cache.
    fn carve(&mut self, state: &Arc<StreamState>, class: Class) -> Option<(BlockRef, Level)> {
        let (count, bytes) = classes::span(class);
        let (range, level) = self.take(state, Kind::of(bytes), bytes)?;
        let blocks: Box<[BlockRef]> = (0..count).map(|_| self.heap.make()).collect();
        let span = Box::new(Span { range, blocks, gathered: Cell::new(0) });
        let span = NonNull::from(Box::leak(span));
        // SAFETY: just made; freed when all its blocks are gathered.
        let blocks = unsafe { &span.as_ref().blocks };
        let size = classes::size_of(class);
        for (at, &block) in blocks.iter().enumerate() {
            block.address.set(range.address.get() + (at * size) as u64);
            block.bytes.set(size);
            block.class.set(class);
            block.slab.set(range.slab.get());
            block.span.set(Some(span));
        }
        debug_assert_eq!(range.class.get(), NO_CLASS);
        let mut local = state.local_within(self);
        for &block in blocks.iter().skip(1) {
            local.put(block);
        }
        blocks.first().map(|&block| (block, level))
    }
}
