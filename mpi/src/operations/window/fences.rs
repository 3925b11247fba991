//! Epochs that all ranks begin and close together (as between two `MPI_Win_fence`).
//!
//! ```text
//! put, get     noted: nothing moves
//! close        all ranks are here
//!              ipc         who asked copies, to or from the others' devices
//!              elsewhere   ranks tell each other what they asked for; pieces through chunks, or
//!                          of the host's memory MPI's messages
//!              all have done so
//! ```
//!
//! So memory of a window is touched by others only while its rank is inside `close`, which
//! has it borrowed: an epoch or a window that is dropped or leaked leaves nothing under way.
#![allow(unsafe_code)] // names memory to copies and messages that have ended when it returns

use super::memory::EpochMemory;
use super::memory::sealed::{Lent as _, Lies, Part as _};
use super::{Asked, Memory, Part, Parts, Way};
use crate::buffers::{Settled, SettledMut};
use crate::called::{Called, EPOCH};
use crate::calls::{Answer, Request};
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::operations::Traffic;
use crate::paths::Path;
use crate::words::{WORD, put_word, word};
use bytemuck::Pod;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use std::marker::PhantomData;
use std::ops::Range;

const WINDOW: &str = "MPI_Win_create for epochs";
/// Of messages from host to host, on the communicator that has collectives alone besides.
const TAG: i32 = 0;
/// Longest of them: counts are of `int`.
const LONGEST: usize = 1 << 30;

/// Memory of every rank, as long as each gives, that all ranks read and write in
/// [`epoch`](Window::epoch)s. Between two of them a rank sees its own part as
/// [`local`](Window::local). `M` is a device's memory, or `&mut [T]` of the host's.
pub struct Window<'w, T, M = SettledMut<'w, T>> {
    ranks: &'w DeviceCommunicator,
    memory: M,
    /// By rank.
    parts: Parts,
    /// Every rank can open every other's memory.
    is_open: bool,
    /// Its number among the windows of the communicator, and that of its last epoch.
    number: u16,
    epochs: u16,
    elements: PhantomData<&'w mut [T]>,
}

impl Asked {
    /// What the target is told: way, where, and how much.
    const BYTES: usize = 3 * WORD;

    fn write(&self, to: &mut [u8]) {
        // No operation is all zeros.
        put_word(to, 0, 1 + self.way as u64);
        put_word(to, WORD, self.start as u64);
        put_word(to, 2 * WORD, self.own.bytes as u64);
    }

    /// The bytes of the target's memory that are asked for in this way.
    fn range(told: &[u8], way: Way) -> Range<usize> {
        let (start, bytes) = (word(told, WORD) as usize, word(told, 2 * WORD) as usize);
        if word(told, 0) == 1 + way as u64 { start..start + bytes } else { 0..0 }
    }
}

/// A stretch in which ranks put to and get from each other's parts of a window. Nothing has
/// moved before [`close`](Epoch::close), and everything has after it.
#[must_use = "operations are carried out by `close`"]
pub struct Epoch<'e, T, M = SettledMut<'e, T>> {
    ranks: &'e DeviceCommunicator,
    memory: Memory,
    parts: &'e [Part],
    is_open: bool,
    /// Which epoch of which window it is: all ranks close the same one.
    called: Called,
    asked: Vec<Asked>,
    /// The window, and the buffers of the operations.
    borrows: PhantomData<(&'e mut [T], M)>,
}

impl DeviceCommunicator {
    /// A window of every rank's `memory`, of whichever length: a device's, [`SettledMut`], or the
    /// host's, `&mut [T]` of a [`HostBuf`](crate::HostBuf), of a settled
    /// [`PinnedBuf`](crate::PinnedBuf) or of anything else, which MPI then carries from host to host
    /// on every path. Collective.
    ///
    /// # Errors
    /// [`Error::OtherDevice`]; [`Error::Unsupported`] where some ranks give a device's memory and
    /// others the host's; what the driver says where a slab cannot be exported. The other ranks get
    /// [`Error::Peer`].
    pub fn window<'w, M: EpochMemory + 'w>(
        &'w self,
        mut memory: M,
    ) -> Result<Window<'w, M::Element, M>, Error> {
        self.ready(&[])?;
        let Lies { memory: own, place } = memory.lies_mut();
        let mine = place.map_or(Ok(()), |place| self.own(place));
        let _call = self.traced(WINDOW, own.bytes);
        self.same(WINDOW, 0, Ok(()))?;
        let mine = mine.and(self.of_one_kind(WINDOW, M::ON_DEVICE)?);
        let parts = self.tell_parts(WINDOW, own, mine)?;
        let opens = |part: &Part| part.bytes == 0 || !part.place.is_none();
        let is_open = M::ON_DEVICE && self.plan.path == Path::Ipc && parts.iter().all(opens);
        let number = self.windows.get().wrapping_add(1);
        self.windows.set(number);
        Ok(Window { ranks: self, memory, parts, is_open, number, epochs: 0, elements: PhantomData })
    }
}

