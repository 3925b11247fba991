//! Long broadcasts on a node of three ranks or more: every rank writes to the one behind it,
//! piece by piece, so that each device sends the bytes once. From the root alone all would
//! share its links. Writing, as a device that reads and is read at once does both more
//! slowly: 1 GiB along four H200s takes 3.1 ms by copies that write, 3.5 ms by copies that
//! read.
//!
//! ```text
//! root      writes 0 1 2 3 …           tells the next after each
//! next        writes 0 1 2 3 …         likewise
//! next but one
//! ```
//!
//! A rank whose memory nobody can open copies from the one before itself, or, where that
//! one's memory cannot be opened either, from the last before whose memory can: the root's.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Memory, extent};
use crate::communicator::{DeviceCommunicator, State};
use crate::error::{Error, Failure};
use crate::paths::{Exported, Kind, MESSAGE, Message, Path};
use crate::report::Report;
use crate::words::{put_word, word};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, DriverError};

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
}

impl Links {
    fn of(place: Rank, root: Rank, ranks: Rank) -> Links {
        let position = (place + ranks - root) % ranks;
        Links {
            before: (position > 0).then_some((place + ranks - 1) % ranks),
            behind: (position < ranks - 1).then_some((place + 1) % ranks),
        }
    }
}

/// What this rank copies of each piece, where the others' memory is here.
#[derive(Default)]
struct Copies {
    /// From a rank before to its own memory, which that one cannot open.
    from: Option<DevicePtr>,
    /// From its own memory to that of the rank behind.
    to: Option<DevicePtr>,
}

