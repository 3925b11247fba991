//! Any bytes of any rank to any other: what all collectives of shares and parts are.
//!
//! Each rank tells each other what it has for it, and where that lies (one small
//! MPI_Alltoall). On `ipc` the receivers then copy from the senders' devices; elsewhere
//! pieces of all parts go through pinned chunks (MPI_Ialltoallv), or MPI gets the pointers.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Memory, WORTH, extent};
use crate::buffers::Place;
use crate::calls::{Listed, Rooted};
use crate::communicator::{DeviceCommunicator, State};
use crate::error::{Error, Failure};
use crate::paths::{Exported, Path, run};
use crate::words::{WORD, put_word, word};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::DevicePtr;
use std::ops::Range;

/// What a rank sends and receives, in bytes of its buffers.
pub(super) struct Traffic {
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
        place: Place<'_>,
        elements: usize,
        parts: impl Iterator<Item = Range<usize>>,
    ) {
        self.from = Some(Memory::of::<T>(place, elements));
        self.sends = parts.map(bytes::<T>).collect();
    }

    pub(super) fn receive_each<T>(
        &mut self,
        place: Place<'_>,
        elements: usize,
        parts: impl Iterator<Item = Range<usize>>,
    ) {
        self.to = Some(Memory::of::<T>(place, elements));
        self.receives = parts.map(bytes::<T>).collect();
    }

    pub(super) fn send_to_all<T>(&mut self, place: Place<'_>, elements: usize) {
        let ranks = self.sends.len();
        self.send_each::<T>(place, elements, (0..ranks).map(|_| 0..elements));
    }

    pub(super) fn send_to<T>(&mut self, rank: Rank, place: Place<'_>, elements: usize) {
        self.from = Some(Memory::of::<T>(place, elements));
        self.sends[rank as usize] = bytes::<T>(0..elements);
    }

    pub(super) fn receive_from<T>(&mut self, rank: Rank, place: Place<'_>, elements: usize) {
        self.to = Some(Memory::of::<T>(place, elements));
        self.receives[rank as usize] = bytes::<T>(0..elements);
    }

    /// Parts at device addresses, wherever these are: for [`parts_staged`] alone.
    ///
    /// [`parts_staged`]: DeviceCommunicator::parts_staged
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

    /// Whether every rank is sent the same bytes.
    fn is_same_for_all(&self) -> bool {
        self.sends.iter().all(|part| *part == self.sends[0])
    }

    fn longest(&self) -> usize {
        self.sends.iter().chain(&self.receives).map(Range::len).max().unwrap_or(0)
    }
}

fn bytes<T>(elements: Range<usize>) -> Range<usize> {
    elements.start * size_of::<T>()..elements.end * size_of::<T>()
}

/// What one rank tells another.
#[derive(Clone, Copy)]
struct Told {
    bytes: u64,
    failure: u64,
    /// It has bytes for somebody in memory that others cannot open.
    closed: bool,
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

impl DeviceCommunicator {
    /// Carries it out. A rank that has failed takes part, and tells.
    pub(super) fn traffic(
        &self,
        operation: &'static str,
        traffic: Traffic,
        own: Result<(), Error>,
    ) -> Result<(), Error> {
        let token = DriverToken::at_entry();
        let state = &mut *self.state.borrow_mut();
        let (told, mut mine) = self.introduce_parts(state, operation, &traffic, own, &token)?;
        match self.plan.path {
            // Each has told all, so all decide alike.
            Path::Ipc if told.iter().all(|told| !told.closed) => {
                if mine.is_ok() {
                    mine = self.pull_parts(state, &traffic, &told, &token);
                }
                self.agree(operation, mine)
            }
            Path::Direct => {
                self.agree(operation, mine)?;
                self.parts_directly(&traffic)
            }
            Path::Ipc | Path::Staged | Path::IpcAndStaged => {
                self.parts_staged(state, operation, &traffic, mine, &token)
            }
        }
    }

    /// What every rank has for this one. The outer error is MPI's.
    fn introduce_parts(
        &self,
        state: &mut State,
        operation: &'static str,
        traffic: &Traffic,
        own: Result<(), Error>,
        token: &DriverToken,
    ) -> Result<(Vec<Told>, Result<(), Error>), Error> {
        let mut mine = own;
        let (mut place, mut closed) = (Exported::NONE, false);
        if let Some(memory) = traffic.from.filter(|memory| memory.bytes > 0)
            && self.plan.path == Path::Ipc
            && mine.is_ok()
        {
            match state.imports.export(memory.at, memory.slab, token) {
                Ok(exported) => (place, closed) = (exported, exported.is_none()),
                Err(error) => mine = Err(self.report.driver(error)),
            }
        }
        let failure = mine.as_ref().err().map_or(0, |error| u64::from(error.failure().number()));
        let mut tells = vec![0; Told::BYTES * self.size() as usize];
        for (part, to) in traffic.sends.iter().zip(tells.chunks_exact_mut(Told::BYTES)) {
            Told { bytes: part.len() as u64, failure, closed, place: place.skip(part.start) }.write(to);
        }
        let told = self.whole.swap(&tells).map_err(|error| self.report.mpi(error))?;
        let told: Vec<Told> = told.chunks_exact(Told::BYTES).map(Told::read).collect();
        for ((other, told), part) in told.iter().enumerate().zip(&traffic.receives) {
            let (rank, other, bytes) = (self.rank(), other as Rank, part.len() as u64);
            if mine.is_ok() && told.failure != 0 {
                let what = Failure::of(told.failure as u32);
                mine = Err(self.report.peer(operation, other, what));
            } else if mine.is_ok() && told.bytes != bytes {
                mine = Err(Error::Counts { operation, rank, bytes, other, other_bytes: told.bytes });
            }
        }
        Ok((told, mine))
    }

