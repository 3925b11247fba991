//! Bcast of device buffers.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Memory, chain, extent, piece};
use crate::buffers::SettledMut;
use crate::calls::Comm;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::{Error, Failure};
use crate::paths::{INLINE, Kind, MESSAGE, Message, Path, run};
use bytemuck::Pod;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

const BCAST: &str = "MPI_Bcast of device memory";
/// Longest single MPI_Bcast of the direct path: counts are of `int`.
const DIRECT: usize = 1 << 30;

impl DeviceCommunicator {
    /// `root`'s elements to every rank. Collective; every rank's buffer has as many
    /// elements.
    ///
    /// A rank whose buffer has another length than the root's gets [`Error::Counts`]. If
    /// the elements are few (less than 2 KiB) the others succeed, otherwise they are told.
    /// On the direct path MPI says what it notices.
    pub fn broadcast_into<T: Pod>(&self, root: Rank, buffer: &mut SettledMut<'_, T>) -> Result<(), Error> {
        self.ready(&[root])?;
        let memory = Memory::of::<T>(buffer.place(), buffer.len());
        if self.size() == 1 {
            return self.own(buffer.place());
        }
        if self.plan.path == Path::Direct {
            return self.broadcast_directly(root, memory);
        }
        let token = DriverToken::at_entry();
        let state = &mut *self.state.borrow_mut();
        let mut mine = self.own(buffer.place());
        let sends = self.rank() == root;
        if sends {
            let kind = if self.plan.path == Path::Ipc {
                self.kind_on_node(state, memory, &mut mine, &token)
            } else {
                self.kind(state, memory, Path::Staged, &mut mine, &token)
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
            Kind::Ipc { .. } => {
                if !sends && mine.is_ok() {
                    mine = self.pull(state, root, message, memory, &token);
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
                let bytes = message.bytes as usize;
                let own = mine.is_ok().then_some(memory);
                let moved = if self.plan.path == Path::IpcAndStaged {
                    self.through_nodes(state, root, own, bytes, &token)?
                } else {
                    self.staged(&self.whole, state, root, own, bytes, &token)?
                };
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
    fn kind_on_node(
        &self,
        state: &mut State,
        memory: Memory,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Kind {
        if mine.is_ok() && chain::is_worth(self.nodes.here.size(), memory.bytes, self.plan.chunk_bytes) {
            return Kind::Chain;
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
        match (through, memory.slab) {
            (Path::Ipc, Some(slab)) => {
                let handle = state.imports.export(slab, token).map_err(|error| self.driver(error))?;
                Ok(Kind::Ipc { slab: slab.0, offset: (memory.at.0 - slab.0.0) as usize, handle })
            }
            _ => Ok(Kind::Staged),
        }
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

    /// Copies what `message` of `from` tells of from its device.
    pub(super) fn pull(
        &self,
        state: &mut State,
        from: Rank,
        message: Message,
        memory: Memory,
        token: &DriverToken,
    ) -> Result<(), Error> {
        let Kind::Ipc { slab, offset, handle } = message.kind else { return Ok(()) };
        let here = if from == self.rank() {
            slab
        } else {
            state.imports.open(from, slab, handle, token).map_err(|error| self.driver(error))?
        };
        let at = Memory { at: here, bytes: 0, slab: None }.byte(offset);
        let bytes = memory.bytes.min(message.bytes as usize);
        // SAFETY: the sender's memory has these bytes, is settled, and is not written before
        // it has our answer; ours is settled and borrowed mutably.
        unsafe { state.ring.copy_across(memory.at, at, bytes, token) }.map_err(|error| self.driver(error))
    }

    /// A pipeline of pinned chunks over `ranks`, whose rank `root` has the bytes. Without
    /// memory of its own a rank takes part all the same. The outer error is MPI's.
    fn staged(
        &self,
        ranks: &Comm,
        state: &mut State,
        root: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let ring = &mut state.ring;
        let piece = piece(bytes, ring.slot_bytes().min(self.plan.chunk_bytes));
        let (source, target) = if ranks.rank() == root { (memory, None) } else { (None, memory) };
        // SAFETY: settled memory of these bytes, borrowed until the caller returns; a piece
        // fits a slot.
        let outcome = unsafe {
            run(
                ring,
                bytes.div_ceil(piece),
                token,
                |number, copy| {
                    let (start, length) = extent(bytes, piece, number);
                    if let Some(memory) = source {
                        copy(memory.byte(start), 0, length);
                    }
                },
                |number, slot| {
                    let (_, length) = extent(bytes, piece, number);
                    Ok([Some(ranks.start_broadcast(slot, length, root)?), None])
                },
                |number, copy| {
                    let (start, length) = extent(bytes, piece, number);
                    if let Some(memory) = target {
                        copy(memory.byte(start), 0, length);
                    }
                },
            )
        };
        self.ended(outcome)
    }

    /// From the root to the first rank of its node, from there to those of the other nodes,
    /// and on each node from that to the others. The steps follow each other; they do not
    /// overlap.
    fn through_nodes(
        &self,
        state: &mut State,
        root: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let home = self.nodes.of(root);
        let here = self.nodes.of(self.rank());
        let mut mine = Ok(());
        if here == home {
            mine = self.on_node(state, self.nodes.place(root), memory, bytes, token)?;
        }
        if let Some(leaders) = &self.nodes.leaders {
            let own = memory.filter(|_| mine.is_ok());
            mine = mine.and(self.staged(leaders, state, home, own, bytes, token)?);
        }
        if here != home {
            let own = memory.filter(|_| mine.is_ok());
            mine = mine.and(self.on_node(state, 0, own, bytes, token)?);
        }
        Ok(mine)
    }

    /// The bytes of the rank at `place` to all of this node. The others copy from its
    /// device; it must not change them before the ranks have agreed.
    fn on_node(
        &self,
        state: &mut State,
        place: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let node = &self.nodes.here;
        if node.size() == 1 {
            return Ok(Ok(()));
        }
        let from = self.nodes.rank(self.nodes.of(self.rank()), place);
        let sends = from == self.rank();
        let mut mine = Ok(());
        if sends {
            let kind = match memory {
                Some(memory) => self.kind_on_node(state, memory, &mut mine, token),
                // It has failed before, and its caller knows why.
                None => Kind::Failed(Failure::Other),
            };
            Message { kind, bytes: bytes as u64 }.write(state.messages.bytes(0, MESSAGE));
        }
        let buffer = state.messages.bytes(0, MESSAGE);
        node.broadcast(buffer, place).map_err(|error| self.mpi(error))?;
        let message = self.understood(BCAST, buffer)?;
        if message.kind == Kind::Chain {
            return self.chain(state, place, memory, bytes, token);
        }
        Ok(match (message.kind, memory) {
            _ if sends => mine,
            (Kind::Failed(what), _) => {
                Err(Error::Peer { operation: BCAST, rank: from, seen_by: self.rank(), what })
            }
            (_, Some(memory)) => self.pull(state, from, message, memory, token),
            // Its own failure is known already.
            (_, None) => Ok(()),
        })
    }
}
