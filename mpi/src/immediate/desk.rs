//! The part of a communicator that operations which do not block, and messages which do, have,
//! and the steps that several of them take.
#![allow(unsafe_code)] // names device memory to copies that have ended when a step has

use super::lent::Marks;
use super::rings::Rings;
use super::slots::Slots;
use super::steps::{done, gather, largest, passed, swap};
use crate::buffers::{Gpu, Kernels};
use crate::called::{Called, Part, odd};
use crate::calls::progress::is_wanted;
use crate::calls::{Comm, OwnOperations};
use crate::error::{Error, Failure};
use crate::nodes::{Column, Nodes};
use crate::operations::{Memory, NodeFirst, Wants, are_the_same, words};
use crate::paths::{Chunks, Exported, INLINE, Imports, Kind, MESSAGE, Message, Path, Plan, Ring};
use crate::report::Report;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DriverError;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) struct Desk {
    pub(super) whole: Rc<Comm>,
    pub(super) answers: Rc<Comm>,
    /// For collectives, which blocking ones may overtake. Messages on it are those of windows,
    /// which block.
    pub(crate) later: Comm,
    /// Of `later`.
    pub(super) nodes: Nodes,
    /// On `ipc+staged`: the ranks of other nodes that reduce the same part.
    pub(super) column: Option<Column>,
    /// Those that broadcasts over `later` go through. None where all goes directly.
    pub(super) chunks: Option<RefCell<Chunks>>,
    pub(super) plan: Plan,
    pub(super) report: Report,
    gpu: Gpu,
    pub(crate) imports: Rc<Imports>,
    /// Of reductions, blocking or not: here they stand as long as one is under way.
    pub(crate) operations: OwnOperations,
    pub(super) rings: Rings,
    /// Chains so far, the same at all ranks of the node.
    pub(super) chains: Cell<u32>,
    /// Of reductions, once the ranks have agreed: none where a rank has none.
    kernels: RefCell<Option<Option<Arc<Kernels>>>>,
}

/// Where a copy went, and the slot in which its end is marked.
#[derive(Clone, Copy)]
enum Copied {
    ToHost(usize),
    ToDevice(usize),
}

/// Until the mark of the slot has passed. Where it was refused, or cannot be asked, the host waits.
async fn marked(ring: &Ring, slot: usize, marked: Result<(), DriverError>) -> Result<(), DriverError> {
    let ended = match marked {
        Ok(()) => passed(ring, slot).await,
        Err(error) => Err(error),
    };
    let waited = if ended.is_ok() { Ok(()) } else { ring.wait_all(&DriverToken::at_entry()) };
    ended.and(waited)
}

impl Desk {
    pub(crate) fn new(
        gpu: &Gpu,
        plan: &Plan,
        (whole, answers): (&Rc<Comm>, &Rc<Comm>),
        (later, nodes, column): (Comm, Nodes, Option<Column>),
        chunks: Option<Chunks>,
        imports: &Rc<Imports>,
        operations: OwnOperations,
    ) -> Desk {
        Desk {
            whole: whole.clone(),
            answers: answers.clone(),
            later,
            nodes,
            column,
            chunks: chunks.map(RefCell::new),
            plan: plan.clone(),
            report: Report::of(whole.rank()),
            gpu: gpu.clone(),
            imports: imports.clone(),
            operations,
            rings: Rings::new(gpu, plan, Report::of(whole.rank())),
            chains: Cell::new(0),
            kernels: RefCell::default(),
        }
    }

    pub(super) fn rank(&self) -> Rank {
        self.whole.rank()
    }

    /// Whether messages to `rank` go from device to device.
    pub(super) fn is_near(&self, rank: Rank) -> bool {
        let node = |rank: Rank| self.nodes.of(rank);
        self.plan.path.has_ipc() && node(rank) == node(self.rank())
    }

    /// The kernels, if every rank has them. Collective, in the order of those that do not block.
    pub(super) async fn kernels(&self) -> Result<Option<Arc<Kernels>>, Error> {
        if let Some(known) = &*self.kernels.borrow() {
            return Ok(known.clone());
        }
        let mine = self.gpu.kernels(&DriverToken::at_entry());
        if let Err(error) = &mine {
            tracing::warn!(%error, "reductions go through MPI: the device has no kernels");
        }
        let missing = largest(&self.later, [u64::from(mine.is_err())]);
        let [missing] = missing.await.map_err(|error| self.report.mpi(error))?;
        let known = mine.ok().filter(|_| missing == 0);
        Ok(self.kernels.borrow_mut().insert(known).clone())
    }

