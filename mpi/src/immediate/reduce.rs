//! Reduce and Allreduce that do not block: by kernels where ranks open each other's memory, of one
//! node or of each first, as the blocking ones; elsewhere MPI reduces, on the pinned chunks.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::Desk;
use super::engine::{Handed, Key};
use super::lent::{Lent, Marks, Receiving, Sending};
use super::pipeline::flow;
use super::request::{OwnedRequest, Request};
use super::scope::Scope;
use super::steps::gather;
use crate::buffers::{BufferStream, DeviceBuf, Kernels};
use crate::called::Called;
use crate::calls::{Comm, Operand};
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::operations::{
    Memory, Number, Reduction, Share, Work, extent, piece, reduces_nodes_first, reduces_on_device, work,
};
use crate::paths::Ring;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use std::rc::Rc;

const REDUCE: &str = "MPI_Ireduce of device memory";
const ALLREDUCE: &str = "MPI_Iallreduce of device memory";

/// Where the result goes.
enum Target<'b> {
    InPlace,
    Buffer(Lent<'b>),
    /// Nothing was given.
    None,
}

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
        let id = self.begin_reduce::<T>(None, mine.lent(), Target::Buffer(all.lent()), reduction)?;
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// The same, in place.
    pub fn immediate_all_reduce_in_place<'scope, T: Number>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        buffer: impl Receiving<'scope, T>,
        reduction: Reduction,
    ) -> Result<Request<'scope, ()>, Error> {
        let id = self.begin_reduce::<T>(None, buffer.lent(), Target::InPlace, reduction)?;
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// In place of a buffer of its own, which comes back with the result: without a scope.
    pub fn immediate_all_reduce<T: Number, S: BufferStream>(
        &self,
        mut buffer: DeviceBuf<T, S>,
        reduction: Reduction,
    ) -> Result<OwnedRequest<T, S>, Error> {
        let lent = buffer.lent_whole();
        let id = self.begin_reduce::<T>(None, lent, Target::InPlace, reduction)?;
        Ok(OwnedRequest::new(&self.engine, id, buffer))
    }

    /// [`reduce_into`](DeviceCommunicator::reduce_into) that does not block: `all` is the
    /// root's, and what other ranks give there is not used. Collective, as
    /// [`immediate_broadcast_into`](DeviceCommunicator::immediate_broadcast_into).
    pub fn immediate_reduce_into<'scope, T: Number>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        root: Rank,
        mine: impl Sending<'scope, T>,
        all: Option<impl Receiving<'scope, T>>,
        reduction: Reduction,
    ) -> Result<Request<'scope, ()>, Error> {
        let target = all.map_or(Target::None, |all| Target::Buffer(all.lent()));
        let id = self.begin_reduce::<T>(Some(root), mine.lent(), target, reduction)?;
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// The same with a buffer of its own, without a scope: the root's comes back with the
    /// result, those of the others as they were.
    pub fn immediate_reduce<T: Number, S: BufferStream>(
        &self,
        root: Rank,
        mut buffer: DeviceBuf<T, S>,
        reduction: Reduction,
    ) -> Result<OwnedRequest<T, S>, Error> {
        let lent = buffer.lent_whole();
        let id = self.begin_reduce::<T>(Some(root), lent, Target::InPlace, reduction)?;
        Ok(OwnedRequest::new(&self.engine, id, buffer))
    }

    /// For `root`, or for all.
    fn begin_reduce<T: Number>(
        &self,
        root: Option<Rank>,
        mine: Lent<'_>,
        target: Target<'_>,
        reduction: Reduction,
    ) -> Result<u64, Error> {
        self.ready(root.as_slice())?;
        let (mut own, from) = (self.own(mine.place), mine.memory::<T>());
        let mut marks = vec![mine.marks];
        let receives = root.is_none_or(|root| root == self.rank());
        let to = match target {
            _ if !receives => None,
            Target::InPlace => Some(from),
            Target::Buffer(all) => {
                own = own.and(self.own(all.place));
                let to = all.memory::<T>();
                marks.push(all.marks);
                Some(to)
            }
            Target::None => Some(Memory::NONE),
        };
        if let Some(to) = to.filter(|to| to.bytes != from.bytes) {
            own =
                own.and(Err(self.report.unequal(operation(root), to.bytes, self.rank(), from.bytes as u64)));
        }
        let operand = Operand::new(T::ELEMENT, &self.desk.operations, reduction);
        let work = work::<T>(from, to, reduction, root);
        let work = reduce(self.desk.clone(), marks, work, operand, own);
        Ok(self.engine.submit(Key::Collective, Handed::default(), Box::pin(work)))
    }
}

fn operation(root: Option<Rank>) -> &'static str {
    if root.is_some() { REDUCE } else { ALLREDUCE }
}

