//! Bcast of device buffers.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Memory, extent, is_worth, piece};
use crate::buffers::SettledMut;
use crate::called::Called;
use crate::calls::Idle;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::{Error, Failure};
use crate::paths::{Exported, INLINE, Kind, MESSAGE, Message, Path, Relay, Route};
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
        let mut mine = self.own(buffer.place());
        if self.board.is_none() {
            mine = self.checked(Called::of(BCAST, Some(root)), memory.bytes, mine)?;
        }
        if self.plan.path == Path::Direct {
            return self.broadcast_directly(root, memory);
        }
        let token = DriverToken::at_entry();
        let state = &mut *self.state.borrow_mut();
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
        self.whole.broadcast(buffer, root).map_err(|error| self.report.mpi(error))?;
        let message = self.report.understood(BCAST, buffer)?;
        if !sends
            && message.bytes != memory.bytes as u64
            && mine.is_ok()
            && !matches!(message.kind, Kind::Failed(_))
        {
            mine = Err(self.report.unequal(BCAST, memory.bytes, root, message.bytes));
        }
        // The path is the root's choice, so every rank's.
        match message.kind {
            Kind::Failed(what) => {
                mine?;
                Err(self.report.peer(BCAST, root, what))
            }
            Kind::Inline => {
                mine?;
                if sends { Ok(()) } else { self.unpack(state, memory, &token) }
            }
            Kind::Ipc(there) => {
                if !sends && mine.is_ok() {
                    let memory = memory.first(message.bytes);
                    mine = self.pull(state, root, &there, memory, &token);
                }
                self.agree(Called::of(BCAST, Some(root)), mine)
            }
            Kind::Chain => {
                let own = mine.is_ok().then_some(memory);
                let place = self.nodes.place(root);
                let moved = self.chain(state, place, own, message.bytes as usize, &token);
                self.agree(Called::of(BCAST, Some(root)), mine.and(moved))
            }
            Kind::Staged => {
                let own = mine.is_ok().then_some(memory);
                let moved = self.relay(state, root, own, message.bytes as usize, &token)?;
                self.agree(Called::of(BCAST, Some(root)), mine.and(moved))
            }
        }
    }

    fn broadcast_directly(&self, root: Rank, memory: Memory) -> Result<(), Error> {
        for number in 0..memory.bytes.div_ceil(DIRECT) {
            let (start, bytes) = extent(memory.bytes, DIRECT, number);
            // SAFETY: settled memory, borrowed for the call; MPI takes its address (the plan).
            let request =
                unsafe { self.whole.start_broadcast(memory.host().wrapping_add(start), bytes, root) };
            request.and_then(|request| request.wait()).map_err(|error| self.report.mpi(error))?;
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
        let chain = is_worth(self.nodes.here.size(), memory.bytes, self.plan.chunk_bytes);
        // A note carries no bytes: two copies with the host in between would take longer than
        // one between devices.
        if (chain || self.board.is_some()) && mine.is_ok() && memory.bytes > 0 {
            match self.exported(state, memory, token) {
                Ok(Kind::Ipc(_)) if chain => return Kind::Chain,
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
                messages.wait_loads(token).and(queued).map_err(|error| self.report.driver(error))?;
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
        let exported = exported.map_err(|error| self.report.driver(error))?;
        Ok(if exported.is_none() { Kind::Staged } else { Kind::Ipc(exported) })
    }

    /// The payload of the message in slot 0 to the device.
    fn unpack(&self, state: &mut State, memory: Memory, token: &DriverToken) -> Result<(), Error> {
        if memory.bytes == 0 {
            return Ok(());
        }
        let messages = &mut state.messages;
        // SAFETY: settled memory, borrowed mutably until the caller returns; waited for here.
        let queued = unsafe { messages.store(0, Message::PAYLOAD, memory.at, memory.bytes, token) };
        messages.wait_stores(token).and(queued).map_err(|error| self.report.driver(error))
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
        let at = state.imports.find(from, there, token).map_err(|error| self.report.driver(error))?;
        // SAFETY: the sender's memory has these bytes, is settled, and is not written before
        // it has our answer; ours is settled and borrowed mutably.
        unsafe { state.ring.copy_across(memory.at, at, memory.bytes, token) }
            .map_err(|error| self.report.driver(error))
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
        let Some(chunks) = state.chunks.as_mut() else { return Ok(Ok(())) };
        let at = memory.map(|memory| memory.at);
        let route = Route::new(&self.whole, &self.nodes, chunks, root, at);
        let transfer = Relay::new(chunks, route.part, bytes, piece(bytes, chunks.slot_bytes()));
        // SAFETY: a slot of these bytes, which stands until the request is done.
        let start = |slot, length| unsafe { route.start(slot, length) };
        let mut idle = Idle::default();
        let between = |moved| if moved { idle.end() } else { idle.turn(&self.whole) };
        // SAFETY: settled memory of these bytes, borrowed until the caller returns.
        let outcome = unsafe { transfer.run(chunks, start, between, token) };
        route.ended(self.report, BCAST, outcome)
    }
}
