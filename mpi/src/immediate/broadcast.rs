//! Bcast that does not block. The ranks of a node copy from the root's device; long ones go
//! along a chain, as in the blocking form.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::chain::chain;
use super::desk::Desk;
use super::engine::{Handed, Key};
use super::lent::{Lent, Marks, Receiving};
use super::request::{OwnedRequest, Request};
use super::scope::Scope;
use super::slots::Slots;
use super::steps::done;
use crate::buffers::{BufferStream, DeviceBuf};
use crate::called::Called;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::operations::{Memory, extent, is_worth, piece};
use crate::paths::{Kind, Message, Path, Relay, Route};
use bytemuck::Pod;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

const BCAST: &str = "MPI_Ibcast of device memory";
/// Longest single MPI_Ibcast of the direct path: counts are of `int`.
const DIRECT: usize = 1 << 30;

impl DeviceCommunicator {
    /// [`broadcast_into`](DeviceCommunicator::broadcast_into) that does not block.
    /// Collective; all ranks call this form, in one order with their other collectives that
    /// do not block. Blocking ones may come in between.
    pub fn immediate_broadcast_into<'scope, T: Pod>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        root: Rank,
        buffer: impl Receiving<'scope, T>,
    ) -> Result<Request<'scope, ()>, Error> {
        let id = self.begin_broadcast::<T>(root, buffer.lent())?;
        Ok(Request::new(scope, &self.engine, id, drop))
    }

    /// The same with a buffer of its own, which comes back with the result: without a
    /// scope. It begins when the work that uses the buffer so far is done.
    pub fn immediate_broadcast<T: Pod, S: BufferStream>(
        &self,
        root: Rank,
        mut buffer: DeviceBuf<T, S>,
    ) -> Result<OwnedRequest<T, S>, Error> {
        let id = self.begin_broadcast::<T>(root, buffer.lent_whole())?;
        Ok(OwnedRequest::new(&self.engine, id, buffer))
    }

    fn begin_broadcast<T: Pod>(&self, root: Rank, buffer: Lent<'_>) -> Result<u64, Error> {
        self.ready(&[root])?;
        let (own, memory) = (self.own(buffer.place), buffer.memory::<T>());
        let (desk, handed) = (self.desk.clone(), Handed::default());
        let work = broadcast(desk, handed.clone(), Work { root, memory }, buffer.marks, own);
        Ok(self.engine.submit(Key::Collective, handed, Box::pin(work)))
    }
}

/// One broadcast.
#[derive(Clone, Copy)]
struct Work {
    root: Rank,
    memory: Memory,
}

async fn broadcast(
    desk: Rc<Desk>,
    handed: Handed,
    work: Work,
    marks: Option<Marks>,
    mine: Result<(), Error>,
) -> Result<usize, Error> {
    let mine = desk.passed([marks], mine).await;
    let mine = desk.checked(Called::of(BCAST, Some(work.root)), work.memory.bytes, mine).await?;
    let done = match desk.plan.path {
        _ if desk.later.size() == 1 => mine,
        Path::Direct => directly(&desk, &handed, work).await.and(mine),
        Path::Ipc | Path::Staged | Path::IpcAndStaged => {
            let (mut slots, mine) = Slots::of(&desk.rings, mine);
            let done = with_messages(&desk, &mut slots, work, mine).await;
            slots.give_back(&desk.rings);
            done
        }
    };
    done.map(|()| 0)
}

