//! Who sends which bytes to whom, what the ranks tell each other of it, and the pieces in which
//! it goes through chunks: what the blocking form and the other have in common.
#![allow(unsafe_code)] // names device memory to copies and requests that the callers wait for

use super::{Memory, WORTH, Whole, extent};
use crate::calls::{Answer, Comm, Listed, Request, Rooted};
use crate::error::{Error, Failure};
use crate::paths::{Exported, Imports, Path, Ring};
use crate::report::Report;
use crate::words::{WORD, put_word, word};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, DriverError};
use std::ffi::c_int;
use std::ops::Range;

/// What a rank sends and receives, in bytes of its buffers.
pub(crate) struct Traffic {
    from: Option<Memory>,
    /// By rank.
    sends: Vec<Range<usize>>,
    to: Option<Memory>,
    receives: Vec<Range<usize>>,
}

impl Traffic {
    pub(super) fn new(ranks: Rank) -> Traffic {
        let none = vec![0..0; ranks as usize];
        Traffic { from: None, sends: none.clone(), to: None, receives: none }
    }

    pub(super) fn send_each<T>(
        &mut self,
        (place, elements): Whole<'_>,
        parts: impl Iterator<Item = Range<usize>>,
    ) {
        self.from = Some(Memory::of::<T>(place, elements));
        self.sends = parts.map(bytes::<T>).collect();
    }

    pub(super) fn receive_each<T>(
        &mut self,
        (place, elements): Whole<'_>,
        parts: impl Iterator<Item = Range<usize>>,
    ) {
        self.to = Some(Memory::of::<T>(place, elements));
        self.receives = parts.map(bytes::<T>).collect();
    }

    pub(super) fn send_to_all<T>(&mut self, mine: Whole<'_>) {
        let (ranks, elements) = (self.sends.len(), mine.1);
        self.send_each::<T>(mine, (0..ranks).map(|_| 0..elements));
    }

    pub(super) fn send_to<T>(&mut self, rank: Rank, (place, elements): Whole<'_>) {
        self.from = Some(Memory::of::<T>(place, elements));
        self.sends[rank as usize] = bytes::<T>(0..elements);
    }

    pub(super) fn receive_from<T>(&mut self, rank: Rank, (place, elements): Whole<'_>) {
        self.to = Some(Memory::of::<T>(place, elements));
        self.receives[rank as usize] = bytes::<T>(0..elements);
    }

    /// Parts at device addresses, wherever these are: in pieces alone.
    pub(super) fn of_addresses(sends: Vec<Range<usize>>, receives: Vec<Range<usize>>) -> Traffic {
        let everything = Some(Memory { at: DevicePtr(0), bytes: usize::MAX, slab: None });
        Traffic { from: everything, sends, to: everything, receives }
    }

    /// A share of `bytes` for each rank.
    pub(super) fn of_shares(
        what: Rooted,
        from: Option<Memory>,
        to: Option<Memory>,
        bytes: usize,
        (rank, ranks): (Rank, usize),
    ) -> Traffic {
        let share = |number: usize| number * bytes..(number + 1) * bytes;
        let each = || (0..ranks).map(share).collect::<Vec<_>>();
        let (whole, none) = (vec![share(0); ranks], vec![0..0; ranks]);
        let only = |root: Rank| {
            let mut parts = none.clone();
            parts[root as usize] = share(0);
            parts
        };
        let (sends, receives) = match what {
            Rooted::Gather(root) => (only(root), if root == rank { each() } else { none }),
            Rooted::Scatter(root) => (if root == rank { each() } else { none.clone() }, only(root)),
            Rooted::AllGather => (whole, each()),
            Rooted::AllToAll => (each(), each()),
        };
        Traffic { from, sends, to, receives }
    }

    /// The longest part of this rank's.
    pub(crate) fn longest(&self) -> usize {
        self.sends.iter().chain(&self.receives).map(Range::len).max().unwrap_or(0)
    }

