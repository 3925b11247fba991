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
//!
//! Here is what one rank knows and copies. How its messages go is in `chain.rs`, and in that of
//! `immediate/` for broadcasts that do not block.
#![allow(unsafe_code)] // names device memory to copies that the callers wait for

use super::{Memory, extent};
use crate::error::{Error, Failure, MpiError};
use crate::paths::{Exported, Imports, Kind, Message, Ring};
use crate::report::Report;
use crate::words::{put_word, word};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, DriverError};
use std::ops::RangeInclusive;

/// Whether a chain of `ranks` is worth its signals, with chunks of `chunk`.
pub(crate) fn is_worth(ranks: Rank, bytes: usize, chunk: usize) -> bool {
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
#[derive(Clone, Copy)]
pub(crate) struct Links {
    pub(crate) before: Option<Rank>,
    pub(crate) behind: Option<Rank>,
}

impl Links {
    /// From the root on through `beside`, the places in the order of their devices
    /// ([`Nodes::beside`]): so that the bytes cross each switch and socket once, or twice where
    /// the root is amid.
    ///
    /// [`Nodes::beside`]: crate::nodes::Nodes::beside
    pub(crate) fn of(place: Rank, root: Rank, beside: &[Rank]) -> Links {
        let ranks = beside.len();
        let at = |place: Rank| beside.iter().position(|&other| other == place).unwrap_or(0);
        let position = (at(place) + ranks - at(root)) % ranks;
        Links {
            before: (position > 0).then(|| beside[(at(place) + ranks - 1) % ranks]),
            behind: (position < ranks - 1).then(|| beside[(at(place) + 1) % ranks]),
        }
    }
}

/// The tags of one chain: a message that was left of another is never taken for one of its own.
#[derive(Clone, Copy)]
pub(crate) struct Tags {
    /// Where memory is.
    pub(crate) places: i32,
    /// That a piece is there.
    pub(crate) pieces: i32,
}

impl Tags {
    /// Of the chain after so many, on a communicator that has no other messages but those of small
    /// collectives.
    pub(crate) fn of(number: u32) -> Tags {
        let places = 2 * (number % 10_000) as i32;
        Tags { places, pieces: places + 1 }
    }
}

/// The bytes of a chain, and of a chunk.
#[derive(Clone, Copy)]
pub(crate) struct Lengths {
    pub(crate) bytes: usize,
    pub(crate) chunk: usize,
}

/// One rank's link of a chain.
pub(crate) struct Link<'a> {
    imports: &'a Imports,
    report: Report,
    operation: &'static str,
    /// This rank.
    rank: Rank,
    bytes: usize,
    piece: usize,
    /// This rank's. None where it has failed.
    memory: Option<Memory>,
    /// Where the bytes are to be had.
    source: Source,
    /// From a rank before to its own memory, which that one cannot open.
    from: Option<DevicePtr>,
    /// From its own memory to that of the rank behind.
    to: Option<DevicePtr>,
    /// The first failure is kept.
    mine: Result<(), Error>,
}

impl<'a> Link<'a> {
    /// Of a rank whose memory is `memory`: without it the rank has failed before, and one behind
    /// it that reads from it is told.
    pub(crate) fn new(
        (imports, report): (&'a Imports, Report),
        operation: &'static str,
        (rank, memory): (Rank, Option<Memory>),
        Lengths { bytes, chunk }: Lengths,
        token: &DriverToken,
    ) -> Link<'a> {
        let exported = memory.map(|memory| imports.export(memory.at, memory.slab, token)).transpose();
        let (kind, mine) = match exported.map_err(|error| report.driver(error)) {
            Ok(Some(place)) if place.is_none() => (Kind::Staged, Ok(())),
            Ok(Some(place)) => (Kind::Ipc(place), Ok(())),
            // Its caller knows why.
            Ok(None) => (Kind::Failed(Failure::Other), Ok(())),
            Err(error) => (Kind::Failed(error.failure()), Err(error)),
        };
        let (source, piece) = (Source { kind, rank }, piece(bytes, chunk));
        Link { imports, report, operation, rank, bytes, piece, memory, source, from: None, to: None, mine }
    }

    /// What the rank before is told: where this one's memory is. Then the rank behind, if it
    /// asks: where the bytes are to be had.
    pub(crate) fn tell(&self, message: &mut [u8]) {
        self.source.write(message);
    }

    /// Whether this rank's memory cannot be opened: the rank before then tells it where the
    /// bytes are to be had.
    pub(crate) fn asks(&self) -> bool {
        self.source.kind == Kind::Staged
    }

    /// The rank behind has told where its memory is. Whether it asks, or may.
    pub(crate) fn meet(&mut self, message: &[u8], token: &DriverToken) -> bool {
        let theirs = match Source::read(message, self.operation, self.report) {
            Ok(theirs) => theirs,
            Err(error) => {
                self.fail(error);
                return true;
            }
        };
        if let Kind::Ipc(there) = theirs.kind {
            self.to = self.reach(theirs.rank, &there, token);
        }
        theirs.kind == Kind::Staged
    }

