//! Reductions by kernels, on ranks that open each other's memory.
//!
//! ```text
//! part r     rank r      reduces it, read from every rank's device
//!            all         agree: all parts are there
//!            each rank   copies the others' parts from their devices
//!            all         agree: nobody reads any more
//! ```
//!
//! A short one takes no parts: each rank reduces everything, so nobody copies afterwards.
//! Whoever reduces an element takes the ranks in their order: all have the same bits.
#![allow(unsafe_code)] // names device memory to work that has ended when it returns

use super::Memory;
use super::node_first::reduces_nodes_first;
use crate::buffers::Kernels;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::paths::{Exported, Imports, Path, Ring};
use crate::report::Report;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::reduction::{Element, INPUTS, Join};
use pinyard_driver::{DevicePtr, DriverError};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of the other ranks' that one reads sooner than it waits for them a second time: on
/// two H200s that took 8 us.
const AT_ONCE: usize = 1 << 20;
/// Elements that parts are a multiple of.
const ALIGN: usize = 64;

/// What is reduced.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) from: Memory,
    /// None where nothing is received.
    pub(crate) to: Option<Memory>,
    pub(crate) kernel: (Join, Element),
    pub(crate) element_bytes: usize,
    /// None for all ranks.
    pub(crate) root: Option<Rank>,
}

/// What a rank tells of its buffers.
pub(crate) type Tells = [u8; 2 * Exported::BYTES];

/// Where every rank's buffers are here, by rank, and who reduces what.
pub(crate) struct Found {
    /// What is reduced, and where the rank wants the result.
    places: Vec<[DevicePtr; 2]>,
    rank: usize,
    /// Who reduces, reduces everything: nobody copies afterwards.
    pub(crate) is_whole: bool,
    /// The elements that this rank reduces.
    own: Range<usize>,
}

impl Work {
    pub(crate) fn tells(&self, imports: &Imports, token: &DriverToken) -> Tells {
        let mut tells = [0; 2 * Exported::BYTES];
        for (memory, place) in [Some(self.from), self.to].iter().zip(tells.chunks_exact_mut(Exported::BYTES))
        {
            let exported = match memory {
                Some(memory) => imports.export(memory.at, memory.slab, token),
                None => Ok(Exported::NONE),
            };
            let exported = exported.unwrap_or_else(|error| {
                tracing::warn!(%error, "a reduction goes through MPI: a slab cannot be exported");
                Exported::NONE
            });
            exported.write(place);
        }
        tells
    }

    /// What all ranks have told, and whether this `rank` could open it. None, at all ranks, where
    /// one has memory that others could not open.
    pub(crate) fn find(
        &self,
        told: &[u8],
        (imports, report, rank): (&Imports, Report, Rank),
        token: &DriverToken,
    ) -> Option<(Found, Result<(), Error>)> {
        let told: Vec<[Exported; 2]> = told
            .chunks_exact(2 * Exported::BYTES)
            .map(|bytes| [Exported::read(bytes), Exported::read(&bytes[Exported::BYTES..])])
            .collect();
        if told.iter().any(|[from, to]| from.is_none() || (to.is_none() && self.root.is_none())) {
            return None;
        }
        let (mut places, mut mine) = (Vec::with_capacity(told.len()), Ok(()));
        for (rank, exported) in told.iter().enumerate() {
            let mut place = [DevicePtr(0); 2];
            for (place, exported) in place.iter_mut().zip(exported) {
                match imports.find(rank as Rank, exported, token) {
                    Ok(at) => *place = at,
                    Err(error) if mine.is_ok() => mine = Err(report.driver(error)),
                    Err(_) => {}
                }
            }
            places.push(place);
        }
        let (rank, ranks, elements) = (rank as usize, places.len(), self.from.bytes / self.element_bytes);
        // In place a result would be written while others still read. A rank that could not
        // open something may decide otherwise, but agrees to nothing.
        let apart = places.iter().all(|[from, to]| from != to);
        let is_short = self.from.bytes.saturating_mul(ranks - 1) <= AT_ONCE && apart;
        let is_whole = self.root.is_some() || is_short;
        let own = match self.root {
            Some(root) if root as usize != rank => 0..0,
            _ if is_whole => 0..elements,
            _ => part(rank, ranks, elements),
        };
        Some((Found { places, rank, is_whole, own }, mine))
    }