impl DeviceCommunicator {
    /// The bytes of the rank at `root` to all of this node. A rank without memory of its own
    /// has failed: those behind it are told. The outer error is MPI's. Nobody changes its
    /// memory, or uses what is written there, before the ranks have agreed.
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
        let copies = self.introduce(state, &links, memory, &mut mine, token)?;
        let copies_any = copies.from.is_some() || copies.to.is_some();
        let piece = piece(bytes, self.plan.chunk_bytes);
        let pieces = bytes.div_ceil(piece);
        // One step more than pieces: a piece is told of when the next one is queued.
        for step in 0..=pieces {
            if step < pieces {
                if let Some(before) = links.before {
                    let told = node.receive_word(before, TAG).map_err(|error| self.report.mpi(error))?;
                    mine = mine.and(self.report.told(BCAST, told));
                }
                if let (Ok(()), Some(memory)) = (&mine, memory.filter(|_| copies_any)) {
                    let (start, length) = extent(bytes, piece, step);
                    let queued = self.copy_piece(state, &copies, memory, (start, length), token);
                    let queued = queued.and_then(|()| state.ring.stored(step, token));
                    mine = queued.map_err(|error| self.report.driver(error));
                }
            }
            if let (Some(done), Some(behind)) = (step.checked_sub(1), links.behind) {
                if mine.is_ok() && copies_any {
                    mine = state.ring.wait(done, token).map_err(|error| self.report.driver(error));
                }
                node.send_word(self.report.answer(&mine), behind, TAG)
                    .map_err(|error| self.report.mpi(error))?;
            }
        }
        Ok(mine)
    }

    /// A piece that the rank before has, or has written here.
    fn copy_piece(
        &self,
        state: &State,
        copies: &Copies,
        memory: Memory,
        (start, length): (usize, usize),
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let own = memory.byte(start);
        if let Some(from) = copies.from {
            // SAFETY: the rank before says that these bytes are there, and keeps them until all
            // have agreed; ours are settled and borrowed mutably; waited for in `chain`.
            unsafe { state.ring.queue_across(own, DevicePtr(from.0 + start as u64), length, token) }?;
        }
        if let Some(to) = copies.to {
            // SAFETY: ours are there, the copy above being before this one on the same stream; the
            // rank behind has room for as many, settled, and leaves it alone until all have
            // agreed; waited for in `chain`.
            unsafe { state.ring.queue_across(DevicePtr(to.0 + start as u64), own, length, token) }?;
        }
        Ok(())
    }

    /// Tells the rank before where this one's memory is, and learns it of the one behind; where
    /// that cannot be opened, tells it where the bytes are to be had.
    fn introduce(
        &self,
        state: &mut State,
        links: &Links,
        memory: Option<Memory>,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Result<Copies, Error> {
        let node = &self.nodes.here;
        let failed = |error| self.report.mpi(error);
        let own = match memory {
            Some(memory) => self.kind(state, memory, Path::Ipc, mine, token),
            // It has failed before, and its caller knows why.
            None => Kind::Failed(Failure::Other),
        };
        Source { kind: own, rank: self.rank() }.write(state.messages.bytes(0, MESSAGE));
        let (at_out, at_in) = (state.messages.slot(0), state.messages.slot(1));
        // SAFETY: slot 1 is a message long, and used by nobody else before the wait.
        let receive = |from| unsafe { node.start_receive(at_in, MESSAGE, from, TAG) };
        // SAFETY: slot 0 is a message long, and not written before the wait.
        let send = |to| unsafe { node.start_send(at_out, MESSAGE, to, TAG) };
        let comes = links.behind.map(receive).transpose().map_err(failed)?;
        let goes = links.before.map(send).transpose().map_err(failed)?;
        comes.map(|request| request.wait()).transpose().map_err(failed)?;
        goes.map(|request| request.wait()).transpose().map_err(failed)?;

        let mut copies = Copies::default();
        let mut behind_asks = None;
        if let Some(behind) = links.behind {
            let theirs = Source::read(state.messages.bytes(1, MESSAGE), self.report)?;
            behind_asks = (theirs.kind == Kind::Staged).then_some(behind);
            if let Kind::Ipc(there) = theirs.kind {
                copies.to = self.reach(state, theirs.rank, &there, mine, token);
            }
        }
        let mut source = Source { kind: own, rank: self.rank() };
        if let Some(before) = links.before.filter(|_| own == Kind::Staged) {
            receive(before).and_then(|request| request.wait()).map_err(failed)?;
            source = Source::read(state.messages.bytes(1, MESSAGE), self.report)?;
            match source.kind {
                Kind::Ipc(there) => copies.from = self.reach(state, source.rank, &there, mine, token),
                Kind::Failed(what) => fail(mine, self.report.peer(BCAST, source.rank, what)),
                Kind::Inline | Kind::Staged | Kind::Chain => {
                    let text = "a chain's message without a handle".to_owned();
                    fail(mine, Error::Foreign { operation: BCAST, rank: self.rank(), text });
                }
            }
        }
        if let Some(behind) = behind_asks {
            source.write(state.messages.bytes(0, MESSAGE));
            send(behind).and_then(|request| request.wait()).map_err(failed)?;
        }
        Ok(copies)
    }

    /// Where memory of `rank` is here. A failure is this rank's, if it has none yet.
    fn reach(
        &self,
        state: &State,
        rank: Rank,
        there: &Exported,
        mine: &mut Result<(), Error>,
        token: &DriverToken,
    ) -> Option<DevicePtr> {
        match state.imports.find(rank, there, token) {
            Ok(at) => Some(at),
            Err(error) => {
                fail(mine, self.report.driver(error));
                None
            }
        }
    }
}

/// The first failure is kept.
fn fail(mine: &mut Result<(), Error>, error: Error) {
    if mine.is_ok() {
        *mine = Err(error);
    }
}

/// Where bytes are: the memory of `rank`, as a message with the rank in its payload.
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
            assert!(piece(bytes, MIB).is_multiple_of(4096) && bytes.div_ceil(piece(bytes, MIB)) >= 3);
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
                    assert_eq!(links.before, Some(at));
                    (at, visited) = (behind, visited + 1);
                }
                assert_eq!(visited, ranks);
            }
        }
    }
}
