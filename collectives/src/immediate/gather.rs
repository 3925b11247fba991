//! Allgather that does not block.
//!
//! ```text
//! ipc      all tell where their shares are; each copies the others' from their devices
//! direct   MPI_Iallgather of the pointers
//! staged   pieces of all shares through pinned chunks (MPI_Iallgather)
//! ```
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::engine::{Handed, Key};
use super::lent::{Marks, Receiving, Sending};
use super::pipeline::flow;
use super::request::Request;
use super::scope::Scope;
use super::steps::done;
use crate::calls::Rooted;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::operations::{Memory, WORTH, extent};
use crate::paths::{Exported, Path, Ring};
use bytemuck::Pod;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use std::rc::Rc;

const ALLGATHER: &str = "MPI_Iallgather of device memory";

impl DeviceCommunicator {
    /// [`all_gather_into`](DeviceCommunicator::all_gather_into) that does not block. Collective, as
    /// [`immediate_broadcast_into`](DeviceCommunicator::immediate_broadcast_into).
    pub fn immediate_all_gather_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        mine: impl Sending<'scope, T>,
        all: impl Receiving<'scope, T>,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[])?;
        let (mine, all) = (mine.lent(), all.lent());
        let (rank, size, elements) = (self.rank(), self.size(), all.elements);
        let mut own = self.own(mine.place).and(self.own(all.place));
        if elements != mine.elements * size as usize {
            own = own.and(Err(Error::Share { operation: ALLGATHER, rank, elements, size }));
        }
        let share = Share { from: mine.memory::<T>(), to: all.memory::<T>() };
        if self.plan.path == Path::Direct && share.from.bytes > i32::MAX as usize {
            own = own.and(Err(Error::TooLong { rank, bytes: share.from.bytes }));
        }
        let ring = self.desk.ring_for_chunks()?;
        let (desk, handed) = (self.desk.clone(), Handed::default());
        let marks = [mine.marks, all.marks];
        let work = all_gather(desk, ring, handed.clone(), share, marks, own);
        let id = self.engine.submit(Key::Collective, handed, Box::pin(work));
        Ok(Request::new(scope, &self.engine, id, drop))
    }
}

/// This rank's share, and those of all.
#[derive(Clone, Copy)]
struct Share {
    from: Memory,
    to: Memory,
}

async fn all_gather(
    desk: Rc<Desk>,
    ring: Option<Ring>,
    handed: Handed,
    share: Share,
    marks: [Option<Marks>; 2],
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let mine = desk.passed(marks, mine).await;
    let Some(mut ring) = ring else {
        return directly(&desk, &handed, share, mine).await.map(|()| 0);
    };
    let done = carried(&desk, &mut ring, share, mine).await;
    desk.keep(ring);
    done.map(|()| 0)
}

async fn directly(
    desk: &Desk,
    handed: &Handed,
    Share { from, to }: Share,
    mine: Result<(), Error>,
) -> Result<(), Error> {
    desk.same(ALLGATHER, from.bytes, mine).await?;
    // SAFETY: lent memory, of a share and of all shares, which stands until the operation is done;
    // MPI takes its address (the plan).
    let request = unsafe { desk.later.start_shares(Rooted::AllGather, from.host(), to.host(), from.bytes) };
    handed.over();
    done(request.map_err(|error| desk.report.mpi(error))?)
        .await
        .map(drop)
        .map_err(|error| desk.report.mpi(error))
}

async fn carried(
    desk: &Desk,
    ring: &mut Ring,
    share: Share,
    mut mine: Result<(), Error>,
) -> Result<(), Error> {
    let bytes = share.from.bytes;
    // A piece of this rank's, and one of each.
    let places = desk.later.size() as usize + 1;
    let slot = desk.plan.chunk_bytes.max(places * bytes.min(WORTH));
    if desk.plan.path != Path::Ipc {
        mine = mine.and(ring.grow(slot).map_err(|source| desk.report.staging(source)));
    }
    desk.same(ALLGATHER, bytes, mine).await?;
    if bytes == 0 {
        return Ok(());
    }
    if desk.plan.path == Path::Ipc
        && let Some(told) = told(desk, share.from).await?
    {
        let mine = pull(desk, ring, &told, share).await;
        return desk.agree(ALLGATHER, mine).await;
    }
    // Memory that others cannot open: the same at all ranks, who have their ring as it was.
    let slot = if desk.plan.path == Path::Ipc { desk.plan.chunk_bytes } else { slot };
    through_chunks(desk, ring, slot / places, share).await
}

/// Where every rank's share is. None, at all ranks, where others cannot open one.
async fn told(desk: &Desk, from: Memory) -> Result<Option<Vec<Exported>>, Error> {
    let exported = desk.imports.export(from.at, from.slab, &DriverToken::at_entry());
    let exported = exported.unwrap_or_else(|error| {
        tracing::warn!(%error, "an allgather goes through MPI: a slab cannot be exported");
        Exported::NONE
    });
    let mut tells = [0; Exported::BYTES];
    exported.write(&mut tells);
    let told = desk.gather(&tells).await?;
    let told: Vec<Exported> = told.chunks_exact(Exported::BYTES).map(Exported::read).collect();
    Ok(told.iter().all(|told| !told.is_none()).then_some(told))
}

/// Copies the shares from their devices, each rank in an order of its own.
async fn pull(desk: &Desk, ring: &Ring, told: &[Exported], Share { from, to }: Share) -> Result<(), Error> {
    let (rank, bytes, mut queued) = (desk.rank() as usize, from.bytes, Ok(()));
    for other in (0..told.len()).map(|step| (rank + step) % told.len()) {
        let token = DriverToken::at_entry();
        let there = desk.imports.find(other as Rank, &told[other], &token);
        queued = queued.and(there).and_then(|there| {
            // SAFETY: the sender's memory has these bytes, and stands unwritten until the ranks
            // have agreed; ours is nobody's until the operation is done. Waited for below.
            unsafe { ring.queue_across(to.byte(other * bytes), there, bytes, &token) }
        });
    }
    desk.across(ring, queued).await
}

/// Pieces of at most `piece` bytes of every share.
async fn through_chunks(
    desk: &Desk,
    ring: &mut Ring,
    piece: usize,
    Share { from, to }: Share,
) -> Result<(), Error> {
    let (bytes, size) = (from.bytes, desk.later.size() as usize);
    let piece = piece.clamp(1, bytes);
    // SAFETY: lent memory of these bytes, which stands until the operation is done; a piece of
    // each rank, and one more, fit a slot.
    let outcome = unsafe {
        flow(
            ring,
            bytes.div_ceil(piece),
            |number| {
                let (start, length) = extent(bytes, piece, number);
                Some((from.byte(start), 0, length))
            },
            |number, slot| {
                let (_, length) = extent(bytes, piece, number);
                desk.later.start_shares(Rooted::AllGather, slot, slot.wrapping_add(piece), length)
            },
            |number| {
                let (start, length) = extent(bytes, piece, number);
                (0..size).map(move |rank| (to.byte(rank * bytes + start), piece + rank * length, length))
            },
        )
    };
    let mine = desk.report.ended(outcome.await)?;
    desk.agree(ALLGATHER, mine).await
}