async fn with_messages(
    desk: &Desk,
    slots: &mut Slots,
    Work { root, memory }: Work,
    mut mine: Result<(), Error>,
) -> Result<(), Error> {
    let sends = desk.rank() == root;
    if sends {
        // Then all ranks are on one node.
        let through = if desk.plan.path == Path::Ipc { Path::Ipc } else { Path::Staged };
        let kind = match desk.kind(slots, memory, through, &mut mine).await {
            Kind::Ipc(_) if is_worth(desk.later.size(), memory.bytes, desk.plan.chunk_bytes) => Kind::Chain,
            kind => kind,
        };
        Message { kind, bytes: memory.bytes as u64 }.write(slots.message(0));
    }
    desk.spread(slots, root).await?;
    let message = desk.report.understood(BCAST, slots.message(0))?;
    if message.bytes != memory.bytes as u64 && mine.is_ok() && !matches!(message.kind, Kind::Failed(_)) {
        mine = Err(desk.report.unequal(BCAST, memory.bytes, root, message.bytes));
    }
    let own = mine.is_ok().then_some(memory);
    match message.kind {
        Kind::Failed(what) => {
            mine?;
            return Err(desk.report.peer(BCAST, root, what));
        }
        Kind::Inline => {
            if let (Some(memory), Some(ring)) = (own.filter(|_| !sends), slots.ring()) {
                mine = desk.unpack(ring, 0, memory).await;
            }
            // Between nodes nobody tells how so few were received.
            if desk.plan.path != Path::Ipc {
                return mine;
            }
        }
        Kind::Ipc(there) => {
            if let (Some(memory), Some(ring)) = (own.filter(|_| !sends), slots.ring()) {
                mine = desk.pull(ring, root, &there, memory).await;
            }
        }
        Kind::Chain => {
            let moved = chain(desk, BCAST, slots, root, own, message.bytes as usize).await;
            mine = mine.and(moved);
        }
        Kind::Staged => {
            let moved = relay(desk, root, own, message.bytes as usize).await?;
            mine = mine.and(moved);
        }
    }
    desk.agree(Called::of(BCAST, Some(root)), mine).await
}

/// With the device pointer itself.
async fn directly(desk: &Desk, handed: &Handed, Work { root, memory }: Work) -> Result<(), Error> {
    let mut requests = Vec::new();
    for number in 0..memory.bytes.div_ceil(DIRECT) {
        let (start, bytes) = extent(memory.bytes, DIRECT, number);
        // SAFETY: lent memory, which stands until the operation is done; MPI takes its address
        // (the plan).
        let request = unsafe { desk.later.start_broadcast(memory.host().wrapping_add(start), bytes, root) };
        requests.push(request.map_err(|error| desk.report.mpi(error))?);
    }
    handed.over();
    for request in requests {
        done(request).await.map_err(|error| desk.report.mpi(error))?;
    }
    Ok(())
}

/// Through the nodes' chunks. Without memory of its own a rank takes part all the same. The
/// outer error is MPI's.
async fn relay(
    desk: &Desk,
    root: Rank,
    memory: Option<Memory>,
    bytes: usize,
) -> Result<Result<(), Error>, Error> {
    let Some(chunks) = &desk.chunks else { return Ok(Ok(())) };
    let at = memory.map(|memory| memory.at);
    let (route, transfer) = {
        let chunks = chunks.borrow();
        let route = Route::new(&desk.later, &desk.nodes, &chunks, root, at);
        let transfer = Relay::new(&chunks, route.part, bytes, piece(bytes, chunks.slot_bytes()));
        (route, transfer)
    };
    // SAFETY: a slot of these bytes, which stands until the request is done.
    let mut start = |slot, length| unsafe { route.start(slot, length) };
    let mut transfer = Some(transfer);
    let outcome = poll_fn(|_| {
        let token = DriverToken::at_entry();
        let mut chunks = chunks.borrow_mut();
        if let Some(under_way) = &mut transfer {
            // SAFETY: lent memory of these bytes, which stands until the operation is done.
            unsafe { under_way.turn(&chunks, &mut start, &token) };
        }
        match transfer.take_if(|under_way| under_way.is_done(&chunks)) {
            Some(done) => Poll::Ready(done.finish(&mut chunks, &token)),
            None => Poll::Pending,
        }
    });
    let outcome = outcome.await;
    route.ended(desk.report, BCAST, outcome)
}