async fn reduce(
    desk: Rc<Desk>,
    marks: Vec<Option<Marks>>,
    work: Work,
    operand: Operand,
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let mine = desk.passed(marks, mine).await;
    let called = Called::of(operation(work.root), work.root).reducing(work.kernel);
    let by_kernels = reduces_on_device(desk.plan.path, desk.later.size());
    let mine = mine.and_then(|()| if by_kernels { desk.rings.short() } else { chunks(&desk, &work) });
    let nodes_first = reduces_nodes_first(desk.plan.path, &desk.nodes, work.from.bytes);
    let (share, is_closed) = desk.node_first().offer(mine.is_ok() && nodes_first, &work);
    let (mut ring, is_closed) = desk.same_and_closed(called, work.from.bytes, is_closed, mine).await?;
    if let Some(share) = share.filter(|_| !is_closed)
        && let Some(kernels) = desk.kernels().await?
    {
        let done = node_first(&desk, &mut ring, (&kernels, operand), work, share).await;
        desk.rings.keep(ring);
        return done.map(|()| 0);
    }
    if by_kernels && work.from.bytes > 0 {
        let kernels = desk.kernels().await?;
        let done = match kernels {
            Some(kernels) => self::by_kernels(&desk, &mut ring, &kernels, work).await?,
            None => false,
        };
        desk.rings.keep(ring);
        if done {
            return Ok(0);
        }
        ring = desk.agree(operation(work.root), chunks(&desk, &work)).await?;
    }
    let done = match through_chunks(&desk, &desk.later, &mut ring, work, operand).await {
        Ok(mine) => desk.agree(operation(work.root), mine).await,
        Err(error) => Err(error),
    };
    desk.rings.keep(ring);
    done.map(|()| 0)
}

/// Pieces that MPI reduces: half a chunk at most, as a slot has what is sent, and behind it what
/// is received.
fn piece_of(desk: &Desk, bytes: usize) -> usize {
    piece(bytes, desk.plan.chunk_bytes / 2 / 64 * 64)
}

fn chunks(desk: &Desk, work: &Work) -> Result<Ring, Error> {
    desk.rings.long(2 * piece_of(desk, work.from.bytes))
}

/// `false`, at all ranks: memory of one is in no slab that others can open, and nothing was done.
async fn by_kernels(desk: &Desk, ring: &mut Ring, kernels: &Kernels, work: Work) -> Result<bool, Error> {
    let tells = work.tells(&desk.imports, &DriverToken::at_entry());
    let told = desk.gather(&tells).await?;
    let here = (&*desk.imports, desk.report, desk.rank());
    let Some((found, mut mine)) = work.find(&told, here, &DriverToken::at_entry()) else { return Ok(false) };
    tracing::debug!(
        rank = desk.rank(),
        operation = operation(work.root),
        bytes = work.from.bytes,
        way = Work::way(&found)
    );
    if mine.is_ok() {
        // SAFETY: lent memory, which stands until the operation is done, after the ranks have
        // agreed. Waited for here.
        let queued = unsafe { work.queue(kernels, &found, ring, &DriverToken::at_entry()) };
        mine = desk.across(ring, queued).await;
    }
    desk.agree(operation(work.root), mine).await?;
    if found.is_whole {
        return Ok(true);
    }
    // SAFETY: as above; the ranks have agreed, and do again.
    let queued = unsafe { work.queue_collect(&found, ring, &DriverToken::at_entry()) };
    let mine = desk.across(ring, queued).await;
    desk.agree(operation(work.root), mine).await.map(|()| true)
}

/// Each node first, as the blocking form. All are in it with as many bytes, and none is closed.
async fn node_first(
    desk: &Desk,
    ring: &mut Ring,
    (kernels, operand): (&Kernels, Operand),
    work: Work,
    share: Share,
) -> Result<(), Error> {
    let (first, operation) = (desk.node_first(), operation(work.root));
    let way = "kernels, then MPI on chunks";
    tracing::debug!(rank = desk.rank(), operation, bytes = work.from.bytes, way);
    let (tells, mut mine) = first.tell(&work, &share, &DriverToken::at_entry());
    let told = gather(&desk.nodes.here, &tells).await.map_err(|error| desk.report.mpi(error));
    let found = told.and_then(|told| first.find(&told, &DriverToken::at_entry()));
    if let (Ok(places), Ok(())) = (&found, &mine) {
        // SAFETY: lent memory of all ranks of the node, which stands until the operation is done,
        // after they have agreed. Waited for here.
        let queued =
            unsafe { first.queue((&work, &share), places, (kernels, ring), &DriverToken::at_entry()) };
        mine = desk.across(ring, queued).await;
    }
    let between =
        desk.column.as_ref().and_then(|column| Some((column, first.between(&work, &share, column)?)));
    if let Some((column, between)) = between {
        // A rank whose kernel has failed, or was not queued, takes part: the others wait for it. It
        // agrees whatever MPI says, as they may still read its memory.
        let reduced = through_chunks(desk, &column.ranks, ring, between, operand).await;
        mine = mine.and(reduced.and_then(|reduced| reduced));
    }
    let places = desk.agree(operation, mine.and(found)).await?;
    // SAFETY: as above: what was reduced is there, and stands until all have agreed again.
    let queued = unsafe { first.queue_collect(&work, &places, ring, &DriverToken::at_entry()) };
    let collected = desk.across(ring, queued).await;
    desk.agree(operation, collected).await
}

/// What all of `ranks` have. The outer error is MPI's.
async fn through_chunks(
    desk: &Desk,
    ranks: &Comm,
    ring: &mut Ring,
    work: Work,
    operand: Operand,
) -> Result<Result<(), Error>, Error> {
    let Work { from, to, element_bytes: element, root, .. } = work;
    let bytes = from.bytes;
    if bytes == 0 {
        return Ok(Ok(()));
    }
    let piece = piece_of(desk, bytes);
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
                ranks.start_reduce(slot, slot.wrapping_add(piece), length / element, operand, root)
            },
            |number| {
                let (start, length) = extent(bytes, piece, number);
                to.map(|to| (to.byte(start), piece, length))
            },
        )
    };
    desk.report.ended(outcome.await)
}