    /// What this rank tells the others, one after the other: what it has for each, where that
    /// lies on `ipc`, or that it has failed.
    pub(crate) fn tells<R>(
        &self,
        path: Path,
        (imports, report): (&Imports, Report),
        mut mine: Result<R, Error>,
        token: &DriverToken,
    ) -> (Vec<u8>, Result<R, Error>) {
        let (mut place, mut closed) = (Exported::NONE, false);
        if let Some(memory) = self.from.filter(|memory| memory.bytes > 0)
            && path == Path::Ipc
            && mine.is_ok()
        {
            match imports.export(memory.at, memory.slab, token) {
                Ok(exported) => (place, closed) = (exported, exported.is_none()),
                Err(error) => mine = Err(report.driver(error)),
            }
        }
        let failure = mine.as_ref().err().map_or(0, |error| u64::from(error.failure().number()));
        let mut tells = vec![0; Told::BYTES * self.sends.len()];
        for (part, to) in self.sends.iter().zip(tells.chunks_exact_mut(Told::BYTES)) {
            Told { bytes: part.len() as u64, failure, closed, place: place.skip(part.start) }.write(to);
        }
        (tells, mine)
    }

    /// What the others have told this rank, and whether that is what it expects.
    pub(crate) fn hear<R>(
        &self,
        operation: &'static str,
        told: &[u8],
        report: Report,
        mut mine: Result<R, Error>,
    ) -> (Vec<Told>, Result<R, Error>) {
        let told: Vec<Told> = told.chunks_exact(Told::BYTES).map(Told::read).collect();
        for ((other, told), part) in told.iter().enumerate().zip(&self.receives) {
            if mine.is_ok() && told.failure != 0 {
                let what = Failure::of(told.failure as u32);
                mine = Err(report.peer(operation, other as Rank, what));
            } else if mine.is_ok() && told.bytes != part.len() as u64 {
                mine = Err(report.unequal(operation, part.len(), other as Rank, told.bytes));
            }
        }
        (told, mine)
    }

    /// Queues copies from the other devices on the stream of stores, each `rank` in an order of its
    /// own, so that not all begin with the same.
    ///
    /// # Safety
    /// The senders' memory has what was told, and is not written before the ranks have agreed; ours
    /// is nobody's. Waited for before that.
    pub(crate) unsafe fn queue(
        &self,
        told: &[Told],
        rank: Rank,
        (imports, ring): (&Imports, &Ring),
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        let (rank, size) = (rank as usize, told.len());
        for other in (0..size).map(|step| (rank + step) % size) {
            let (part, theirs) = (&self.receives[other], &told[other]);
            let Some(to) = self.to.filter(|_| !part.is_empty()) else { continue };
            let from = imports.find(other as Rank, &theirs.place, token)?;
            // SAFETY: the caller's contract.
            unsafe { ring.queue_across(to.byte(part.start), from, part.len(), token) }?;
        }
        Ok(())
    }

    /// Counts and places for MPI, which gets the pointers.
    pub(crate) fn lists(&self, rank: Rank) -> Result<[Listed; 2], Error> {
        let mut lists = [(); 2].map(|()| Listed::new(self.sends.len() as Rank));
        for (list, parts) in lists.iter_mut().zip([&self.sends, &self.receives]) {
            for (other, part) in parts.iter().enumerate() {
                let fits = list.set(other, part.len(), part.start);
                fits.ok_or(Error::TooLong { rank, bytes: part.end })?;
            }
        }
        Ok(lists)
    }

    /// Gives MPI the pointers.
    ///
    /// # Safety
    /// MPI takes them (the plan). The memory and the lists stand until the request is done, what is
    /// sent unwritten, and what is received is nobody's.
    pub(crate) unsafe fn start_directly(&self, ranks: &Comm, lists: &[Listed; 2]) -> Answer<Request> {
        let pointer = |memory: Option<Memory>| memory.map_or(std::ptr::null_mut(), Memory::host);
        let [sent, received] = lists;
        // SAFETY: the caller's contract.
        unsafe { ranks.start_parts(pointer(self.from), sent, pointer(self.to), received) }
    }