    pub(super) fn node_first(&self) -> NodeFirst<'_> {
        let (gpu, nodes, imports) = (&self.gpu, &self.nodes, &*self.imports);
        NodeFirst { gpu, nodes, imports, report: self.report, rank: self.rank() }
    }

    /// As many bytes of each rank.
    pub(super) async fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, Error> {
        gather(&self.later, mine).await.map_err(|error| self.report.mpi(error))
    }

    /// What each rank has for this one: as many bytes of `theirs` for each.
    pub(super) async fn swap(&self, theirs: &[u8]) -> Result<Vec<u8>, Error> {
        swap(&self.later, theirs).await.map_err(|error| self.report.mpi(error))
    }

    /// Waits for the end of what was `queued` across.
    pub(super) async fn across(&self, ring: &Ring, queued: Result<(), DriverError>) -> Result<(), Error> {
        self.ended(ring, Copied::ToDevice(1), queued).await
    }

    /// Waits for the end of what was `queued`, which is marked in a slot. Where the driver
    /// refuses to mark or to tell it, the host waits here: what is given back next is used by no
    /// copy. So it does for a call that blocks: copies need nothing of other ranks.
    async fn ended(&self, ring: &Ring, copied: Copied, queued: Result<(), DriverError>) -> Result<(), Error> {
        let token = DriverToken::at_entry();
        let ended = match copied {
            Copied::ToHost(_) if !is_wanted() => ring.wait_loads(&token),
            Copied::ToDevice(_) if !is_wanted() => ring.wait_stores(&token),
            Copied::ToHost(slot) => marked(ring, slot, ring.loaded(slot, &token)).await,
            Copied::ToDevice(slot) => marked(ring, slot, ring.stored(slot, &token)).await,
        };
        queued.and(ended).map_err(|error| self.report.driver(error))
    }

    /// What was lent may be used, once all `marks` have passed.
    pub(super) async fn passed(
        &self,
        marks: impl IntoIterator<Item = Option<Marks>>,
        mut mine: Result<(), Error>,
    ) -> Result<(), Error> {
        for marks in marks.into_iter().flatten() {
            let waited = marks.passed().await.map_err(|error| self.report.driver(error));
            mine = mine.and(waited);
        }
        mine
    }

    /// After a collective: all succeed or all fail.
    pub(super) async fn agree<R>(
        &self,
        called: impl Into<Called>,
        mine: Result<R, Error>,
    ) -> Result<R, Error> {
        self.same(called, 0, mine).await
    }

    /// Before a collective: all are in this one, with the same count of bytes, and none has failed
    /// so far to get what it needs.
    pub(super) async fn same<R>(
        &self,
        called: impl Into<Called>,
        bytes: usize,
        mine: Result<R, Error>,
    ) -> Result<R, Error> {
        self.same_and_closed(called, bytes, false, mine).await.map(|(mine, _)| mine)
    }

    /// And whether one has memory in it that others cannot open, as this one where it `is_closed`.
    pub(super) async fn same_and_closed<R>(
        &self,
        called: impl Into<Called>,
        bytes: usize,
        is_closed: bool,
        mine: Result<R, Error>,
    ) -> Result<(R, bool), Error> {
        let called = called.into();
        let part = called.with(bytes);
        let told = words(self.report.answer(&mine), part, Wants::closed(is_closed));
        let all = largest(&self.later, told).await.map_err(|error| self.report.mpi(error))?;
        if are_the_same(all) {
            let [worst, .., closed] = all;
            return self.report.concluded(called.operation, mine, worst).map(|mine| (mine, closed > 0));
        }
        let parts: Vec<Part> = Part::all(&self.gather(&part.to_bytes()).await?).collect();
        let odd = odd(parts.iter().copied()).unwrap_or((self.rank(), part, part));
        Err(self.report.differed(called.operation, mine, all[0], odd))
    }

    /// The same where the plan says so: for what costs no such step otherwise.
    pub(super) async fn checked<R>(
        &self,
        called: impl Into<Called>,
        bytes: usize,
        mine: Result<R, Error>,
    ) -> Result<Result<R, Error>, Error> {
        if self.plan.checks { self.same(called, bytes, mine).await.map(Ok) } else { Ok(mine) }
    }

    /// What a message says of `memory`, which goes `through`; few bytes come into slot 0
    /// themselves. A rank that has failed, or fails now, says so.
    pub(super) async fn kind(
        &self,
        slots: &mut Slots,
        memory: Memory,
        through: Path,
        mine: &mut Result<(), Error>,
    ) -> Kind {
        if let (Ok(()), Some(ring)) = (&mine, slots.ring()) {
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
                self.ended(ring, Copied::ToHost(0), queued).await?;
            }
            return Ok(Kind::Inline);
        }
        if through != Path::Ipc {
            return Ok(Kind::Staged);
        }
        let exported = self.imports.export(memory.at, memory.slab, &DriverToken::at_entry());
        let exported = exported.map_err(|error| self.report.driver(error))?;
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
        self.ended(ring, Copied::ToDevice(slot), queued).await
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
        let at = self.imports.find(from, there, &token).map_err(|error| self.report.driver(error))?;
        // SAFETY: the sender's memory has these bytes, and is not written before it has our
        // answer; ours is nobody's until the operation is done. Waited for here.
        let queued = unsafe { ring.queue_across(memory.at, at, memory.bytes, &token) };
        self.across(ring, queued).await
    }

    /// A message from `root` in message 0 of all.
    pub(super) async fn spread(&self, slots: &mut Slots, root: Rank) -> Result<(), Error> {
        let at = slots.message(0).as_mut_ptr();
        // SAFETY: a message's bytes, used by nobody else before it is done.
        let request = unsafe { self.later.start_broadcast(at, MESSAGE, root) }
            .map_err(|error| self.report.mpi(error))?;
        done(request).await.map_err(|error| self.report.mpi(error)).map(drop)
    }
}
