//! Gather, Scatter, Allgather and Alltoall that do not block.
//!
//! ```text
//! ipc      all tell where their shares are; the receivers copy from the senders' devices
//! direct   MPI_Igather, MPI_Iscatter, MPI_Iallgather or MPI_Ialltoall of the pointers
//! staged   the same of pieces of all shares, through pinned chunks
//! ```
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::engine::{Handed, Key, Work};
use super::lent::{Lent, Marks, Receiving, Sending};
use super::parts;
use super::pipeline::flow;
use super::request::Request;
use super::scope::Scope;
use super::steps::done;
use crate::calls::Rooted;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::operations::Shares;
use crate::paths::{Path, Ring};
use bytemuck::Pod;
use mpi::topology::Rank;
use std::rc::Rc;

const GATHER: &str = "MPI_Igather of device memory";
const SCATTER: &str = "MPI_Iscatter of device memory";
const ALLGATHER: &str = "MPI_Iallgather of device memory";
const ALLTOALL: &str = "MPI_Ialltoall of device memory";

/// Collective, as [`immediate_broadcast_into`](DeviceCommunicator::immediate_broadcast_into).
impl DeviceCommunicator {
    /// [`gather_into`](DeviceCommunicator::gather_into) that does not block: `all` is the
    /// root's, and what other ranks give there is not used.
    pub fn immediate_gather_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        root: Rank,
        mine: impl Sending<'scope, T>,
        all: Option<impl Receiving<'scope, T>>,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[root])?;
        let (from, to) = (Some(mine.lent()), all.map(|all| all.lent()));
        let id = self.begin_shares::<T>(GATHER, Rooted::Gather(root), from, to);
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// [`scatter_into`](DeviceCommunicator::scatter_into) that does not block: `all` is the
    /// root's, and what other ranks give there is not used.
    pub fn immediate_scatter_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        root: Rank,
        all: Option<impl Sending<'scope, T>>,
        mine: impl Receiving<'scope, T>,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[root])?;
        let (from, to) = (all.map(|all| all.lent()), Some(mine.lent()));
        let id = self.begin_shares::<T>(SCATTER, Rooted::Scatter(root), from, to);
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// [`all_gather_into`](DeviceCommunicator::all_gather_into) that does not block.
    pub fn immediate_all_gather_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        mine: impl Sending<'scope, T>,
        all: impl Receiving<'scope, T>,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[])?;
        let (from, to) = (Some(mine.lent()), Some(all.lent()));
        let id = self.begin_shares::<T>(ALLGATHER, Rooted::AllGather, from, to);
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// [`all_to_all_into`](DeviceCommunicator::all_to_all_into) that does not block.
    pub fn immediate_all_to_all_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        mine: impl Sending<'scope, T>,
        theirs: impl Receiving<'scope, T>,
    ) -> Result<Request<'scope, ()>, Error> {
        self.ready(&[])?;
        let (from, to) = (Some(mine.lent()), Some(theirs.lent()));
        let id = self.begin_shares::<T>(ALLTOALL, Rooted::AllToAll, from, to);
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    fn begin_shares<T: Pod>(
        &self,
        operation: &'static str,
        what: Rooted,
        from: Option<Lent<'_>>,
        to: Option<Lent<'_>>,
    ) -> u64 {
        let (shares, own) =
            self.divided::<T>(operation, what, from.as_ref().map(Lent::whole), to.as_ref().map(Lent::whole));
        let marks = [from, to].map(|lent| lent.and_then(|lent| lent.marks));
        let (desk, handed) = (self.desk.clone(), Handed::default());
        let work: Work = if self.plan.path == Path::Direct {
            Box::pin(directly(desk, handed.clone(), operation, shares, marks, own))
        } else {
            Box::pin(carried(desk, operation, shares, marks, own))
        };
        self.engine.submit(Key::Collective, handed, work)
    }
}

async fn directly(
    desk: Rc<Desk>,
    handed: Handed,
    operation: &'static str,
    shares: Shares,
    marks: [Option<Marks>; 2],
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let mine = desk.passed(marks, mine).await;
    desk.same(shares.called(operation), shares.bytes, mine).await?;
    // SAFETY: lent memory, which stands until the operation is done; MPI takes its address (the
    // plan).
    let request = unsafe { shares.start_directly(&desk.later) };
    handed.over();
    let request = request.map_err(|error| desk.report.mpi(error))?;
    done(request).await.map(|_| 0).map_err(|error| desk.report.mpi(error))
}

async fn carried(
    desk: Rc<Desk>,
    operation: &'static str,
    shares: Shares,
    marks: [Option<Marks>; 2],
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let mine = desk.passed(marks, mine).await;
    if desk.plan.path == Path::Ipc {
        desk.same(shares.called(operation), shares.bytes, mine).await?;
        return match shares.bytes {
            0 => Ok(0),
            _ => parts::carry(&desk, operation, &shares.traffic(), Ok(())).await,
        };
    }
    let (_, piece) = shares.cut(desk.plan.chunk_bytes);
    let mine = mine.and_then(|()| desk.rings.long(shares.needs(piece)));
    let mut ring = desk.same(shares.called(operation), shares.bytes, mine).await?;
    let done = through_chunks(&desk, &mut ring, operation, shares, piece).await;
    desk.rings.keep(ring);
    done.map(|()| 0)
}

/// Pieces of at most `piece` bytes of every share.
async fn through_chunks(
    desk: &Desk,
    ring: &mut Ring,
    operation: &'static str,
    shares: Shares,
    piece: usize,
) -> Result<(), Error> {
    if shares.bytes == 0 {
        return Ok(());
    }
    // SAFETY: lent memory of these shares, which stands until the operation is done; their pieces
    // fit a slot.
    let outcome = unsafe {
        flow(
            ring,
            shares.bytes.div_ceil(piece),
            |number| shares.loads(piece, number),
            |number, slot| shares.start(&desk.later, piece, number, slot),
            |number| shares.stores(piece, number),
        )
    };
    let mine = desk.report.ended(outcome.await)?;
    desk.agree(operation, mine).await
}
