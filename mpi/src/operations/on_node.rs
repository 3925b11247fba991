//! Ranks of one node without MPI, but for what it has to do meanwhile: Bcast, and what all
//! say of the end of an operation.

use super::Memory;
use super::broadcast::BCAST;
use crate::called::{Called, Part};
use crate::calls::Idle;
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::{Answers, Board, Kind, Message, NOTE};
use crate::words::{put_word, word};
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
        let part = Called::of(BCAST, Some(root)).with(0);
        board.begin(part);
        let posted = match self.rank() == root {
            true => board.claim().then(|| {
                let kind = self.kind_on_node(state, memory, &mut mine, token);
                let mut note = [0; NOTE];
                Message { kind, bytes: memory.bytes as u64 }.write(&mut note);
                put_word(&mut note, Message::PAYLOAD, part.called);
                board.post(&note);
                note
            }),
            false => self.posted(board, root, part),
        };
        let moved = match posted.map(|note| self.report.understood(BCAST, &note)) {
            Some(Ok(message)) if self.may_be_carried(board, message.kind, part) => {
                self.carry_on_node(state, root, message, memory, &mut mine, token)
            }
            // Nothing moves: ranks are in different calls, of which the answers tell all.
            Some(Ok(_)) | None => Ok(()),
            Some(Err(error)) => Err(error),
        };
        let (ended, closing) = self.agree_on_node(board, BCAST, mine.and(moved));
        if closing {
            self.close_spares();
        }
        ended
    }

    /// What `root` has posted of the broadcast that is `part`. `None` where it does not: it is in
    /// something else, or another rank takes itself for the root.
    fn posted(&self, board: &Board, root: Rank, part: Part) -> Option<[u8; NOTE]> {
        if self.until(|| board.begun(root as usize)) != part {
            return None;
        }
        let note = self.until(|| board.read());
        (word(&note, Message::PAYLOAD) == part.called).then_some(note)
    }

    /// Whether all that wait for each other in it are in `part`.
    fn may_be_carried(&self, board: &Board, kind: Kind, part: Part) -> bool {
        let mut all = 0..self.nodes.here.size() as usize;
        match kind {
            Kind::Chain | Kind::Staged => all.all(|place| self.until(|| board.begun(place)) == part),
            _ => true,
        }
    }

    /// All succeed, or all fail, each with its own cause or with the rank of one that
    /// failed. And whether one wants all to close what they have open.
    pub(super) fn agree_on_node<R>(
        &self,
        board: &mut Board,
        operation: &'static str,
        mine: Result<R, Error>,
    ) -> (Result<R, Error>, bool) {
        board.answer(self.report.answer(&mine), self.wants_closing());
        let Answers { worst, odd, closing } = self.until(|| board.answers());
        // On one node a rank's place is its rank.
        let ended = match odd {
            None => self.report.concluded(operation, mine, worst),
            Some(odd) => Err(self.report.differed(operation, mine, worst, odd)),
        };
        (ended, closing)
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
            (Kind::Chain, own) => self.chain(state, root, own, bytes, token),
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
