//! Allreduce that does not block. MPI reduces, on the pinned chunks.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::engine::{Handed, Key};
use super::lent::{Lent, Marks, Receiving, Sending};
use super::pipeline::flow;
use super::request::{OwnedRequest, Request};
use super::scope::Scope;
use crate::buffers::{BufferStream, DeviceBuf};
use crate::calls::Operand;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::operations::{Memory, Number, Reduction, extent, piece};
use crate::paths::Ring;
use std::rc::Rc;

const ALLREDUCE: &str = "MPI_Iallreduce of device memory";

impl DeviceCommunicator {
    /// [`all_reduce_into`](DeviceCommunicator::all_reduce_into) that does not block.
    /// Collective, as [`immediate_broadcast_into`](DeviceCommunicator::immediate_broadcast_into).
    /// It goes through pinned chunks on every path.
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
        let operand = Operand::new(T::ELEMENT, &self.halves, reduction);
        let work = Work { from, to, operand, element: size_of::<T>() };
        let work = all_reduce(self.desk.clone(), ring, marks, work, own);
        Ok(self.engine.submit(Key::Collective, Handed::default(), Box::pin(work)))
    }
}

struct Work {
    from: Memory,
    to: Memory,
    operand: Operand,
    element: usize,
}

async fn all_reduce(
    desk: Rc<Desk>,
    mut ring: Ring,
    marks: Vec<Option<Marks>>,
    work: Work,
    mut mine: Result<(), Error>,
) -> Result<usize, Error> {
    for marks in marks.into_iter().flatten() {
        let waited = marks.passed().await.map_err(|error| desk.report.driver(error));
        mine = mine.and(waited);
    }
    let done = through_chunks(&desk, &mut ring, work, mine).await;
    desk.keep(ring);
    done.map(|()| 0)
}

async fn through_chunks(
    desk: &Desk,
    ring: &mut Ring,
    work: Work,
    mine: Result<(), Error>,
) -> Result<(), Error> {
    let Work { from, to, operand, element } = work;
    let bytes = from.bytes;
    desk.same(ALLREDUCE, bytes, mine).await?;
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
                Some((to.byte(start), half, length))
            },
        )
    };
    let mine = desk.report.ended(outcome.await)?;
    desk.agree(ALLREDUCE, mine).await
}
