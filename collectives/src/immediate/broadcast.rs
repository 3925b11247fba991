//! Bcast that does not block. The ranks of a node all copy from the root's device: there is
//! no chain, as in the blocking one.
#![allow(unsafe_code)] // names device memory to copies that have ended when it is done

use super::desk::{Desk, Loan};
use super::engine::{Handed, Key};
use super::lent::{Lent, Marks, Receiving};
use super::pipeline::flow;
use super::request::{OwnedRequest, Request};
use super::scope::Scope;
use super::steps::done;
use crate::buffers::DeviceBuf;
use crate::calls::Comm;
use crate::communicator::DeviceCommunicator;
use crate::error::{Error, Failure};
use crate::operations::{Memory, extent, piece};
use crate::paths::{Kind, MESSAGE, Message, Path};
use bytemuck::Pod;
use mpi::topology::Rank;
use std::rc::Rc;

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
    pub fn immediate_broadcast<T: Pod>(
        &self,
        root: Rank,
        mut buffer: DeviceBuf<T>,
    ) -> Result<OwnedRequest<T>, Error> {
        let id = self.begin_broadcast::<T>(root, self.lend_mut(&mut buffer)?)?;
        Ok(OwnedRequest::new(&self.engine, id, buffer))
    }

    fn begin_broadcast<T: Pod>(&self, root: Rank, buffer: Lent<'_>) -> Result<u64, Error> {
        self.ready(&[root])?;
        let (own, memory) = (self.own(buffer.place), buffer.memory::<T>());
        let ring = self.desk.ring_for_chunks()?;
        let (desk, handed) = (self.desk.clone(), Handed::default());
        let work = broadcast(desk, ring, handed.clone(), root, buffer.marks, memory, own);
        Ok(self.engine.submit(Key::Collective, handed, Box::pin(work)))
    }
}

async fn broadcast(
    desk: Rc<Desk>,
    ring: Option<Loan>,
    handed: Handed,
    root: Rank,
    marks: Option<Marks>,
    memory: Memory,
    mut mine: Result<(), Error>,
) -> Result<usize, Error> {
    if let Some(marks) = marks {
        let waited = marks.passed().await.map_err(|error| desk.driver(error));
        mine = mine.and(waited);
    }
    if desk.later.size() == 1 {
        return mine.map(|()| 0);
    }
    let Some(mut ring) = ring else {
        directly(&desk, &handed, root, memory).await?;
        return mine.map(|()| 0);
    };
    let sends = desk.rank() == root;
    if sends {
        let through = if desk.path == Path::Ipc { Path::Ipc } else { Path::Staged };
        let kind = desk.kind(&mut ring, memory, through, &mut mine).await;
        Message { kind, bytes: memory.bytes as u64 }.write(ring.bytes(0, MESSAGE));
    }
    desk.spread(&desk.later, &mut ring, root).await?;
    let message = desk.understood(BCAST, ring.bytes(0, MESSAGE))?;
    let bytes = message.bytes as usize;
    if bytes != memory.bytes && mine.is_ok() && !matches!(message.kind, Kind::Failed(_)) {
        mine = Err(desk.unequal(BCAST, memory.bytes, root, message.bytes));
    }
    let own = mine.is_ok().then_some(memory);
    match message.kind {
        Kind::Failed(what) => {
            mine?;
            return Err(desk.failed(BCAST, root, what));
        }
        Kind::Inline => {
            mine?;
            if !sends {
                desk.unpack(&mut ring, 0, memory).await?;
            }
            return Ok(0);
        }
        Kind::Ipc(there) => {
            if let Some(memory) = own.filter(|_| !sends) {
                mine = desk.pull(&ring, root, &there, memory).await;
            }
        }
        Kind::Staged | Kind::Chain => {
            let moved = match &desk.nodes {
                Some(_) => through_nodes(&desk, &mut ring, root, own, bytes).await?,
                None => staged(&desk, &desk.later, &mut ring, root, own, bytes).await?,
            };
            mine = mine.and(moved);
        }
    }
    desk.agree(BCAST, mine).await.map(|()| 0)
}

