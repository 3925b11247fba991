//! The whole pool looked over at one moment: the pool's lock and every cache's are
//! held, so that no block changes hands. Frees go to inboxes meanwhile and wait for
//! nothing. Nothing is allocated under the locks: room is made before, and again if
//! the pool has outgrown it.
//!
//! A block is in use if it has wanted bytes. Every other block of memory was noted
//! where it lies, or is in the hands of a thread that moves it.

#![allow(unsafe_code)]

use super::block::{ANYBODY, BlockRef, NO_CLASS, State};
use super::classes::CLASSES;
use super::core::{Central, Core};
use super::counts::{Counts, Sizes};
use super::local::Local;
use super::places::Departed;
use super::snapshot::{BlockSnapshot, BlockState, SlabSnapshot};
use super::stats::{DeviceStats, Hits};
use super::stream::StreamState;
use crate::latch::Guard;
use crate::source::DriverToken;
use std::sync::Arc;

/// Where a block that is not in the heap was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Nowhere: between two places.
    Moving,
    /// In a stream's cache.
    Kept(u32),
    /// In a shared bin.
    Bin,
    /// Detached, until its stream has passed.
    Stolen,
    /// Dropped, until its users have passed.
    Used,
    /// Cut into small blocks, which are counted instead.
    Cut,
}

/// Of one stream.
#[derive(Clone, Copy)]
pub(super) struct StreamCensus {
    pub(super) id: u64,
    pub(super) counts: Counts,
    pub(super) kept_bytes: usize,
    pub(super) hits: Hits,
}

#[derive(Default)]
pub(super) struct Census {
    pub(super) stats: DeviceStats,
    pub(super) streams: Vec<StreamCensus>,
    /// Allocations of all streams, those included that have left.
    pub(super) sizes: Sizes,
    pub(super) slabs: Vec<SlabSnapshot>,
    pub(super) blocks: Vec<BlockSnapshot>,
}

impl Census {
    fn make_room(&mut self, room: [usize; 3]) {
        // A reserve: the pool may grow meanwhile.
        let [streams, slabs, blocks] = room.map(|count| count + count / 8 + 64);
        self.streams.reserve_exact(streams);
        self.slabs.reserve_exact(slabs);
        self.blocks.reserve_exact(blocks);
    }

    fn has_room(&self, room: [usize; 3]) -> bool {
        let [streams, slabs, blocks] = room;
        self.streams.capacity() >= streams
            && self.slabs.capacity() >= slabs
            && self.blocks.capacity() >= blocks
    }
}

impl Core {
    pub(super) fn census(&self, token: &mut DriverToken) -> Census {
        let mut census = Census::default();
        let mut frozen: Vec<Arc<StreamState>> = Vec::new();
        loop {
            let mut central = self.lock(token);
            let room = [central.streams.len(), central.heap.slab_count(), central.heap.descriptors().len()];
            if census.has_room(room) && frozen.capacity() >= central.streams.len() {
                frozen.extend(central.streams.iter().cloned());
                central.censuses = central.censuses.wrapping_add(1);
                self.look_over(&central, &frozen, &mut census);
                return census;
            }
            drop(central);
            census.make_room(room);
            frozen.reserve_exact(census.streams.capacity());
        }
    }

    fn look_over(&self, central: &Central, frozen: &[Arc<StreamState>], census: &mut Census) {
        let number = central.censuses;
        let note = |block: BlockRef, place| block.noted.set((number, place));
        // All of them, before any is looked at: a thread holds one cache's lock at most,
        // and asks for the pool's with none.
        let locals: Vec<Guard<'_, Local>> = frozen.iter().map(|state| state.freeze(central)).collect();
        let Departed { mut counts, sizes, mut hits } = central.departed;
        census.sizes = sizes;
        let mut kept = 0;
        for (state, local) in frozen.iter().zip(&locals) {
            local.each_kept(|block| note(block, Place::Kept(state.owner)));
            let of_stream = StreamCensus {
                id: state.id,
                counts: local.counts(),
                kept_bytes: local.cached() + central.heap.free_bytes(state.owner),
                hits: state.levels.hits(local.counts().allocations),
            };
            counts += state.part(local);
            census.sizes += local.sizes();
            kept += local.cached();
            hits.add(of_stream.hits);
            if !state.has_left() {
                census.streams.push(of_stream);
            }
        }
        central.bins.iter().flat_map(|bin| bin.iter()).for_each(|block| note(block, Place::Bin));
        let place = |used| if used { Place::Used } else { Place::Stolen };
        central.waiting.each(|block, used| note(block, place(used)));
        for block in central.heap.descriptors().filter(|block| !block.slab.get().is_null()) {
            if let Some(span) = block.span.get() {
                // SAFETY: a span stands while a block of it does.
                note(unsafe { span.as_ref() }.range, Place::Cut);
            }
        }
        for slab in central.heap.slabs() {
            census.slabs.push(SlabSnapshot {
                address: slab.start(),
                bytes: slab.segment.bytes as u64,
                registered: self.registrar.is_some(),
            });
        }
        for block in central.heap.descriptors().filter(|block| !block.slab.get().is_null()) {
            let noted = Some(block.noted.get()).filter(|&(at, _)| at == number).map(|(_, place)| place);
            if noted != Some(Place::Cut) {
                census.blocks.push(one(block, noted.unwrap_or(Place::Moving), frozen));
            }
        }
        census.stats = self.stats_of(central, counts, kept, hits);
    }
}

fn one(block: BlockRef, noted: Place, frozen: &[Arc<StreamState>]) -> BlockSnapshot {
    let id = |owner: u32| frozen.get((owner as usize).wrapping_sub(1)).map(|state| state.id);
    let wanted = block.wanted.get();
    let class = block.class.get();
    // Small blocks are none of the heap's.
    let of_heap = if class == NO_CLASS { block.state.get() } else { State::Out };
    let (state, stream) = match (of_heap, noted) {
        (State::Free(ANYBODY), _) => (BlockState::Free, None),
        (State::Free(owner), _) => (BlockState::Free, id(owner)),
        (_, Place::Used) => (BlockState::Dropped, home_id(block)),
        _ if wanted > 0 => (BlockState::Live, home_id(block)),
        (_, Place::Kept(owner)) => (BlockState::Cached, id(owner)),
        (_, Place::Bin) => (BlockState::Cached, None),
        (_, Place::Stolen) => (BlockState::Waiting, None),
        _ => (BlockState::Moving, None),
    };
    BlockSnapshot {
        address: block.address.get(),
        bytes: block.bytes.get() as u64,
        wanted: wanted as u64,
        class: Some(class).filter(|&class| class != NO_CLASS && (class as usize) < CLASSES),
        state,
        stream,
        age_ns: None,
    }
}

/// Of a block in use.
fn home_id(block: BlockRef) -> Option<u64> {
    // SAFETY: a block in use has a home, which stands as long as the core.
    unsafe { block.home.get().as_ref() }.map(|home| home.id)
}
