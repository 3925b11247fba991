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
//! lie in blocks of the communicator's own meanwhile. What both forms have in common is here, and the
//! blocking one.
#![allow(unsafe_code)] // names device memory to work that the callers wait for

use super::Memory;
use super::on_device::{Work, part};
use crate::buffers::{DeviceBuf, Gpu, Kernels};
use crate::calls::Operand;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::nodes::{Column, Nodes};
use crate::paths::{Exported, Imports, Path, Ring};
use crate::report::Report;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::reduction::INPUTS;
use pinyard_driver::{DevicePtr, DriverError};
use std::ops::Range;

/// Fewer bytes go to MPI at once: two more agreements would take longer. Not measured between
/// nodes.
const LEAST: usize = 64 << 10;

/// Whether reductions of so many bytes are, where the devices have kernels. The same at every rank.
pub(crate) fn reduces_nodes_first(path: Path, nodes: &Nodes, bytes: usize) -> bool {
    path == Path::IpcAndStaged && bytes >= LEAST && nodes.most() as usize <= INPUTS
}

/// One rank's share in such a reduction, before any rank has been told of it. Nothing of it is
/// exported: the ranks agree first, and may give back all that was exported when they do.
pub(crate) struct Share {
    /// Where this rank's part goes, and the parts of the others that it wants: its own result, a
    /// block, or nowhere.
    result: Option<Memory>,
    /// Stands as long as the reduction.
    _block: Option<DeviceBuf<u8>>,
}

impl Share {
    /// Whether the others of its node cannot read from this rank.
    fn is_closed(&self, work: &Work) -> bool {
        work.from.slab.is_none() || self.result.is_some_and(|result| result.slab.is_none())
    }
}

/// A rank on its node, which is first.
pub(crate) struct NodeFirst<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) nodes: &'a Nodes,
    pub(crate) imports: &'a Imports,
    pub(crate) report: Report,
    pub(crate) rank: Rank,
}

/// By place on the node: what is reduced, and the rank's part of the result.
pub(crate) type Places = Vec<[DevicePtr; 2]>;