impl<T: Pod> Window<'_, T, SettledMut<'_, T>> {
    /// This rank's part, for reading.
    pub fn local(&self) -> Settled<'_, T> {
        self.memory.as_settled()
    }

    /// This rank's part, for writing.
    pub fn local_mut(&mut self) -> SettledMut<'_, T> {
        self.memory.slice_mut(..)
    }
}

impl<T: Pod> Window<'_, T, &mut [T]> {
    /// This rank's part, for reading.
    pub fn local(&self) -> &[T] {
        self.memory
    }

    /// This rank's part, for writing.
    pub fn local_mut(&mut self) -> &mut [T] {
        self.memory
    }
}

impl<T: Pod, M: EpochMemory<Element = T>> Window<'_, T, M> {
    /// Elements of a rank's part. Like a slice's index, it panics if there is no such rank.
    pub fn len_of(&self, rank: Rank) -> usize {
        self.parts[rank as usize].bytes / size_of::<T>().max(1)
    }

    /// Begins an epoch, which every rank begins and closes as often. It waits for nobody.
    pub fn epoch(&mut self) -> Epoch<'_, T, M> {
        self.epochs = self.epochs.wrapping_add(1);
        Epoch {
            called: Called::of_epoch(self.number, self.epochs),
            ranks: self.ranks,
            memory: self.memory.lies_mut().memory,
            parts: &self.parts,
            is_open: self.is_open,
            asked: Vec::new(),
            borrows: PhantomData,
        }
    }
}

impl<'e, T: Pod> Epoch<'e, T, SettledMut<'_, T>> {
    /// Puts `from` into the part of rank `target`, at its element `at`. Of operations of one
    /// epoch that touch the same elements, one of which is a put, any may come first.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::Range`] for elements that the part does not have;
    /// [`Error::OtherDevice`]. Nothing is noted then.
    pub fn put(&mut self, target: Rank, at: usize, from: &'e Settled<'_, T>) -> Result<(), Error> {
        self.ranks.own(from.place())?;
        self.ask(Way::Put, target, at, Memory::of::<T>(from.place(), from.len()))
    }

    /// Gets elements of the part of rank `target`, from its element `at` on, as many as `into`
    /// has. Otherwise as [`put`](Epoch::put).
    pub fn get(&mut self, target: Rank, at: usize, into: &'e mut SettledMut<'_, T>) -> Result<(), Error> {
        self.ranks.own(into.place())?;
        self.ask(Way::Get, target, at, Memory::of::<T>(into.place(), into.len()))
    }
}

impl<'e, T: Pod> Epoch<'e, T, &mut [T]> {
    /// Puts `from` into the part of rank `target`, at its element `at`. Of operations of one
    /// epoch that touch the same elements, one of which is a put, any may come first.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`]; [`Error::Range`] for elements that the part does not have. Nothing
    /// is noted then.
    pub fn put(&mut self, target: Rank, at: usize, from: &'e [T]) -> Result<(), Error> {
        self.ask(Way::Put, target, at, from.lies().memory)
    }

    /// Gets elements of the part of rank `target`, from its element `at` on, as many as `into`
    /// has. Otherwise as [`put`](Epoch::put).
    pub fn get(&mut self, target: Rank, at: usize, mut into: &'e mut [T]) -> Result<(), Error> {
        self.ask(Way::Get, target, at, into.lies_mut().memory)
    }
}

