//! Allreduce that does not block: by kernels where ranks open each other's memory, as the
//! blocking one; elsewhere MPI reduces, on the pinned chunks.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::engine::{Handed, Key};
use super::lent::{Lent, Marks, Receiving, Sending};
use super::pipeline::flow;
use super::request::{OwnedRequest, Request};
use super::scope::Scope;
use crate::buffers::{BufferStream, DeviceBuf, Kernels};
use crate::calls::Operand;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::operations::{Number, Reduction, Work, extent, piece, work};
use crate::paths::Ring;
use pinyard_allocator::DriverToken;
use std::rc::Rc;

const ALLREDUCE: &str = "MPI_Iallreduce of device memory";

impl DeviceCommunicator {
    /// [`all_reduce_into`](DeviceCommunicator::all_reduce_into) that does not block.
    /// Collective, as [`immediate_broadcast_into`](DeviceCommunicator::immediate_broadcast_into).
    /// By kernels on the same paths, with the same bits.
    pub fn immediate_all_reduce_into<'scope, T: Number>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        mine: impl Sending<'scope, T>,
        all: impl Receiving<'scope, T>,
        reduction: Reduction,
    ) -> Result<Request<'scope, ()>, Error> {
        let id = self.begin_all_reduce::<T>(Some(mine.lent()), all.lent(), reduction)?;
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// The same, in place.
    pub fn immediate_all_reduce_in_place<'scope, T: Number>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        buffer: impl Receiving<'scope, T>,
        reduction: Reduction,
    ) -> Result<Request<'scope, ()>, Error> {
        let id = self.begin_all_reduce::<T>(None, buffer.lent(), reduction)?;
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// In place of a buffer of its own, which comes back with the result: without a scope.
    pub fn immediate_all_reduce<T: Number, S: BufferStream>(
        &self,
        mut buffer: DeviceBuf<T, S>,
        reduction: Reduction,
    ) -> Result<OwnedRequest<T, S>, Error> {
        let id = self.begin_all_reduce::<T>(None, self.lend_mut(&mut buffer)?, reduction)?;
        Ok(OwnedRequest::new(&self.engine, id, buffer))
    }

    fn begin_all_reduce<T: Number>(
        &self,
        mine: Option<Lent<'_>>,
        all: Lent<'_>,
        reduction: Reduction,
    ) -> Result<u64, Error> {
        self.ready(&[])?;
        let to = all.memory::<T>();
        let mut own = self.own(all.place);
        let mut from = to;
        let mut marks = vec![all.marks];
        if let Some(mine) = mine {
            own = own.and(self.own(mine.place));
            from = mine.memory::<T>();
            if from.bytes != to.bytes {
                own = own.and(Err(self.report.unequal(ALLREDUCE, to.bytes, self.rank(), from.bytes as u64)));
            }
            marks.push(mine.marks);
        }
        let ring = self.desk.ring()?;
        let operand = Operand::new(T::ELEMENT, &self.operations, reduction);
        let work = work::<T>(from, Some(to), reduction, None);
        let work = all_reduce(self.desk.clone(), ring, marks, work, operand, own);
        Ok(self.engine.submit(Key::Collective, Handed::default(), Box::pin(work)))
    }
}

async fn all_reduce(
    desk: Rc<Desk>,
    mut ring: Ring,
    marks: Vec<Option<Marks>>,
    work: Work,
    operand: Operand,
    mut mine: Result<(), Error>,
) -> Result<usize, Error> {
    for marks in marks.into_iter().flatten() {
        let waited = marks.passed().await.map_err(|error| desk.report.driver(error));
        mine = mine.and(waited);
    }
    let done = joined(&desk, &mut ring, work, operand, mine).await;
    desk.keep(ring);
    done.map(|()| 0)
}

async fn joined(
    desk: &Desk,
    ring: &mut Ring,
    work: Work,
    operand: Operand,
    mine: Result<(), Error>,
) -> Result<(), Error> {
    desk.same(ALLREDUCE, work.from.bytes, mine).await?;
    if work.from.bytes == 0 {
        return Ok(());
    }
    if let Some(kernels) = desk.kernels().await?
        && by_kernels(desk, ring, &kernels, work).await?
    {
        return Ok(());
    }
    through_chunks(desk, ring, work, operand).await
}

/// `false`, at all ranks: memory of one is in no slab that others can open, and nothing was done.
async fn by_kernels(desk: &Desk, ring: &mut Ring, kernels: &Kernels, work: Work) -> Result<bool, Error> {
    let tells = work.tells(&desk.imports, &DriverToken::at_entry());
    let told = desk.gather(&tells).await?;
    let here = (&*desk.imports, desk.report, desk.rank());
    let Some((found, mut mine)) = work.find(&told, here, &DriverToken::at_entry()) else { return Ok(false) };
    tracing::debug!(
        rank = desk.rank(),
        operation = ALLREDUCE,
        bytes = work.from.bytes,
        way = Work::way(&found)
    );
    if mine.is_ok() {
        // SAFETY: lent memory, which stands until the operation is done, after the ranks have
        // agreed. Waited for here.
        let queued = unsafe { work.queue(kernels, &found, ring, &DriverToken::at_entry()) };
        mine = desk.across(ring, queued).await;
    }
    desk.agree(ALLREDUCE, mine).await?;
    if found.is_whole {
        return Ok(true);
    }
    // SAFETY: as above; the ranks have agreed, and do again.
    let queued = unsafe { work.queue_collect(&found, ring, &DriverToken::at_entry()) };
    let mine = desk.across(ring, queued).await;
    desk.agree(ALLREDUCE, mine).await.map(|()| true)
}

async fn through_chunks(desk: &Desk, ring: &mut Ring, work: Work, operand: Operand) -> Result<(), Error> {
    let Work { from, to, element_bytes: element, .. } = work;
    let bytes = from.bytes;
    // A slot has what is sent, and behind it what is received.
    let half = desk.plan.chunk_bytes / 2 / 64 * 64;
    let piece = piece(bytes, half);
    // SAFETY: lent memory of these bytes, which stands until the operation is done; two pieces
    // fit a slot. In place, a piece is loaded before it is stored.
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
                desk.later.start_reduce(slot, slot.wrapping_add(half), length / element, operand, None)
            },
            |number| {
                let (start, length) = extent(bytes, piece, number);
                to.map(|to| (to.byte(start), half, length))
            },
        )
    };
    let mine = desk.report.ended(outcome.await)?;
    desk.agree(ALLREDUCE, mine).await
}