    /// Copies from the other devices, each rank in an order of its own, so that not all
    /// begin with the same.
    fn pull_parts(
        &self,
        state: &mut State,
        traffic: &Traffic,
        told: &[Told],
        token: &DriverToken,
    ) -> Result<(), Error> {
        let (rank, size) = (self.rank() as usize, told.len());
        let mut queued = Ok(());
        for step in 0..size {
            let other = (rank + step) % size;
            let (part, theirs) = (&traffic.receives[other], &told[other]);
            let Some(to) = traffic.to.filter(|_| !part.is_empty()) else { continue };
            let from = state.imports.find(other as Rank, &theirs.place, token);
            queued = from.and_then(|from| {
                // SAFETY: the sender's memory has these bytes, is settled, and is not written
                // before the ranks have agreed; ours is settled and borrowed mutably. Waited for
                // below.
                unsafe { state.ring.queue_across(to.byte(part.start), from, part.len(), token) }
            });
            if queued.is_err() {
                break;
            }
        }
        state.ring.wait_stores(token).and(queued).map_err(|error| self.report.driver(error))
    }

    fn parts_directly(&self, traffic: &Traffic) -> Result<(), Error> {
        let pointer = |memory: Option<Memory>| memory.map_or(std::ptr::null_mut(), Memory::host);
        let (mut sent, mut received) = (Listed::new(self.size()), Listed::new(self.size()));
        for (list, parts) in [(&mut sent, &traffic.sends), (&mut received, &traffic.receives)] {
            for (rank, part) in parts.iter().enumerate() {
                let fits = list.set(rank, part.len(), part.start);
                fits.ok_or(Error::TooLong { rank: self.rank(), bytes: part.end })?;
            }
        }
        // SAFETY: settled memory, borrowed until the caller returns, of which MPI takes the
        // addresses (the plan); the lists stand until the wait is over.
        let request =
            unsafe { self.whole.start_parts(pointer(traffic.from), &sent, pointer(traffic.to), &received) };
        request.and_then(|request| request.wait()).map_err(|error| self.report.mpi(error))
    }

    /// In pieces through the chunks, whatever the path.
    pub(super) fn parts_staged(
        &self,
        state: &mut State,
        operation: &'static str,
        traffic: &Traffic,
        mine: Result<(), Error>,
        token: &DriverToken,
    ) -> Result<(), Error> {
        let failed = |error| self.report.mpi(error);
        let [worst, longest] =
            self.whole.largest([self.report.answer(&mine), traffic.longest() as u64]).map_err(failed)?;
        mine.and_then(|()| self.report.told(operation, worst))?;
        let (ranks, longest) = (self.size() as usize, longest as usize);
        if longest == 0 {
            return Ok(());
        }
        // The same at every rank: a place for each rank's piece, sent and received.
        let slot = self.plan.chunk_bytes.max(2 * ranks * longest.min(WORTH));
        let ring = &mut state.ring;
        let grown = ring.grow(slot).map_err(|source| self.report.staging(source));
        self.agree(operation, grown)?;
        let piece = (slot / (2 * ranks)).min(longest);
        let once = traffic.is_same_for_all();
        let lists = || (0..ring.slots()).map(|_| Listed::new(self.size())).collect::<Vec<_>>();
        let (mut sent, mut received) = (lists(), lists());
        let slots = ring.slots();
        let of = |part: &Range<usize>, number: usize| {
            if number * piece >= part.len() {
                return (part.start, 0);
            }
            let (start, length) = extent(part.len(), piece, number);
            (part.start + start, length)
        };
        // SAFETY: settled memory of these parts, borrowed until the caller returns; all pieces
        // fit a slot. A slot's lists are written when its request before has ended, as its
        // bytes are, and stand until the call returns, which ends all requests.
        let outcome = unsafe {
            run(
                ring,
                longest.div_ceil(piece),
                token,
                |number, copy| {
                    let Some(from) = traffic.from else { return };
                    for (rank, part) in traffic.sends.iter().enumerate().take(if once { 1 } else { ranks }) {
                        match of(part, number) {
                            (_, 0) => {}
                            (start, length) => copy(from.byte(start), rank * piece, length),
                        }
                    }
                },
                |number, at| {
                    let (sent, received) = (&mut sent[number % slots], &mut received[number % slots]);
                    for rank in 0..ranks {
                        let place = if once { 0 } else { rank * piece };
                        // A slot is within an MPI count (the settings bound it).
                        let _ = sent.set(rank, of(&traffic.sends[rank], number).1, place);
                        let _ = received.set(rank, of(&traffic.receives[rank], number).1, rank * piece);
                    }
                    let to = at.wrapping_add(ranks * piece);
                    Ok([Some(self.whole.start_parts(at, sent, to, received)?), None])
                },
                |number, copy| {
                    let Some(to) = traffic.to else { return };
                    for (rank, part) in traffic.receives.iter().enumerate() {
                        match of(part, number) {
                            (_, 0) => {}
                            (start, length) => copy(to.byte(start), (ranks + rank) * piece, length),
                        }
                    }
                },
            )
        };
        let mine = self.report.ended(outcome)?;
        self.agree(operation, mine)
    }
}
