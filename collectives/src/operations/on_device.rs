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
use crate::buffers::Kernels;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::{Exported, Path};
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
pub(super) struct Work {
    pub(super) from: Memory,
    /// None where nothing is received.
    pub(super) to: Option<Memory>,
    pub(super) kernel: (Join, Element),
    pub(super) element_bytes: usize,
    /// None for all ranks.
    pub(super) root: Option<Rank>,
}

/// Where a rank's buffers lie: what it reduces, and where it wants the result.
struct Told([DevicePtr; 2]);

/// Of every rank, and whether this one could open them all.
type Introduced = (Vec<Told>, Result<(), Error>);

impl DeviceCommunicator {
    /// Whether reductions are by kernels, where the devices have them: on `ipc`, of two to
    /// eight ranks.
    pub fn reduces_on_device(&self) -> bool {
        self.plan.path == Path::Ipc && (2..=INPUTS as Rank).contains(&self.size())
    }

    /// The kernels, if every rank has them. Collective, with the same `bytes` at all. No count
    /// is too small: on two H200s kernels took 18 us for 16 KiB, most of it for agreeing, and
    /// MPI 28 us for 4 KiB, most of it for the copies to the host and back.
    pub(super) fn kernels(&self, bytes: usize, token: &DriverToken) -> Result<Option<Arc<Kernels>>, Error> {
        if !self.reduces_on_device() || bytes == 0 {
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
        let Some((told, mut mine)) = self.introduce_buffers(state, &work, token)? else {
            return Ok(false);
        };
        let elements = work.from.bytes / work.element_bytes;
        let size = self.size() as usize;
        // In place a result would be written while others still read. A rank that could not
        // open something may decide otherwise, but agrees to nothing.
        let apart = told.iter().all(|Told([from, to])| from != to);
        let is_short = work.from.bytes.saturating_mul(size - 1) <= AT_ONCE && apart;
        let is_whole = work.root.is_some() || is_short;
        let way = if is_whole { "kernels" } else { "kernels, in parts" };
        tracing::debug!(rank = self.rank(), operation, bytes = work.from.bytes, way);
        let own = if is_whole { 0..elements } else { part(self.rank() as usize, size, elements) };
        let to = work.to.filter(|_| mine.is_ok() && work.root.is_none_or(|root| root == self.rank()));
        if let Some(to) = to.filter(|_| !own.is_empty()) {
            let start = own.start * work.element_bytes;
            let inputs: Vec<DevicePtr> =
                told.iter().map(|told| DevicePtr(told.0[0].0 + start as u64)).collect();
            // SAFETY: every rank's memory has these elements, is settled, and is written in the
            // parts of others alone before the ranks have agreed; ours is borrowed mutably.
            // Waited for here.
            let queued = unsafe {
                kernels.queue(work.kernel, to.byte(start), &inputs, own.len(), state.ring.stream(), token)
            };
            let ended = state.ring.wait_stores(token).and(queued);
            mine = ended.map_err(|error| self.report.driver(error));
        }
        self.agree(operation, mine)?;
        if is_whole {
            return Ok(true);
        }
        let mine = self.collect(state, &work, &told, elements, token);
        self.agree(operation, mine.map_err(|error| self.report.driver(error))).map(|()| true)
    }

    /// The others' parts of the result from their devices.
    fn collect(
        &self,
        state: &mut State,
        work: &Work,
        told: &[Told],
        elements: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let Some(to) = work.to else { return Ok(()) };
        let (rank, size) = (self.rank() as usize, told.len());
        let mut queued = Ok(());
        for other in (1..size).map(|step| (rank + step) % size) {
            let part = part(other, size, elements);
            let (start, bytes) = (part.start * work.element_bytes, part.len() * work.element_bytes);
            if bytes > 0 && queued.is_ok() {
                let from = DevicePtr(told[other].0[1].0 + start as u64);
                // SAFETY: the other's part of its result, which it has reduced and does not
                // write before the ranks have agreed again; ours is borrowed mutably. Waited for
                // below.
                queued = unsafe { state.ring.queue_across(to.byte(start), from, bytes, token) };
            }
        }
        state.ring.wait_stores(token).and(queued)
    }

    /// Where every rank's buffers are here. None, at all ranks, where one has none that others
    /// could open. The outer error is MPI's.
    fn introduce_buffers(
        &self,
        state: &mut State,
        work: &Work,
        token: &DriverToken,
    ) -> Result<Option<Introduced>, Error> {
        let mut bytes = [0; 2 * Exported::BYTES];
        for (memory, place) in [Some(work.from), work.to].iter().zip(bytes.chunks_exact_mut(Exported::BYTES))
        {
            let exported = match memory {
                Some(memory) => state.imports.export(memory.at, memory.slab, token),
                None => Ok(Exported::NONE),
            };
            let exported = exported.unwrap_or_else(|error| {
                tracing::warn!(%error, "a reduction goes through MPI: a slab cannot be exported");
                Exported::NONE
            });
            exported.write(place);
        }
        let all = self.whole.gather_all(&bytes).map_err(|error| self.report.mpi(error))?;
        let all: Vec<[Exported; 2]> = all
            .chunks_exact(2 * Exported::BYTES)
            .map(|bytes| [Exported::read(bytes), Exported::read(&bytes[Exported::BYTES..])])
            .collect();
        if all.iter().any(|[from, to]| from.is_none() || (to.is_none() && work.root.is_none())) {
            return Ok(None);
        }
        let (mut told, mut mine) = (Vec::with_capacity(all.len()), Ok(()));
        for (rank, exported) in all.iter().enumerate() {
            let mut places = [DevicePtr(0); 2];
            for (place, exported) in places.iter_mut().zip(exported) {
                match state.imports.find(rank as Rank, exported, token) {
                    Ok(at) => *place = at,
                    Err(error) if mine.is_ok() => mine = Err(self.report.driver(error)),
                    Err(_) => {}
                }
            }
            told.push(Told(places));
        }
        Ok(Some((told, mine)))
    }
}

/// The elements that a rank reduces.
fn part(rank: usize, ranks: usize, elements: usize) -> Range<usize> {
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