    /// The rank before has told where the bytes are to be had.
    pub(crate) fn find(&mut self, message: &[u8], token: &DriverToken) {
        let source = match Source::read(message, self.operation, self.report) {
            Ok(source) => source,
            Err(error) => return self.fail(error),
        };
        match source.kind {
            Kind::Ipc(there) => self.from = self.reach(source.rank, &there, token),
            Kind::Failed(what) => self.fail(self.report.peer(self.operation, source.rank, what)),
            Kind::Inline | Kind::Staged | Kind::Chain => {
                let text = "a chain's message without a handle".to_owned();
                self.fail(Error::Foreign { operation: self.operation, rank: self.source.rank, text });
            }
        }
        self.source = source;
    }

    /// Where memory of `rank` is here.
    fn reach(&mut self, rank: Rank, there: &Exported, token: &DriverToken) -> Option<DevicePtr> {
        let found = self.imports.find(rank, there, token);
        found.map_err(|error| self.fail(self.report.driver(error))).ok()
    }

    /// The first failure is kept, and told to the rank behind where it asks.
    fn fail(&mut self, error: Error) {
        if self.mine.is_ok() {
            self.source = Source { kind: Kind::Failed(error.failure()), rank: self.rank };
            self.mine = Err(error);
        }
    }

    /// MPI has failed a message of this rank's. All others come as before, so that nobody waits for
    /// one.
    pub(crate) fn lost(&mut self, error: MpiError) {
        self.fail(self.report.mpi(error));
    }

    /// One more than pieces: a piece is told of when the next one is queued.
    pub(crate) fn steps(&self) -> RangeInclusive<usize> {
        0..=self.pieces()
    }

    fn pieces(&self) -> usize {
        self.bytes.div_ceil(self.piece)
    }

    /// Whether there is a piece of the step's number, of which the rank before tells.
    pub(crate) fn is_piece(&self, step: usize) -> bool {
        step < self.pieces()
    }

    /// What the rank before says of a piece.
    pub(crate) fn hear(&mut self, told: u64) {
        if let Err(error) = self.report.told(self.operation, told) {
            self.fail(error);
        }
    }

    /// Whether this rank copies pieces: it is told of one when its copies have ended.
    pub(crate) fn copies(&self) -> bool {
        self.mine.is_ok() && self.memory.is_some() && (self.from.is_some() || self.to.is_some())
    }

    /// Queues the copies of a piece that the rank before has, or has written here, and marks
    /// their end.
    ///
    /// # Safety
    /// This rank's memory is lent until the ranks have agreed: what is written is nobody's, what
    /// is read is not written. The same holds at the ranks beside it. The ring's copies are
    /// waited for before that.
    pub(crate) unsafe fn queue(&mut self, ring: &Ring, step: usize, token: &DriverToken) {
        if let Some(memory) = self.memory.filter(|_| self.copies()) {
            // SAFETY: the caller's contract.
            let queued = unsafe { self.queue_piece(ring, memory, step, token) };
            self.ended(queued.and_then(|()| ring.stored(step, token)));
        }
    }

    /// # Safety
    /// As of `queue`.
    unsafe fn queue_piece(
        &self,
        ring: &Ring,
        memory: Memory,
        step: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let (start, length) = extent(self.bytes, self.piece, step);
        let own = memory.byte(start);
        if let Some(from) = self.from {
            // SAFETY: the rank before says that these bytes are there; the rest is the caller's
            // contract.
            unsafe { ring.queue_across(own, DevicePtr(from.0 + start as u64), length, token) }?;
        }
        if let Some(to) = self.to {
            // SAFETY: ours are there, the copy above being before this one on the same stream; the
            // rank behind has room for as many; the rest is the caller's contract.
            unsafe { ring.queue_across(DevicePtr(to.0 + start as u64), own, length, token) }?;
        }
        Ok(())
    }

    /// How copies of this rank's ended.
    pub(crate) fn ended(&mut self, result: Result<(), DriverError>) {
        if let Err(error) = result {
            self.fail(self.report.driver(error));
        }
    }

    /// What the rank behind is told of a piece: that it is there, or who failed.
    pub(crate) fn answer(&self) -> u64 {
        self.report.answer(&self.mine)
    }

    /// How it went here.
    pub(crate) fn done(self) -> Result<(), Error> {
        self.mine
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

    fn read(buffer: &[u8], operation: &'static str, report: Report) -> Result<Source, Error> {
        let message = report.understood(operation, buffer)?;
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
        for beside in [vec![0, 1, 2], vec![2, 0, 3, 1], vec![4, 1, 0, 2, 3], vec![5, 4, 3, 2, 1, 0]] {
            for &root in &beside {
                assert_eq!(Links::of(root, root, &beside).before, None);
                let mut visited = vec![root];
                while let Some(behind) = Links::of(visited[visited.len() - 1], root, &beside).behind {
                    assert_eq!(Links::of(behind, root, &beside).before, visited.last().copied());
                    visited.push(behind);
                }
                let first = beside.iter().position(|&place| place == root).unwrap();
                let turned = [&beside[first..], &beside[..first]].concat();
                assert_eq!(visited, turned, "neighbours stay neighbours");
            }
        }
    }
}