impl NodeFirst<'_> {
    /// This rank's share of what is wanted, and whether it has none or a closed one: then MPI, which
    /// needs no memory of the device, reduces everything at every rank.
    pub(crate) fn offer(&self, is_wanted: bool, work: &Work) -> (Option<Share>, bool) {
        if !is_wanted {
            return (None, false);
        }
        let share = self.share(work);
        let share = share.inspect_err(|error| tracing::warn!(%error, "a reduction goes through MPI")).ok();
        let is_closed = share.as_ref().is_none_or(|share| share.is_closed(work));
        (share, is_closed)
    }

    /// Where this rank's part goes. Nothing is queued.
    fn share(&self, work: &Work) -> Result<Share, Error> {
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
    pub(crate) fn tell(
        &self,
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
                Some((at, slab)) => self.imports.export(at, slab, token),
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

    /// Where the buffers of each rank of the node are here.
    pub(crate) fn find(&self, told: &[u8], token: &DriverToken) -> Result<Places, Error> {
        let node = self.nodes.of(self.rank);
        let ranks = told.chunks_exact(2 * Exported::BYTES).enumerate();
        ranks
            .map(|(place, told)| {
                let rank = self.nodes.rank(node, place as Rank);
                let find = |told: &[u8]| self.imports.find(rank, &Exported::read(told), token);
                let (from, to) = told.split_at(Exported::BYTES);
                Ok([find(from)?, find(to)?])
            })
            .collect::<Result<_, _>>()
            .map_err(|error| self.report.driver(error))
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

    /// Queues what this rank reduces of its node on the stream of stores.
    ///
    /// # Safety
    /// The memory of all ranks of the node is settled, and stands until they have agreed; each
    /// writes its own part of its own alone. Waited for before that.
    pub(crate) unsafe fn queue(
        &self,
        (work, share): (&Work, &Share),
        places: &Places,
        (kernels, ring): (&Kernels, &Ring),
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let own = self.own_part(work);
        // Where a rank has nothing to read from, it fails, and all with it.
        let is_readable = places.iter().all(|[from, _]| from.0 != 0);
        let Some(result) = share.result.filter(|_| is_readable && !own.is_empty()) else { return Ok(()) };
        let inputs: Vec<DevicePtr> =
            places.iter().map(|[from, _]| DevicePtr(from.0 + own.start as u64)).collect();
        let (to, elements) = (result.byte(own.start), own.len() / work.element_bytes);
        // SAFETY: the caller's contract.
        unsafe { kernels.queue(work.kernel, to, &inputs, elements, ring.stream(), token) }
    }

    /// What MPI reduces between the nodes in place, and the root among the ranks of the column, if
    /// there is one: `work` of these.
    pub(crate) fn between(&self, work: &Work, share: &Share, column: &Column) -> Option<Work> {
        let own = self.own_part(work);
        let result = share.result.filter(|_| !own.is_empty())?;
        let part = Memory { at: result.byte(own.start), bytes: own.len(), slab: None };
        let root = work.root.map(|root| column.rank_of_node(self.nodes.of(root)));
        let to = root.is_none_or(|root| root == column.ranks.rank()).then_some(part);
        Some(Work { from: part, to, root, ..*work })
    }

    /// Queues copies of the others' parts of the result, where this rank has one.
    ///
    /// # Safety
    /// The ranks have agreed that the parts are there, and do not write them before they have agreed
    /// again; ours is nobody's. Waited for before that.
    pub(crate) unsafe fn queue_collect(
        &self,
        work: &Work,
        places: &Places,
        ring: &Ring,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let Some(to) = work.to else { return Ok(()) };
        let (place, ranks) = (self.nodes.here.rank(), places.len() as Rank);
        for other in (1..ranks).map(|step| (place + step) % ranks) {
            let part = self.part_of(other, work);
            if !part.is_empty() {
                let from = places[other as usize][1];
                // SAFETY: the caller's contract.
                unsafe { ring.queue_across(to.byte(part.start), from, part.len(), token) }?;
            }
        }
        Ok(())
    }
}

impl DeviceCommunicator {
    pub(super) fn node_first(&self) -> NodeFirst<'_> {
        let (gpu, nodes, imports) = (&self.gpu, &self.nodes, &*self.desk.imports);
        NodeFirst { gpu, nodes, imports, report: self.report, rank: self.rank() }
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
        let (token, first) = (DriverToken::at_entry(), self.node_first());
        let state = &mut *self.state.borrow_mut();
        let (tells, mut mine) = first.tell(&work, &share, &token);
        let told = self.nodes.here.gather_all(&tells).map_err(|error| self.report.mpi(error));
        let found = told.and_then(|told| first.find(&told, &token));
        let failed = |error| self.report.driver(error);
        if let (Ok(places), Ok(())) = (&found, &mine) {
            // SAFETY: settled memory of all ranks of the node, borrowed until they have agreed;
            // waited for here.
            let queued = unsafe { first.queue((&work, &share), places, (kernels, &state.ring), &token) };
            mine = state.ring.wait_stores(&token).and(queued).map_err(failed);
        }
        let between =
            self.column.as_ref().and_then(|column| Some((column, first.between(&work, &share, column)?)));
        if let Some((column, Work { from, to, root, .. })) = between {
            // A rank whose kernel has failed, or was not queued, takes part: the others wait for it.
            let reduced = self.reduce_through(state, &column.ranks, (from, to), operand, root, idle);
            mine = mine.and(reduced);
        }
        let places = self.agree(operation, mine.and(found))?;
        // SAFETY: as above: what was reduced is there, and stands until all have agreed again.
        let queued = unsafe { first.queue_collect(&work, &places, &state.ring, &token) };
        let collected = state.ring.wait_stores(&token).and(queued).map_err(failed);
        self.agree(operation, collected)
    }
}
