//! Reductions between nodes: each node first.
//!
//! ```text
//! part p     the rank at place p of each node    reduces it, read from every device of its node
//!            those ranks of all nodes            MPI reduces it, on pinned chunks
//!            all                                 agree: all parts are there
//!            who wants them, on each node        copies them from the devices of the others
//!            all                                 agree: nobody reads any more
//! ```
//!
//! So each byte of a node goes to others once, whatever ranks the node has, and as many ranks of
//! it as the smallest node has send at a time. Of a Reduce, the parts of ranks that receive nothing
//! lie in blocks of the communicator's own meanwhile.
#![allow(unsafe_code)] // names device memory to work that has ended when it returns

use super::Memory;
use super::on_device::{Work, part};
use crate::buffers::{DeviceBuf, Kernels};
use crate::calls::Operand;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::{Exported, Path};
use crate::report::Report;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;
use pinyard_driver::reduction::INPUTS;
use std::ops::Range;

/// Fewer bytes go to MPI at once: two more agreements would take longer. Not measured between
/// nodes.
const LEAST: usize = 64 << 10;

/// One rank's share in such a reduction, before any rank has been told of it. Nothing of it is
/// exported: the ranks agree first, and may give back all that was exported when they do.
pub(super) struct Share {
    /// Where this rank's part goes, and the parts of the others that it wants: its own result, a
    /// block, or nowhere.
    result: Option<Memory>,
    /// Stands as long as the reduction.
    _block: Option<DeviceBuf<u8>>,
}

impl Share {
    /// Whether the others of its node cannot read from this rank.
    pub(super) fn is_closed(&self, work: &Work) -> bool {
        work.from.slab.is_none() || self.result.is_some_and(|result| result.slab.is_none())
    }
}

impl DeviceCommunicator {
    /// Whether reductions of so many bytes are, where the devices have kernels. The same at every
    /// rank.
    pub(super) fn reduces_nodes_first(&self, bytes: usize) -> bool {
        self.plan.path == Path::IpcAndStaged && bytes >= LEAST && self.nodes.most() as usize <= INPUTS
    }

    /// Where this rank's part goes. Nothing is queued.
    pub(super) fn share(&self, work: &Work) -> Result<Share, Error> {
        let mut block = None;
        let mut result = work.to;
        let own = self.own_part(work);
        if result.is_none() && !own.is_empty() {
            let failed = |source| self.report.staging(source);
            let stream = self.gpu.own_stream().map_err(failed)?;
            let new: DeviceBuf<u8> = self.gpu.alloc(own.len(), &stream).map_err(failed)?;
            let place = Memory::of::<u8>(new.settle().map_err(failed)?.place(), own.len());
            // As if all of the result were there, of which this part alone is used.
            result = Some(Memory { at: DevicePtr(place.at.0.wrapping_sub(own.start as u64)), ..place });
            block = Some(new);
        }
        Ok(Share { result, _block: block })
    }

    /// What this rank tells of its memory: what cannot be exported is nowhere, `NONE`.
    fn tell(
        &self,
        state: &State,
        work: &Work,
        share: &Share,
        token: &DriverToken,
    ) -> ([u8; 2 * Exported::BYTES], Result<(), Error>) {
        let start = self.own_part(work).start as u64;
        let result = share.result.map(|result| (DevicePtr(result.at.0.wrapping_add(start)), result.slab));
        let (mut tells, mut mine) = ([0; 2 * Exported::BYTES], Ok(()));
        let memories = [Some((work.from.at, work.from.slab)), result];
        for (memory, place) in memories.into_iter().zip(tells.chunks_exact_mut(Exported::BYTES)) {
            let exported = match memory {
                Some((at, slab)) => state.imports.export(at, slab, token),
                None => Ok(Exported::NONE),
            };
            let exported = exported.unwrap_or_else(|error| {
                mine = Err(self.report.driver(error));
                Exported::NONE
            });
            exported.write(place);
        }
        (tells, mine)
    }

    /// The bytes that this rank reduces.
    fn own_part(&self, work: &Work) -> Range<usize> {
        self.part_of(self.nodes.here.rank(), work)
    }

    fn part_of(&self, place: Rank, work: &Work) -> Range<usize> {
        let parts = self.nodes.least() as usize;
        if place as usize >= parts {
            return 0..0;
        }
        let elements = part(place as usize, parts, work.from.bytes / work.element_bytes);
        elements.start * work.element_bytes..elements.end * work.element_bytes
    }

