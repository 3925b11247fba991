//! Bcast of device buffers.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Idle, Memory, chain, extent, piece};
use crate::buffers::SettledMut;
use crate::calls::Comm;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::{Error, Failure};
use crate::paths::{Exported, INLINE, Kind, Link, MESSAGE, Message, Part, Path, Relay};
use bytemuck::Pod;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

pub(super) const BCAST: &str = "MPI_Bcast of device memory";
/// Longest single MPI_Bcast of the direct path: counts are of `int`.
const DIRECT: usize = 1 << 30;

impl DeviceCommunicator {
    /// `root`'s elements to every rank. Collective; every rank's buffer has as many
    /// elements.
    ///
    /// A rank whose buffer has another length than the root's gets [`Error::Counts`], and
    /// the others are told; but if the elements are few (less than 2 KiB) and not all ranks
    /// are on one node, the others succeed. On the direct path MPI says what it notices.
    pub fn broadcast_into<T: Pod>(&self, root: Rank, buffer: &mut SettledMut<'_, T>) -> Result<(), Error> {
        self.ready(&[root])?;
        let memory = Memory::of::<T>(buffer.place(), buffer.len());
        let _call = self.traced(BCAST, memory.bytes);
        if self.size() == 1 {
            return self.own(buffer.place());
        }
        if self.plan.path == Path::Direct {
            return self.broadcast_directly(root, memory);
        }
        let token = DriverToken::at_entry();
        let state = &mut *self.state.borrow_mut();
        let mut mine = self.own(buffer.place());
        if let Some(board) = &self.board {
            return self.broadcast_on_node(&mut board.borrow_mut(), state, root, memory, mine, &token);
        }
        let sends = self.rank() == root;
        if sends {
            let kind = match self.plan.path {
                Path::Ipc => self.kind_on_node(state, memory, &mut mine, &token),
                _ => self.kind(state, memory, Path::Staged, &mut mine, &token),
            };
            let message = Message { kind, bytes: memory.bytes as u64 };
            message.write(state.messages.bytes(0, MESSAGE));
        }
        let buffer = state.messages.bytes(0, MESSAGE);
        self.whole.broadcast(buffer, root).map_err(|error| self.mpi(error))?;
        let message = self.understood(BCAST, buffer)?;
        if !sends
            && message.bytes != memory.bytes as u64
            && mine.is_ok()
            && !matches!(message.kind, Kind::Failed(_))
        {
            mine = Err(self.unequal(BCAST, memory, root, message.bytes));
        }
        // The path is the root's choice, so every rank's.
        match message.kind {
            Kind::Failed(what) => {
                mine?;
                Err(Error::Peer { operation: BCAST, rank: root, seen_by: self.rank(), what })
            }
            Kind::Inline => {
                mine?;
                if sends { Ok(()) } else { self.unpack(state, 0, memory, &token) }
            }
            Kind::Ipc(there) => {
                if !sends && mine.is_ok() {
                    let memory = memory.first(message.bytes);
                    mine = self.pull(state, root, &there, memory, &token);
                }
                self.agree(BCAST, mine)
            }
            Kind::Chain => {
                let own = mine.is_ok().then_some(memory);
                let place = self.nodes.place(root);
                let moved = self.chain(state, place, own, message.bytes as usize, &token)?;
                self.agree(BCAST, mine.and(moved))
            }
            Kind::Staged => {
                let own = mine.is_ok().then_some(memory);
                let moved = self.relay(state, root, own, message.bytes as usize, &token)?;
                self.agree(BCAST, mine.and(moved))
            }
        }
    }

    fn broadcast_directly(&self, root: Rank, memory: Memory) -> Result<(), Error> {
        for number in 0..memory.bytes.div_ceil(DIRECT) {
            let (start, bytes) = extent(memory.bytes, DIRECT, number);
            // SAFETY: settled memory, borrowed for the call; MPI takes its address (the plan).
            let request =
                unsafe { self.whole.start_broadcast(memory.host().wrapping_add(start), bytes, root) };
            request.and_then(|request| request.wait()).map_err(|error| self.mpi(error))?;
        }
        Ok(())
    }

