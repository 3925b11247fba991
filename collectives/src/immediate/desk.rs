//! What operations that do not block have of their communicator, and the steps that
//! several of them take.
#![allow(unsafe_code)] // names device memory to copies that have ended when a step has

use super::steps::{done, largest, passed};
use crate::buffers::Gpu;
use crate::calls::{Answer, Comm};
use crate::error::{Error, Failure, MpiError};
use crate::nodes::Nodes;
use crate::operations::{Memory, word};
use crate::paths::{Exported, INLINE, Imports, Kind, MESSAGE, Message, Outcome, Path, Plan, Ring};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DriverError;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Rings that are kept for the next operations.
const SPARE: usize = 4;

pub(crate) struct Desk {
    pub(super) whole: Rc<Comm>,
    pub(super) answers: Rc<Comm>,
    /// For collectives, which blocking ones may overtake.
    pub(super) later: Comm,
    /// Of `later`, where a path goes by them.
    pub(super) nodes: Option<Nodes>,
    /// By rank: its node.
    homes: Vec<Rank>,
    pub(super) path: Path,
    pub(super) chunk_bytes: usize,
    chunks: usize,
    gpu: Gpu,
    imports: Rc<Imports>,
    spare: RefCell<Vec<Ring>>,
}

/// A ring of chunks for one operation.
pub(super) struct Loan {
    desk: Rc<Desk>,
    /// None at the end of `drop`.
    ring: Option<Ring>,
}

impl Desk {
    /// Collective.
    pub(crate) fn new(
        gpu: &Gpu,
        plan: &Plan,
        whole: &Rc<Comm>,
        answers: &Rc<Comm>,
        nodes: &Nodes,
        imports: &Rc<Imports>,
        per_node: Option<i32>,
    ) -> Answer<Desk> {
        let later = whole.again()?;
        let by_nodes = plan.path == Path::IpcAndStaged;
        let own_nodes = by_nodes.then(|| Nodes::find(&later, per_node)).transpose()?;
        Ok(Desk {
            whole: whole.clone(),
            answers: answers.clone(),
            later,
            nodes: own_nodes,
            homes: (0..whole.size()).map(|rank| nodes.of(rank)).collect(),
            path: plan.path,
            chunk_bytes: plan.chunk_bytes,
            chunks: plan.chunks,
            gpu: gpu.clone(),
            imports: imports.clone(),
            spare: RefCell::default(),
        })
    }

    pub(super) fn rank(&self) -> Rank {
        self.whole.rank()
    }

    /// Whether messages to `rank` go from device to device. Those to oneself go through
    /// MPI, which knows when they have arrived.
    pub(super) fn is_near(&self, rank: Rank) -> bool {
        let node = |rank: Rank| self.homes[rank as usize];
        self.path.has_ipc() && rank != self.rank() && node(rank) == node(self.rank())
    }

    pub(super) fn ring(self: &Rc<Self>) -> Result<Loan, Error> {
        let spare = self.spare.borrow_mut().pop();
        let ring = match spare {
            Some(ring) => ring,
            None => {
                Ring::new(&self.gpu, self.chunks, self.chunk_bytes.max(MESSAGE), &DriverToken::at_entry())
                    .map_err(|source| Error::Staging { rank: self.rank(), source })?
            }
        };
        Ok(Loan { desk: self.clone(), ring: Some(ring) })
    }

    /// None where MPI takes the pointer.
    pub(super) fn ring_for_chunks(self: &Rc<Self>) -> Result<Option<Loan>, Error> {
        (self.path != Path::Direct).then(|| self.ring()).transpose()
    }

    pub(super) fn mpi(&self, source: MpiError) -> Error {
        Error::Mpi { rank: self.rank(), source }
    }

    pub(super) fn driver(&self, source: DriverError) -> Error {
        Error::Driver { rank: self.rank(), source }
    }

    /// The outcome of a pipeline: the outer error is MPI's.
    pub(super) fn ended(&self, outcome: Outcome) -> Result<Result<(), Error>, Error> {
        match (outcome.mpi, outcome.device) {
            (Some(error), _) => Err(self.mpi(error)),
            (None, Some(error)) => Ok(Err(self.driver(error))),
            (None, None) => Ok(Ok(())),
        }
    }

    pub(super) fn failed(&self, operation: &'static str, rank: Rank, what: Failure) -> Error {
        Error::Peer { operation, rank, seen_by: self.rank(), what }
    }

    pub(super) fn unequal(&self, operation: &'static str, bytes: usize, other: Rank, theirs: u64) -> Error {
        Error::Counts { operation, rank: self.rank(), bytes: bytes as u64, other, other_bytes: theirs }
    }

    pub(super) fn understood(&self, operation: &'static str, buffer: &[u8]) -> Result<Message, Error> {
        let text = "no message of a transfer: do all ranks call the same operations in the same order?";
        let foreign = || Error::Foreign { operation, rank: self.rank(), text: text.to_owned() };
        Message::read(buffer).ok_or_else(foreign)
    }

    /// The failure that a word of another rank tells of.
    pub(super) fn told(&self, operation: &'static str, worst: u64) -> Result<(), Error> {
        if worst == 0 {
            return Ok(());
        }
        Err(self.failed(operation, worst as u32 as Rank, Failure::of((worst >> 32) as u32)))
    }

    pub(super) fn answer(&self, mine: &Result<(), Error>) -> u64 {
        word(mine.as_ref().err().map(Error::failure), self.rank())
    }