/// With the device pointer itself.
async fn directly(desk: &Desk, handed: &Handed, root: Rank, memory: Memory) -> Result<(), Error> {
    let mut requests = Vec::new();
    for number in 0..memory.bytes.div_ceil(DIRECT) {
        let (start, bytes) = extent(memory.bytes, DIRECT, number);
        // SAFETY: lent memory, which stands until the operation is done; MPI takes its address
        // (the plan).
        let request = unsafe { desk.later.start_broadcast(memory.host().wrapping_add(start), bytes, root) };
        requests.push(request.map_err(|error| desk.mpi(error))?);
    }
    handed.over();
    for request in requests {
        done(request).await.map_err(|error| desk.mpi(error))?;
    }
    Ok(())
}

/// Chunks over `ranks`, whose rank `root` has the bytes. The outer error is MPI's.
async fn staged(
    desk: &Desk,
    ranks: &Comm,
    ring: &mut Loan,
    root: Rank,
    memory: Option<Memory>,
    bytes: usize,
) -> Result<Result<(), Error>, Error> {
    let piece = piece(bytes, desk.chunk_bytes);
    let (source, target) = if ranks.rank() == root { (memory, None) } else { (None, memory) };
    let place = |memory: Memory, number: usize| {
        let (start, length) = extent(bytes, piece, number);
        (memory.byte(start), 0, length)
    };
    // SAFETY: lent memory of these bytes, which stands until the operation is done; a piece
    // fits a slot.
    let outcome = unsafe {
        flow(
            ring,
            bytes.div_ceil(piece),
            |number| source.map(|memory| place(memory, number)),
            |number, slot| ranks.start_broadcast(slot, extent(bytes, piece, number).1, root),
            |number| target.map(|memory| place(memory, number)),
        )
    };
    desk.ended(outcome.await)
}

/// On the root's node, from there to the nodes' first ranks, and on the other nodes.
async fn through_nodes(
    desk: &Desk,
    ring: &mut Loan,
    root: Rank,
    memory: Option<Memory>,
    bytes: usize,
) -> Result<Result<(), Error>, Error> {
    let Some(nodes) = &desk.nodes else { return Ok(Ok(())) };
    let (home, here) = (nodes.of(root), nodes.of(desk.rank()));
    let mut mine = Ok(());
    if here == home {
        mine = on_node(desk, ring, nodes.place(root), memory, bytes).await?;
    }
    if let Some(leaders) = &nodes.leaders {
        let own = memory.filter(|_| mine.is_ok());
        let moved = staged(desk, leaders, ring, home, own, bytes).await?;
        mine = mine.and(moved);
    }
    if here != home {
        let own = memory.filter(|_| mine.is_ok());
        let moved = on_node(desk, ring, 0, own, bytes).await?;
        mine = mine.and(moved);
    }
    Ok(mine)
}

/// The bytes of the rank at `place` to all of this node, who copy from its device.
async fn on_node(
    desk: &Desk,
    ring: &mut Loan,
    place: Rank,
    memory: Option<Memory>,
    bytes: usize,
) -> Result<Result<(), Error>, Error> {
    let Some(nodes) = desk.nodes.as_ref().filter(|nodes| nodes.here.size() > 1) else { return Ok(Ok(())) };
    let from = nodes.rank(nodes.of(desk.rank()), place);
    let sends = from == desk.rank();
    let mut mine = Ok(());
    if sends {
        let kind = match memory {
            Some(memory) => desk.kind(ring, memory, Path::Ipc, &mut mine).await,
            // It has failed before, and its caller knows why.
            None => Kind::Failed(Failure::Other),
        };
        Message { kind, bytes: bytes as u64 }.write(ring.bytes(0, MESSAGE));
    }
    desk.spread(&nodes.here, ring, place).await?;
    let message = desk.understood(BCAST, ring.bytes(0, MESSAGE))?;
    Ok(match (message.kind, memory) {
        _ if sends => mine,
        (Kind::Failed(what), _) => Err(desk.failed(BCAST, from, what)),
        (Kind::Ipc(there), Some(memory)) => desk.pull(ring, from, &there, memory).await,
        // Its own failure is known already.
        _ => Ok(()),
    })
}
