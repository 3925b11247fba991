//! Long broadcasts on a node of three ranks or more: every rank copies from the one before
//! it, piece by piece, so that each device sends the bytes once. From the root alone all
//! would share its links.
//!
//! ```text
//! root      piece 0 1 2 3 …            there from the start
//! next      copies 0 1 2 3 …           tells the next after each
//! next but one      copies 0 1 2 3 …
//! ```
//!
//! A rank whose memory nobody can open passes on where the memory before it is: the next one
//! copies from there what this one has said to be there.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Memory, extent};
use crate::communicator::{DeviceCommunicator, State};
use crate::error::{Error, Failure};
use crate::paths::{Kind, MESSAGE, Message, Path};
use crate::report::Report;
use crate::words::{put_word, word};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;

const BCAST: &str = "MPI_Bcast of device memory";
const TAG: i32 = 0;

/// Whether a chain of `ranks` is worth its signals, with chunks of `chunk`.
pub(super) fn is_worth(ranks: Rank, bytes: usize, chunk: usize) -> bool {
    ranks > 2 && bytes >= 8 * chunk
}

/// Bytes of a piece. The last rank begins so many pieces late as ranks are before it, so
/// there are many; but to tell of one takes as long as 4 MiB do between two H200s (10 us), so
/// they are no shorter where there are enough of that length.
fn piece(bytes: usize, chunk: usize) -> usize {
    let few = (bytes / 4).min(4 * chunk);
    (bytes / 32).clamp(few, 8 * chunk).next_multiple_of(4096)
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
        let source = self.introduce(state, &links, memory, &mut mine, token)?;
        let piece = piece(bytes, self.plan.chunk_bytes);
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

    /// Tells the rank behind where it copies from, and learns it of the one before: where that
    /// is here, if it is anywhere.
    fn introduce(
        &self,
        state: &mut State,
        links: &Links,
        memory: Option<Memory>,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Result<Option<DevicePtr>, Error> {
        let node = &self.nodes.here;
        let failed = |error| self.report.mpi(error);
        let own = match (links.behind, memory) {
            (None, _) => None,
            (Some(_), Some(memory)) => Some(self.kind(state, memory, Path::Ipc, mine, token)),
            // It has failed before, and its caller knows why.
            (Some(_), None) => Some(Kind::Failed(Failure::Other)),
        };
        // Without a handle it tells where the one before is, and learns that first.
        let first = own.filter(|own| *own != Kind::Staged);
        if let Some(kind) = first {
            Source { kind, rank: self.rank() }.write(state.messages.bytes(0, MESSAGE));
        }
        let (at_out, at_in) = (state.messages.slot(0), state.messages.slot(1));
        // SAFETY: slot 1 is a message long, and used by nobody else before the wait.
        let receive = links.before.map(|before| unsafe { node.start_receive(at_in, MESSAGE, before, TAG) });
        let receive = receive.transpose().map_err(failed)?;
        // SAFETY: slot 0 is a message long, and not written before the wait.
        let send = |to| unsafe { node.start_send(at_out, MESSAGE, to, TAG) };
        let sent = links.behind.filter(|_| first.is_some()).map(send).transpose().map_err(failed)?;
        receive.map(|request| request.wait()).transpose().map_err(failed)?;
        sent.map(|request| request.wait()).transpose().map_err(failed)?;
        if links.before.is_none() {
            return Ok(None);
        }
        let source = Source::read(state.messages.bytes(1, MESSAGE), self.report)?;
        if let Some(behind) = links.behind.filter(|_| first.is_none()) {
            source.write(state.messages.bytes(0, MESSAGE));
            send(behind).and_then(|request| request.wait()).map_err(failed)?;
        }
        let opened = match source.kind {
            Kind::Ipc(there) => {
                state.imports.find(source.rank, &there, token).map_err(|error| self.report.driver(error))
            }
            Kind::Failed(what) => Err(self.report.peer(BCAST, source.rank, what)),
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

/// Where a rank of the chain copies from: the memory of `rank`, as a message with the rank
/// in its payload.
struct Source {
    kind: Kind,
    rank: Rank,
}

impl Source {
    fn write(&self, buffer: &mut [u8]) {
        Message { kind: self.kind, bytes: 0 }.write(buffer);
        put_word(buffer, Message::PAYLOAD, self.rank as u64);
    }

    fn read(buffer: &[u8], report: Report) -> Result<Source, Error> {
        let message = report.understood(BCAST, buffer)?;
        Ok(Source { kind: message.kind, rank: word(buffer, Message::PAYLOAD) as Rank })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_many_and_not_too_short() {
        const MIB: usize = 1 << 20;
        let of = |bytes| piece(bytes, MIB) / MIB;
        let lengths = [8 * MIB, 16 * MIB, 100 * MIB, 256 * MIB, 1 << 30];
        assert_eq!(lengths.map(of), [2, 4, 4, 8, 8]);
        for bytes in (8 * MIB..20 * MIB).step_by(4097) {
            assert!(piece(bytes, MIB) % 4096 == 0 && bytes.div_ceil(piece(bytes, MIB)) >= 3);
        }
    }

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