impl<T: Pod, M: EpochMemory> Epoch<'_, T, M> {
    fn ask(&mut self, way: Way, target: Rank, at: usize, own: Memory) -> Result<(), Error> {
        self.asked.extend(self.ranks.ask(self.parts, way, target, at, own, size_of::<T>())?);
        Ok(())
    }

    /// Carries out what all ranks have asked for in this epoch. Collective. When it returns, the
    /// parts have what was put, and the buffers what was got.
    ///
    /// # Errors
    /// [`Error::Calls`] at every rank, and nothing has moved, where one closes an epoch of another
    /// window or another epoch of this one (one that was dropped counts), or is in another collective
    /// that tells the others of itself: all but a Bcast off `ipc` and parts of other lengths.
    /// [`Error::Driver`], [`Error::Mpi`], and [`Error::Peer`] at the others.
    pub fn close(self) -> Result<(), Error> {
        let ranks = self.ranks;
        ranks.ready(&[])?;
        let bytes = self.asked.iter().map(|asked| asked.own.bytes).sum();
        let _call = ranks.traced(EPOCH, bytes);
        let token = DriverToken::at_entry();
        // From here on every rank is inside this call.
        ranks.same(self.called, 0, Ok(()))?;
        let state = &mut *ranks.state.borrow_mut();
        if self.is_open {
            // SAFETY: the targets' ranks are in the same call, which has their memory borrowed, until
            // all have agreed; ours is borrowed by the epoch.
            let mine = unsafe { ranks.copy_asked(state, self.parts, &self.asked, &token) };
            return ranks.agree(EPOCH, mine);
        }
        self.in_rounds(state, &token)
    }

    /// Both ranks of an operation know of it, and it goes as parts do: of each pair of ranks
    /// one at a time, first those that put, then those that get.
    fn in_rounds(&self, state: &mut State, token: &DriverToken) -> Result<(), Error> {
        let (ranks, size) = (self.ranks, self.parts.len());
        let failed = |error| ranks.report.mpi(error);
        let mut own: Vec<Vec<&Asked>> = vec![Vec::new(); size];
        for asked in &self.asked {
            own[asked.target as usize].push(asked);
        }
        let most = own.iter().map(Vec::len).max().unwrap_or(0);
        let [rounds] = ranks.whole.largest([most as u64]).map_err(failed)?;
        let rounds = rounds as usize;
        if rounds == 0 {
            return Ok(());
        }
        let mut tells = vec![0; size * rounds * Asked::BYTES];
        for (asked, to) in own.iter().zip(tells.chunks_exact_mut(rounds * Asked::BYTES)) {
            for (asked, to) in asked.iter().zip(to.chunks_exact_mut(Asked::BYTES)) {
                asked.write(to);
            }
        }
        let told = ranks.whole.swap(&tells).map_err(failed)?;
        for round in 0..rounds {
            for way in [Way::Put, Way::Get] {
                let asked = |rank: usize| match own[rank].get(round).filter(|asked| asked.way == way) {
                    Some(asked) => asked.own.at.0 as usize..asked.own.byte(asked.own.bytes).0 as usize,
                    None => 0..0,
                };
                let served = |rank: usize| {
                    let at = (rank * rounds + round) * Asked::BYTES;
                    let Range { start, end } = Asked::range(&told[at..at + Asked::BYTES], way);
                    if start == end {
                        0..0
                    } else {
                        self.memory.byte(start).0 as usize..self.memory.byte(end).0 as usize
                    }
                };
                let asked = (0..size).map(asked).collect();
                let served = (0..size).map(served).collect();
                let (sends, receives) = match way {
                    Way::Put => (asked, served),
                    Way::Get => (served, asked),
                };
                if M::ON_DEVICE {
                    let traffic = Traffic::of_addresses(sends, receives);
                    ranks.parts_staged(state, EPOCH, &traffic, Ok(()), token)?;
                } else {
                    // SAFETY: the part is borrowed by the window, which is in this call, and the buffers
                    // by the epoch; the other ranks are in it as well, with as many bytes for each.
                    unsafe { ranks.between_hosts(&sends, &receives) }.map_err(failed)?;
                }
            }
        }
        Ok(())
    }
}

impl DeviceCommunicator {
    /// Bytes at these addresses of the host's memory to and from each rank, and waits.
    ///
    /// # Safety
    /// Nobody writes what is sent, or uses what is received. Each rank receives as much as is
    /// sent to it.
    unsafe fn between_hosts(&self, sends: &[Range<usize>], receives: &[Range<usize>]) -> Answer<()> {
        let ranks = &self.desk.later;
        let mut requests: Vec<Request> = Vec::new();
        for (rank, at, bytes) in messages(receives) {
            let into = std::ptr::with_exposed_provenance_mut(at);
            // SAFETY: the caller's contract; waited for here.
            requests.push(unsafe { ranks.start_receive(into, bytes, rank, TAG) }?);
        }
        for (rank, at, bytes) in messages(sends) {
            let from = std::ptr::with_exposed_provenance(at);
            // SAFETY: the caller's contract; waited for here.
            requests.push(unsafe { ranks.start_send(from, bytes, rank, TAG) }?);
        }
        requests.into_iter().try_for_each(Request::wait)
    }
}

/// Rank, address and bytes of the messages that carry a range of each rank.
fn messages(ranges: &[Range<usize>]) -> impl Iterator<Item = (Rank, usize, usize)> {
    ranges.iter().enumerate().flat_map(|(rank, range)| {
        let end = range.end;
        range.clone().step_by(LONGEST).map(move |at| (rank as Rank, at, LONGEST.min(end - at)))
    })
}

impl<T, M> std::fmt::Debug for Window<'_, T, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("rank", &self.ranks.rank())
            .field("is_open", &self.is_open)
            .finish_non_exhaustive()
    }
}

impl<T, M> std::fmt::Debug for Epoch<'_, T, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch").field("asked", &self.asked.len()).finish_non_exhaustive()
    }
}