    /// In pieces, the same at every rank: `longest` is of all ranks, and not 0.
    pub(crate) fn cut(&self, chunk_bytes: usize, longest: usize) -> Cut<'_> {
        let ranks = self.sends.len();
        // A place for each rank's piece, sent and received.
        let slot = chunk_bytes.max(2 * ranks * longest.min(WORTH)).min(c_int::MAX as usize);
        let piece = (slot / (2 * ranks)).clamp(1, longest);
        let is_same_for_all = self.sends.iter().all(|part| *part == self.sends[0]);
        Cut { traffic: self, slot, piece, pieces: longest.div_ceil(piece), is_same_for_all }
    }
}

fn bytes<T>(elements: Range<usize>) -> Range<usize> {
    elements.start * size_of::<T>()..elements.end * size_of::<T>()
}

/// What one rank tells another.
#[derive(Clone, Copy)]
pub(crate) struct Told {
    bytes: u64,
    failure: u64,
    /// It has bytes for somebody in memory that others cannot open.
    pub(crate) closed: bool,
    /// Where the bytes lie, on `ipc`.
    place: Exported,
}

impl Told {
    const BYTES: usize = 3 * WORD + Exported::BYTES;

    fn write(&self, to: &mut [u8]) {
        for (number, word) in [self.bytes, self.failure, u64::from(self.closed)].into_iter().enumerate() {
            put_word(to, WORD * number, word);
        }
        self.place.write(&mut to[3 * WORD..]);
    }

    fn read(from: &[u8]) -> Told {
        let word = |number: usize| word(from, WORD * number);
        let place = Exported::read(&from[3 * WORD..]);
        Told { bytes: word(0), failure: word(1), closed: word(2) != 0, place }
    }
}

/// Pieces of all parts at a time (MPI_Ialltoallv): in a slot first those that are sent, then those
/// that are received.
pub(crate) struct Cut<'t> {
    traffic: &'t Traffic,
    /// Bytes that a slot needs.
    pub(crate) slot: usize,
    /// Bytes of a piece of one part.
    piece: usize,
    pub(crate) pieces: usize,
    /// Every rank is sent the same bytes: they are loaded once.
    is_same_for_all: bool,
}

