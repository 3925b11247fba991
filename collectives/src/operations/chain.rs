//! Long broadcasts on a node of three ranks or more: every rank copies from the one before
//! it, piece by piece, so that each device sends the bytes once. From the root alone all
//! would share its links.
//!
//! ```text
//! root      piece 0 1 2 3 …            there from the start
//! next      copies 0 1 2 3 …           tells the next after each
//! next but one      copies 0 1 2 3 …
//! ```
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Memory, extent};
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::{Kind, MESSAGE, Message, Path};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;

const BCAST: &str = "MPI_Bcast of device memory";
const TAG: i32 = 0;
/// Pieces of a long broadcast: the last rank begins so many pieces late as ranks are
/// before it.
const PIECES: usize = 32;

/// Whether a chain of `ranks` is worth its signals, with chunks of `chunk`.
pub(super) fn is_worth(ranks: Rank, bytes: usize, chunk: usize) -> bool {
    ranks > 2 && bytes >= 4 * chunk
}

/// The ranks beside this one in the chain, by their places on the node.
struct Links {
    before: Option<Rank>,
    behind: Option<Rank>,
    /// The one before is the root, which has everything.
    from_root: bool,
}

impl Links {
    fn of(place: Rank, root: Rank, ranks: Rank) -> Links {
        let position = (place + ranks - root) % ranks;
        Links {
            before: (position > 0).then_some((place + ranks - 1) % ranks),
            behind: (position < ranks - 1).then_some((place + 1) % ranks),
            from_root: position == 1,
        }
    }
}

impl DeviceCommunicator {
    /// The bytes of the rank at `root` to all of this node. A rank without memory of its own
    /// has failed: those behind it are told. The outer error is MPI's. Nobody changes its
    /// memory before the ranks have agreed.
    pub(super) fn chain(
        &self,
        state: &mut State,
        root: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let result = self.links(state, root, memory, bytes, token);
        // After MPI's failure copies may be under way.
        let ended = state.ring.wait_all(token).map_err(|error| self.report.driver(error));
        result.map(|mine| mine.and(ended))
    }

    fn links(
        &self,
        state: &mut State,
        root: Rank,
        memory: Option<Memory>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Result<(), Error>, Error> {
        let node = &self.nodes.here;
        let links = Links::of(node.rank(), root, node.size());
        let mut mine = Ok(());
        let source = self.introduce(state, &links, memory, bytes, &mut mine, token)?;
        let piece = bytes.div_ceil(PIECES).next_multiple_of(4096).max(self.plan.chunk_bytes);
        let pieces = bytes.div_ceil(piece);
        // One step more than pieces: a piece is told of when the next one is queued.
        for step in 0..=pieces {
            if let Some(before) = links.before.filter(|_| step < pieces) {
                if !links.from_root {
                    let told = node.receive_word(before, TAG).map_err(|error| self.report.mpi(error))?;
                    mine = mine.and(self.report.told(BCAST, told));
                }
                if let (Ok(()), Some(source), Some(memory)) = (&mine, source, memory) {
                    let (start, length) = extent(bytes, piece, step);
                    let from = DevicePtr(source.0 + start as u64);
                    // SAFETY: the rank before has these bytes there, and keeps them until all have
                    // agreed; ours are settled and borrowed mutably; waited for in `chain`.
                    let queued = unsafe { state.ring.queue_across(memory.byte(start), from, length, token) };
                    let queued = queued.and_then(|()| state.ring.stored(step, token));
                    mine = queued.map_err(|error| self.report.driver(error));
                }
            }
            let Some(done) = step.checked_sub(1) else { continue };
            if let Some(behind) = links.behind.filter(|_| links.before.is_some()) {
                if mine.is_ok() {
                    mine = state.ring.wait(done, token).map_err(|error| self.report.driver(error));
                }
                node.send_word(self.report.answer(&mine), behind, TAG)
                    .map_err(|error| self.report.mpi(error))?;
            }
        }
        Ok(mine)
    }

    /// Tells the rank behind where this one's memory is, and learns it of the one before:
    /// where that is here, if it is anywhere.
    fn introduce(
        &self,
        state: &mut State,
        links: &Links,
        memory: Option<Memory>,
        bytes: usize,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Result<Option<DevicePtr>, Error> {
        let node = &self.nodes.here;
        if links.behind.is_some() {
            let kind = match memory {
                Some(memory) => self.kind(state, memory, Path::Ipc, mine, token),
                // It has failed before, and its caller knows why.
                None => Kind::Failed(crate::error::Failure::Other),
            };
            Message { kind, bytes: bytes as u64 }.write(state.messages.bytes(0, MESSAGE));
        }
        let (at_out, at_in) = (state.messages.slot(0), state.messages.slot(1));
        let failed = |error| self.report.mpi(error);
        // SAFETY: slot 1 is a message long, and used by nobody else before the wait.
        let receive = links.before.map(|before| unsafe { node.start_receive(at_in, MESSAGE, before, TAG) });
        let receive = receive.transpose().map_err(failed)?;
        // SAFETY: slot 0 is a message long, and not written before the wait.
        let send = links.behind.map(|behind| unsafe { node.start_send(at_out, MESSAGE, behind, TAG) });
        let send = send.transpose().map_err(failed)?;
        receive.map(|request| request.wait()).transpose().map_err(failed)?;
        send.map(|request| request.wait()).transpose().map_err(failed)?;
        let Some(before) = links.before else { return Ok(None) };
        let rank = self.nodes.rank(self.nodes.of(self.rank()), before);
        let message = self.report.understood(BCAST, state.messages.bytes(1, MESSAGE))?;
        let opened = match message.kind {
            Kind::Ipc(there) => {
                state.imports.find(rank, &there, token).map_err(|error| self.report.driver(error))
            }
            Kind::Failed(what) => Err(self.report.peer(BCAST, rank, what)),
            Kind::Inline | Kind::Staged | Kind::Chain => {
                let text = "a chain's message without a handle".to_owned();
                Err(Error::Foreign { operation: BCAST, rank: self.rank(), text })
            }
        };
        match opened {
            Ok(at) => Ok(Some(at)),
            Err(error) => {
                if mine.is_ok() && memory.is_some() {
                    *mine = Err(error);
                }
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_visits_every_rank_once() {
        for ranks in 3..7 {
            for root in 0..ranks {
                assert_eq!(Links::of(root, root, ranks).before, None);
                let (mut at, mut visited) = (root, 1);
                while let Some(behind) = Links::of(at, root, ranks).behind {
                    let links = Links::of(behind, root, ranks);
                    assert_eq!((links.before, links.from_root), (Some(at), at == root));
                    (at, visited) = (behind, visited + 1);
                }
                assert_eq!(visited, ranks);
            }
        }
    }
}