    /// For the log.
    pub(crate) fn way(found: &Found) -> &'static str {
        if found.is_whole { "kernels" } else { "kernels, in parts" }
    }

    /// Queues what this rank reduces on the stream of stores.
    ///
    /// # Safety
    /// Every rank's memory has these elements, is settled, and is written in the parts of others
    /// alone before the ranks have agreed; ours is nobody's. Waited for before that.
    pub(crate) unsafe fn queue(
        &self,
        kernels: &Kernels,
        found: &Found,
        ring: &Ring,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let Some(to) = self.to.filter(|_| !found.own.is_empty()) else { return Ok(()) };
        let start = found.own.start * self.element_bytes;
        let inputs: Vec<DevicePtr> =
            found.places.iter().map(|[from, _]| DevicePtr(from.0 + start as u64)).collect();
        // SAFETY: the caller's contract.
        unsafe { kernels.queue(self.kernel, to.byte(start), &inputs, found.own.len(), ring.stream(), token) }
    }

    /// Queues copies of the others' parts of the result from their devices.
    ///
    /// # Safety
    /// The ranks have agreed that the parts are there, and do not write them before they have agreed
    /// again; ours is nobody's. Waited for before that.
    pub(crate) unsafe fn queue_collect(
        &self,
        found: &Found,
        ring: &Ring,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let Some(to) = self.to else { return Ok(()) };
        let (ranks, elements) = (found.places.len(), self.from.bytes / self.element_bytes);
        for other in (1..ranks).map(|step| (found.rank + step) % ranks) {
            let part = part(other, ranks, elements);
            let (start, bytes) = (part.start * self.element_bytes, part.len() * self.element_bytes);
            if bytes > 0 {
                let from = DevicePtr(found.places[other][1].0 + start as u64);
                // SAFETY: the caller's contract.
                unsafe { ring.queue_across(to.byte(start), from, bytes, token) }?;
            }
        }
        Ok(())
    }
}

/// Whether ranks on this path do, where the devices have kernels.
pub(crate) fn reduces_on_device(path: Path, ranks: Rank) -> bool {
    path == Path::Ipc && (2..=INPUTS as Rank).contains(&ranks)
}

impl DeviceCommunicator {
    /// Whether reductions are by kernels, where the devices have them: on `ipc`, of two to
    /// eight ranks.
    pub fn reduces_on_device(&self) -> bool {
        reduces_on_device(self.plan.path, self.size())
    }

    /// The kernels, if every rank has them. Collective, with the same `bytes` at all. No count
    /// is too small: on two H200s kernels took 18 us for 16 KiB, most of it for agreeing, and
    /// MPI 28 us for 4 KiB, most of it for the copies to the host and back.
    pub(super) fn kernels(&self, bytes: usize, token: &DriverToken) -> Result<Option<Arc<Kernels>>, Error> {
        let are_wanted = self.reduces_on_device() || reduces_nodes_first(self.plan.path, &self.nodes, bytes);
        if !are_wanted || bytes == 0 {
            return Ok(None);
        }
        let mut state = self.state.borrow_mut();
        if let Some(known) = &state.kernels {
            return Ok(known.clone());
        }
        let mine = self.gpu.kernels(token);
        if let Err(error) = &mine {
            tracing::warn!(%error, "reductions go through MPI: the device has no kernels");
        }
        let [missing] =
            self.whole.largest([u64::from(mine.is_err())]).map_err(|error| self.report.mpi(error))?;
        let known = mine.ok().filter(|_| missing == 0);
        state.kernels = Some(known.clone());
        Ok(known)
    }

    /// Carries it out. All have as many bytes. `false`: memory of a rank is in no slab that
    /// others can open, and nothing was done anywhere.
    pub(super) fn reduce_on_device(
        &self,
        operation: &'static str,
        kernels: &Kernels,
        work: Work,
        token: &DriverToken,
    ) -> Result<bool, Error> {
        let state = &mut *self.state.borrow_mut();
        let tells = work.tells(&state.imports, token);
        let told = self.whole.gather_all(&tells).map_err(|error| self.report.mpi(error))?;
        let here = (&*state.imports, self.report, self.rank());
        let Some((found, mut mine)) = work.find(&told, here, token) else { return Ok(false) };
        let way = Work::way(&found);
        tracing::debug!(rank = self.rank(), operation, bytes = work.from.bytes, way);
        let failed = |error| self.report.driver(error);
        if mine.is_ok() {
            // SAFETY: settled memory, borrowed until the caller returns, which is after the ranks
            // have agreed.
            let queued = unsafe { work.queue(kernels, &found, &state.ring, token) };
            mine = state.ring.wait_stores(token).and(queued).map_err(failed);
        }
        self.agree(operation, mine)?;
        if found.is_whole {
            return Ok(true);
        }
        // SAFETY: as above; the ranks have agreed, and do again.
        let queued = unsafe { work.queue_collect(&found, &state.ring, token) };
        let mine = state.ring.wait_stores(token).and(queued).map_err(failed);
        self.agree(operation, mine).map(|()| true)
    }
}

/// The elements that a rank reduces.
pub(super) fn part(rank: usize, ranks: usize, elements: usize) -> Range<usize> {
    let each = elements.div_ceil(ranks).next_multiple_of(ALIGN);
    (rank * each).min(elements)..((rank + 1) * each).min(elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_element_once() {
        for ranks in 1..=INPUTS {
            for elements in [0, 1, 63, 64, 65, 1000, 4096, 4097] {
                let mut next = 0;
                for rank in 0..ranks {
                    let part = part(rank, ranks, elements);
                    assert!(part.start == next.min(elements) && part.start <= part.end);
                    next = part.end;
                }
                assert_eq!(next, elements);
            }
        }
    }
}