    /// After a collective: all succeed or all fail.
    pub(super) async fn agree(&self, operation: &'static str, mine: Result<(), Error>) -> Result<(), Error> {
        let [worst] = largest(&self.later, [self.answer(&mine)]).await.map_err(|error| self.mpi(error))?;
        mine.and_then(|()| self.told(operation, worst))
    }

    /// Before a collective: all have the same count of bytes, and none has failed so far.
    pub(super) async fn same(
        &self,
        operation: &'static str,
        bytes: usize,
        mine: Result<(), Error>,
    ) -> Result<(), Error> {
        let (count, failure) = (bytes as u64, self.answer(&mine));
        let [most, least, worst] =
            largest(&self.later, [count, !count, failure]).await.map_err(|error| self.mpi(error))?;
        mine.and_then(|()| self.told(operation, worst))?;
        if most == !least {
            return Ok(());
        }
        // Where counts differ a rank with the most is named, and what the least have.
        let named = if count == most { self.rank() as u64 + 1 } else { 0 };
        let [last] = largest(&self.later, [named]).await.map_err(|error| self.mpi(error))?;
        let named = if count == !least { self.rank() as u64 + 1 } else { 0 };
        let [other] = largest(&self.later, [named]).await.map_err(|error| self.mpi(error))?;
        let (rank, other) = (last as Rank - 1, other as Rank - 1);
        Err(Error::Counts { operation, rank, bytes: most, other, other_bytes: !least })
    }

    /// What a message says of `memory`, which goes `through`; few bytes come into slot 0
    /// themselves. A rank that has failed, or fails now, says so.
    pub(super) async fn kind(
        &self,
        ring: &mut Ring,
        memory: Memory,
        through: Path,
        mine: &mut Result<(), Error>,
    ) -> Kind {
        if mine.is_ok() {
            match self.describe(ring, memory, through).await {
                Ok(kind) => return kind,
                Err(error) => *mine = Err(error),
            }
        }
        Kind::Failed(mine.as_ref().err().map_or(Failure::Other, Error::failure))
    }

    async fn describe(&self, ring: &mut Ring, memory: Memory, through: Path) -> Result<Kind, Error> {
        if memory.bytes <= INLINE {
            if memory.bytes > 0 {
                let token = DriverToken::at_entry();
                // SAFETY: lent memory of these bytes, which stands unwritten until the operation
                // is done; waited for here.
                let queued = unsafe { ring.load(0, Message::PAYLOAD, memory.at, memory.bytes, &token) };
                let marked = ring.loaded(0, &token);
                let ended = passed(ring, 0).await;
                queued.and(marked).and(ended).map_err(|error| self.driver(error))?;
            }
            return Ok(Kind::Inline);
        }
        if through != Path::Ipc {
            return Ok(Kind::Staged);
        }
        let exported = self.imports.export(memory.at, memory.slab, &DriverToken::at_entry());
        let exported = exported.map_err(|error| self.driver(error))?;
        Ok(if exported.is_none() { Kind::Staged } else { Kind::Ipc(exported) })
    }

    /// The payload of the message in `slot` to the device.
    pub(super) async fn unpack(&self, ring: &mut Ring, slot: usize, memory: Memory) -> Result<(), Error> {
        if memory.bytes == 0 {
            return Ok(());
        }
        let token = DriverToken::at_entry();
        // SAFETY: lent memory of these bytes, nobody's until the operation is done; waited for
        // here.
        let queued = unsafe { ring.store(slot, Message::PAYLOAD, memory.at, memory.bytes, &token) };
        let marked = ring.stored(slot, &token);
        let ended = passed(ring, slot).await;
        queued.and(marked).and(ended).map_err(|error| self.driver(error))
    }

    /// Copies to `memory` from that of `from`, which has as many bytes.
    pub(super) async fn pull(
        &self,
        ring: &Ring,
        from: Rank,
        there: &Exported,
        memory: Memory,
    ) -> Result<(), Error> {
        let token = DriverToken::at_entry();
        let at = self.imports.find(from, there, &token).map_err(|error| self.driver(error))?;
        // SAFETY: the sender's memory has these bytes, and is not written before it has our
        // answer; ours is nobody's until the operation is done. Waited for here.
        let queued = unsafe { ring.queue_across(memory.at, at, memory.bytes, &token) };
        let marked = ring.stored(1, &token);
        let ended = passed(ring, 1).await;
        queued.and(marked).and(ended).map_err(|error| self.driver(error))
    }

    /// A message from `ranks`' rank `root` in slot 0 of all.
    pub(super) async fn spread(&self, ranks: &Comm, ring: &mut Ring, root: Rank) -> Result<(), Error> {
        let at = ring.slot(0);
        // SAFETY: slot 0 is a message long, and used by nobody else before it is done.
        let request = unsafe { ranks.start_broadcast(at, MESSAGE, root) }.map_err(|error| self.mpi(error))?;
        done(request).await.map_err(|error| self.mpi(error)).map(drop)
    }
}

impl Deref for Loan {
    type Target = Ring;
    #[allow(clippy::expect_used)] // none only while it is dropped
    fn deref(&self) -> &Ring {
        self.ring.as_ref().expect("a ring until the drop")
    }
}

impl DerefMut for Loan {
    #[allow(clippy::expect_used)] // as above
    fn deref_mut(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("a ring until the drop")
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut spare = self.desk.spare.borrow_mut();
        if spare.len() < SPARE {
            spare.extend(self.ring.take());
        }
    }
}
