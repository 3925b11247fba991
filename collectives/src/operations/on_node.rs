//! Ranks of one node without MPI, but for what it has to do meanwhile: Bcast, and what all
//! say of the end of an operation.

use super::broadcast::BCAST;
use super::{Idle, Memory};
use crate::communicator::{DeviceCommunicator, State};
use crate::error::{Error, Failure};
use crate::paths::{Board, Kind, Message, NOTE};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

impl DeviceCommunicator {
    /// As `broadcast_into`. However it goes, every rank answers: none is left waiting, and
    /// the root's memory is not read any more when it returns.
    pub(super) fn broadcast_on_node(
        &self,
        board: &mut Board,
        state: &mut State,
        root: Rank,
        memory: Memory,
        mut mine: Result<(), Error>,
        token: &DriverToken,
    ) -> Result<(), Error> {
        let note = if self.rank() == root {
            let kind = self.kind_on_node(state, memory, &mut mine, token);
            let mut note = [0; NOTE];
            Message { kind, bytes: memory.bytes as u64 }.write(&mut note);
            board.post(&note);
            note
        } else {
            self.until(|| board.read())
        };
        let moved = self
            .report
            .understood(BCAST, &note)
            .and_then(|message| self.carry_on_node(state, root, message, memory, &mut mine, token));
        self.agree_on_node(board, BCAST, mine.and(moved))
    }

    /// All succeed, or all fail, each with its own cause or with the rank of one that
    /// failed.
    pub(super) fn agree_on_node<R>(
        &self,
        board: &mut Board,
        operation: &'static str,
        mine: Result<R, Error>,
    ) -> Result<R, Error> {
        board.answer(mine.as_ref().err().map_or(0, |error| error.failure().number() as u8));
        let (place, worst) = self.until(|| board.answers());
        let mine = mine?;
        if worst == 0 {
            return Ok(mine);
        }
        // On one node a rank's place is its rank.
        let (rank, what) = (place as Rank, Failure::of(u32::from(worst)));
        Err(self.report.peer(operation, rank, what))
    }

    /// What `message` says, to this rank's memory. Its own failure is in `mine`.
    fn carry_on_node(
        &self,
        state: &mut State,
        root: Rank,
        message: Message,
        memory: Memory,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Result<(), Error> {
        let sends = self.rank() == root;
        if let Kind::Failed(what) = message.kind {
            let told = self.report.peer(BCAST, root, what);
            return if sends { Ok(()) } else { Err(told) };
        }
        if !sends && message.bytes != memory.bytes as u64 && mine.is_ok() {
            *mine = Err(self.report.unequal(BCAST, memory.bytes, root, message.bytes));
        }
        let own = mine.is_ok().then_some(memory);
        let bytes = message.bytes as usize;
        match (message.kind, own) {
            (Kind::Chain, own) => self.chain(state, root, own, bytes, token)?,
            (Kind::Staged, own) => self.relay(state, root, own, bytes, token)?,
            (Kind::Ipc(there), Some(memory)) if !sends => {
                self.pull(state, root, &there, memory.first(message.bytes), token)
            }
            // There are none, or it has failed before.
            _ => Ok(()),
        }
    }

    /// What `says` says, as soon as it does.
    fn until<T>(&self, mut says: impl FnMut() -> Option<T>) -> T {
        let mut idle = Idle::default();
        loop {
            if let Some(said) = says() {
                return said;
            }
            idle.turn(&self.whole);
        }
    }
}
