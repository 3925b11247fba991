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

/// One rank's share in such a reduction, before any rank has been told of it.
pub(super) struct Share {
    /// Where this rank's part goes, and the parts of the others that it wants: its own result, a
    /// block, or nowhere.
    result: Option<Memory>,
    /// Stands as long as the reduction.
    _block: Option<DeviceBuf<u8>>,
    tells: [Exported; 2],
}

impl Share {
    /// Whether the others of its node cannot read from this rank.
    pub(super) fn is_closed(&self) -> bool {
        let [from, result] = &self.tells;
        from.is_none() || (result.is_none() && self.result.is_some())
    }
}

impl DeviceCommunicator {
    /// Whether reductions of so many bytes are, where the devices have kernels. The same at every
    /// rank.
    pub(super) fn reduces_nodes_first(&self, bytes: usize) -> bool {
        self.plan.path == Path::IpcAndStaged && bytes >= LEAST && self.nodes.most() as usize <= INPUTS
    }

    /// What this rank tells of its memory. Nothing is queued.
    pub(super) fn share(&self, work: &Work, token: &DriverToken) -> Result<Share, Error> {
        let state = &*self.state.borrow();
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
        let export = |at: DevicePtr, memory: Memory| {
            state.imports.export(at, memory.slab, token).map_err(|error| self.report.driver(error))
        };
        let from = export(work.from.at, work.from)?;
        let start = own.start as u64;
        let to =
            result.map(|memory| export(DevicePtr(memory.at.0.wrapping_add(start)), memory)).transpose()?;
        Ok(Share { result, _block: block, tells: [from, to.unwrap_or(Exported::NONE)] })
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
        let mut tells = [0; 2 * Exported::BYTES];
        for (told, place) in share.tells.iter().zip(tells.chunks_exact_mut(Exported::BYTES)) {
            told.write(place);
        }
        let told = self.nodes.here.gather_all(&tells).map_err(|error| self.report.mpi(error))?;
        let found = self.find_on_node(state, &told, &token);
        let own = self.own_part(&work);
        let mut mine = Ok(());
        if let (Ok(places), Some(result)) = (&found, share.result.filter(|_| !own.is_empty())) {
            let inputs: Vec<DevicePtr> =
                places.iter().map(|[from, _]| DevicePtr(from.0 + own.start as u64)).collect();
            let (to, elements) = (result.byte(own.start), own.len() / work.element_bytes);
            // SAFETY: settled memory of all ranks of the node, borrowed until they have agreed; each
            // writes its own part of its own alone.
            let queued =
                unsafe { kernels.queue(work.kernel, to, &inputs, elements, state.ring.stream(), &token) };
            mine = state.ring.wait_stores(&token).and(queued).map_err(|error| self.report.driver(error));
        }
        if let (Some(column), Some(result)) = (&self.column, share.result.filter(|_| !own.is_empty())) {
            let part = Memory { at: result.byte(own.start), bytes: own.len(), slab: None };
            let root = work.root.map(|root| column.rank_of_node(self.nodes.of(root)));
            let receives = root.is_none_or(|root| root == column.ranks.rank()).then_some(part);
            // A rank whose kernel has failed takes part: the others wait for it.
            let reduced = self.reduce_through(state, &column.ranks, (part, receives), operand, root, idle)?;
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