    /// Carries it out. All are in it with as many bytes, and none is closed.
    pub(super) fn reduce_nodes_first(
        &self,
        operation: &'static str,
        (kernels, operand): (&Kernels, Operand),
        work: Work,
        share: Share,
        idle: bool,
    ) -> Result<(), Error> {
        tracing::debug!(
            rank = self.rank(),
            operation,
            bytes = work.from.bytes,
            way = "kernels, then MPI on chunks"
        );
        let token = DriverToken::at_entry();
        let state = &mut *self.state.borrow_mut();
        let (tells, mut mine) = self.tell(state, &work, &share, &token);
        let told = self.nodes.here.gather_all(&tells).map_err(|error| self.report.mpi(error));
        let found = told.and_then(|told| self.find_on_node(state, &told, &token));
        let own = self.own_part(&work);
        let result = share.result.filter(|_| !own.is_empty());
        // Where a rank has nothing to read from, it fails, and all with it.
        let readable = found.as_ref().ok().filter(|places| places.iter().all(|[from, _]| from.0 != 0));
        if let (Some(places), Some(result), Ok(())) = (readable, result, &mine) {
            let inputs: Vec<DevicePtr> =
                places.iter().map(|[from, _]| DevicePtr(from.0 + own.start as u64)).collect();
            let (to, elements) = (result.byte(own.start), own.len() / work.element_bytes);
            // SAFETY: settled memory of all ranks of the node, borrowed until they have agreed; each
            // writes its own part of its own alone.
            let queued =
                unsafe { kernels.queue(work.kernel, to, &inputs, elements, state.ring.stream(), &token) };
            mine = state.ring.wait_stores(&token).and(queued).map_err(|error| self.report.driver(error));
        }
        if let (Some(column), Some(result)) = (&self.column, result) {
            let part = Memory { at: result.byte(own.start), bytes: own.len(), slab: None };
            let root = work.root.map(|root| column.rank_of_node(self.nodes.of(root)));
            let receives = root.is_none_or(|root| root == column.ranks.rank()).then_some(part);
            // A rank whose kernel has failed, or was not queued, takes part: the others wait for it.
            let reduced = self.reduce_through(state, &column.ranks, (part, receives), operand, root, idle);
            mine = mine.and(reduced);
        }
        let places = self.agree(operation, mine.and(found))?;
        // SAFETY: as above: what was reduced is there, and stands until all have agreed again.
        let collected = unsafe { self.collect(state, &work, &places, &token) };
        self.agree(operation, collected)
    }

    /// Where the buffers of each rank of the node are here, and its part of the result.
    fn find_on_node(
        &self,
        state: &State,
        told: &[u8],
        token: &DriverToken,
    ) -> Result<Vec<[DevicePtr; 2]>, Error> {
        let node = self.nodes.of(self.rank());
        let ranks = told.chunks_exact(2 * Exported::BYTES).enumerate();
        ranks
            .map(|(place, told)| {
                let rank = self.nodes.rank(node, place as Rank);
                let find = |told: &[u8]| state.imports.find(rank, &Exported::read(told), token);
                let (from, to) = told.split_at(Exported::BYTES);
                Ok([find(from)?, find(to)?])
            })
            .collect::<Result<_, _>>()
            .map_err(|error| Report::of(self.rank()).driver(error))
    }

    /// Copies the others' parts of the result, where this rank has one.
    ///
    /// # Safety
    /// The ranks have agreed that the parts are there, and do not write them before they have agreed
    /// again; ours is nobody's.
    unsafe fn collect(
        &self,
        state: &State,
        work: &Work,
        places: &[[DevicePtr; 2]],
        token: &DriverToken,
    ) -> Result<(), Error> {
        let Some(to) = work.to else { return Ok(()) };
        let (place, ranks) = (self.nodes.here.rank(), places.len() as Rank);
        let mut queued = Ok(());
        for other in (1..ranks).map(|step| (place + step) % ranks) {
            let part = self.part_of(other, work);
            if !part.is_empty() && queued.is_ok() {
                let from = places[other as usize][1];
                // SAFETY: the caller's contract; waited for below.
                queued = unsafe { state.ring.queue_across(to.byte(part.start), from, part.len(), token) };
            }
        }
        state.ring.wait_stores(token).and(queued).map_err(|error| self.report.driver(error))
    }
}