    /// What a message says of `memory`, which goes `through`: with few bytes in slot 0 of
    /// the messages they themselves. A rank that has failed, or fails now, says so.
    pub(super) fn kind(
        &self,
        state: &mut State,
        memory: Memory,
        through: Path,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Kind {
        if mine.is_ok() {
            match self.describe(state, memory, through, token) {
                Ok(kind) => return kind,
                Err(error) => *mine = Err(error),
            }
        }
        Kind::Failed(mine.as_ref().err().map_or(Failure::Other, Error::failure))
    }

    /// The same for a broadcast on one node: along all its ranks where that is worth it.
    pub(super) fn kind_on_node(
        &self,
        state: &mut State,
        memory: Memory,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Kind {
        if mine.is_ok() && chain::is_worth(self.nodes.here.size(), memory.bytes, self.plan.chunk_bytes) {
            return Kind::Chain;
        }
        // A note carries no bytes: two copies with the host in between would take longer than
        // one between devices.
        if self.board.is_some() && mine.is_ok() && memory.bytes > 0 {
            match self.exported(state, memory, token) {
                Ok(kind) => return kind,
                Err(error) => *mine = Err(error),
            }
        }
        self.kind(state, memory, Path::Ipc, mine, token)
    }

    fn describe(
        &self,
        state: &mut State,
        memory: Memory,
        through: Path,
        token: &DriverToken,
    ) -> Result<Kind, Error> {
        let messages = &mut state.messages;
        if memory.bytes <= INLINE {
            if memory.bytes > 0 {
                // SAFETY: settled memory, borrowed until the caller returns; waited for here.
                let queued = unsafe { messages.load(0, Message::PAYLOAD, memory.at, memory.bytes, token) };
                messages.wait_loads(token).and(queued).map_err(|error| self.driver(error))?;
            }
            return Ok(Kind::Inline);
        }
        match through {
            Path::Ipc => self.exported(state, memory, token),
            _ => Ok(Kind::Staged),
        }
    }

    /// What others need to copy from the device themselves.
    fn exported(&self, state: &mut State, memory: Memory, token: &DriverToken) -> Result<Kind, Error> {
        let exported = state.imports.export(memory.at, memory.slab, token);
        let exported = exported.map_err(|error| self.driver(error))?;
        Ok(if exported.is_none() { Kind::Staged } else { Kind::Ipc(exported) })
    }

    /// The message in a buffer, or an error: the other side does something else.
    pub(super) fn understood(&self, operation: &'static str, buffer: &[u8]) -> Result<Message, Error> {
        let text = || "no message of a transfer: do all ranks call the same operations in the same order?";
        Message::read(buffer).ok_or_else(|| Error::Foreign {
            operation,
            rank: self.rank(),
            text: text().to_owned(),
        })
    }

    pub(super) fn unequal(&self, operation: &'static str, memory: Memory, other: Rank, theirs: u64) -> Error {
        Error::Counts { operation, rank: self.rank(), bytes: memory.bytes as u64, other, other_bytes: theirs }
    }

    /// The payload of the message in `slot` to the device.
    pub(super) fn unpack(
        &self,
        state: &mut State,
        slot: usize,
        memory: Memory,
        token: &DriverToken,
    ) -> Result<(), Error> {
        if memory.bytes == 0 {
            return Ok(());
        }
        let messages = &mut state.messages;
        // SAFETY: settled memory, borrowed mutably until the caller returns; waited for here.
        let queued = unsafe { messages.store(slot, Message::PAYLOAD, memory.at, memory.bytes, token) };
        messages.wait_stores(token).and(queued).map_err(|error| self.driver(error))
    }

    /// Copies to `memory` from that of `from`, which has as many bytes.
    pub(super) fn pull(
        &self,
        state: &mut State,
        from: Rank,
        there: &Exported,
        memory: Memory,
        token: &DriverToken,
    ) -> Result<(), Error> {
        let at = state.imports.find(from, there, token).map_err(|error| self.driver(error))?;
        // SAFETY: the sender's memory has these bytes, is settled, and is not written before
        // it has our answer; ours is settled and borrowed mutably.
        unsafe { state.ring.copy_across(memory.at, at, memory.bytes, token) }
            .map_err(|error| self.driver(error))
    }

    /// Through the nodes' chunks. Without memory of its own a rank takes part all the same.
    /// The outer error is MPI's.
    pub(super) fn relay(
        &self,
        state: &mut State,
        root: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let (ranks, sender) = self.between(root);
        let Some(chunks) = state.chunks.as_mut() else { return Ok(Ok(())) };
        let link = match ranks {
            Some(ranks) if ranks.rank() == sender => Some(Link::Sends),
            Some(_) => Some(Link::Receives),
            None => None,
        };
        let part = Part { is_root: self.rank() == root, memory: memory.map(|memory| memory.at), link };
        let piece = piece(bytes, chunks.slot_bytes().min(self.plan.chunk_bytes));
        let transfer = Relay::new(chunks, part, bytes, piece);
        let start = |slot, length| match ranks {
            // SAFETY: a slot of these bytes, which stands until the request is done.
            Some(ranks) => unsafe { ranks.start_broadcast(slot, length, sender) }.map(Some),
            None => Ok(None),
        };
        let mut idle = Idle::default();
        let between = |moved| if moved { idle.end() } else { idle.turn(&self.whole) };
        // SAFETY: settled memory of these bytes, borrowed until the caller returns.
        let outcome = unsafe { transfer.run(chunks, start, between, token) };
        if outcome.is_cut {
            let rank = self.nodes.rank(self.nodes.of(self.rank()), 0);
            return Err(Error::Peer { operation: BCAST, rank, seen_by: self.rank(), what: Failure::Mpi });
        }
        self.ended(outcome)
    }

    /// The ranks that go between the nodes, if this is one of them, and which of them sends
    /// what `root` has. Where chunks are not shared every rank is a node.
    fn between(&self, root: Rank) -> (Option<&Comm>, Rank) {
        if !self.plan.chunks_are_shared {
            return (Some(&self.whole), root);
        }
        let leaders = self.nodes.leaders.as_ref().filter(|leaders| leaders.size() > 1);
        (leaders, self.nodes.of(root))
    }
}