impl Cut<'_> {
    /// Bytes of a slot that pieces take, which may be less than it has.
    pub(crate) fn needs(&self) -> usize {
        2 * self.traffic.sends.len() * self.piece
    }

    /// The lists of every slot. They stand as long as its requests.
    pub(crate) fn lists(&self, slots: usize) -> Vec<[Listed; 2]> {
        let list = || Listed::new(self.traffic.sends.len() as Rank);
        (0..slots).map(|_| [list(), list()]).collect()
    }

    /// Start and bytes of piece `number` of a part; no bytes behind its end.
    fn of(&self, part: &Range<usize>, number: usize) -> (usize, usize) {
        if number * self.piece >= part.len() {
            return (part.start, 0);
        }
        let (start, length) = extent(part.len(), self.piece, number);
        (part.start + start, length)
    }

    /// Device memory, its place in the slot, and bytes, of what is not empty.
    fn copies(
        &self,
        memory: Option<Memory>,
        parts: &[Range<usize>],
        number: usize,
        first: usize,
    ) -> impl Iterator<Item = (DevicePtr, usize, usize)> {
        parts.iter().enumerate().filter_map(move |(rank, part)| {
            let (start, length) = self.of(part, number);
            let at = memory.filter(|_| length > 0)?.byte(start);
            Some((at, (first + rank) * self.piece, length))
        })
    }

    /// The copies to the slot of piece `number`.
    pub(crate) fn loads(&self, number: usize) -> impl Iterator<Item = (DevicePtr, usize, usize)> {
        let parts = &self.traffic.sends[..];
        let parts = if self.is_same_for_all { &parts[..1] } else { parts };
        self.copies(self.traffic.from, parts, number, 0)
    }

    /// The copies from the slot of piece `number`.
    pub(crate) fn stores(&self, number: usize) -> impl Iterator<Item = (DevicePtr, usize, usize)> {
        let parts = &self.traffic.receives[..];
        self.copies(self.traffic.to, parts, number, parts.len())
    }

    /// Starts piece `number` in the slot at `at`, whose lists are written.
    ///
    /// # Safety
    /// Slot and lists stand until the request is done, and nobody uses them; no request uses the
    /// lists now.
    pub(crate) unsafe fn start(
        &self,
        ranks: &Comm,
        [sent, received]: &mut [Listed; 2],
        number: usize,
        at: *mut u8,
    ) -> Answer<Request> {
        let Traffic { sends, receives, .. } = self.traffic;
        for (rank, (out, into)) in sends.iter().zip(receives).enumerate() {
            let place = if self.is_same_for_all { 0 } else { rank * self.piece };
            // A slot is within an MPI count (`Traffic::cut`).
            let _ = sent.set(rank, self.of(out, number).1, place);
            let _ = received.set(rank, self.of(into, number).1, rank * self.piece);
        }
        let to = at.wrapping_add(sends.len() * self.piece);
        // SAFETY: the caller's contract.
        unsafe { ranks.start_parts(at, sent, to, received) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The copies of one piece lie apart, within `slot`.
    fn apart(mut copies: Vec<(DevicePtr, usize, usize)>, slot: Range<usize>) {
        copies.sort_by_key(|&(_, at, _)| at);
        let mut end = slot.start;
        for (_, at, bytes) in copies {
            assert!(at >= end && bytes > 0, "{at} + {bytes} behind {end}");
            end = at + bytes;
        }
        assert!(end <= slot.end, "{end} of {slot:?}");
    }

    /// The bytes of all `copies`, in order: each once.
    fn bytes_of(copies: impl Iterator<Item = (DevicePtr, usize, usize)>) -> Vec<u64> {
        let mut bytes: Vec<u64> =
            copies.flat_map(|(at, _, bytes)| (0..bytes as u64).map(move |byte| at.0 + byte)).collect();
        bytes.sort_unstable();
        bytes
    }

    #[test]
    fn pieces_cover_every_byte_of_every_part_once() {
        for (ranks, longest) in [(1, 9000), (3, 9000), (3, 70_000), (50, 301)] {
            let length = |rank: usize| longest * (rank % 3 + 1) / 3;
            let parts: Vec<Range<usize>> =
                (0..ranks).map(|rank| rank * (longest + 2)..rank * (longest + 2) + length(rank)).collect();
            let traffic = Traffic::of_addresses(parts.clone(), parts.clone());
            for chunk in [4096, 1 << 20] {
                // Another rank may have a longer one.
                let cut = traffic.cut(chunk, longest + 5);
                let middle = ranks * cut.piece;
                for number in 0..cut.pieces {
                    apart(cut.loads(number).collect(), 0..middle);
                    apart(cut.stores(number).collect(), middle..cut.slot);
                }
                let expected: Vec<u64> = parts.iter().cloned().flatten().map(|byte| byte as u64).collect();
                assert_eq!(bytes_of((0..cut.pieces).flat_map(|number| cut.loads(number))), expected);
                assert_eq!(bytes_of((0..cut.pieces).flat_map(|number| cut.stores(number))), expected);
            }
        }
    }

    #[test]
    fn a_slot_is_within_an_mpi_count_however_many_ranks_there_are() {
        for ranks in [1, 16_384, 16_385, 100_000] {
            let traffic = Traffic::of_addresses(vec![0..1; ranks], vec![0..1; ranks]);
            let cut = traffic.cut(1 << 30, 1 << 40);
            let mut list = Listed::new(ranks as Rank);
            assert!(list.set(ranks - 1, cut.piece, (ranks - 1) * cut.piece).is_some(), "{ranks} ranks");
            assert!(cut.piece > 0 && 2 * ranks * cut.piece <= cut.slot);
        }
    }

    #[test]
    fn what_all_get_is_loaded_once() {
        let traffic = Traffic::of_addresses(vec![5..105; 4], vec![0..0; 4]);
        let cut = traffic.cut(4096, 100);
        assert_eq!(cut.loads(0).collect::<Vec<_>>(), [(DevicePtr(5), 0, 100)]);
        assert_eq!((cut.pieces, cut.stores(0).count()), (1, 0));
    }
}
