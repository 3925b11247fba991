//! Epochs that all ranks begin and close together (as between two `MPI_Win_fence`).
//!
//! ```text
//! put, get     noted: nothing moves
//! close        all ranks are here
//!              ipc         who asked copies, to or from the others' devices
//!              elsewhere   ranks tell each other what they asked for; pieces through chunks
//!              all have done so
//! ```
//!
//! So memory of a window is touched by others only while its rank is inside `close`, which
//! has it borrowed: an epoch or a window that is dropped or leaked leaves nothing under way.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Asked, Memory, Part, Way};
use crate::buffers::{Settled, SettledMut};
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

const WINDOW: &str = "MPI_Win_create of device memory";
const EPOCH: &str = "MPI_Win_fence of device memory";

/// Memory of every rank, as long as each gives, that all ranks read and write in
/// [`epoch`](Window::epoch)s. Between two of them a rank sees its own part as
/// [`local`](Window::local).
pub struct Window<'w, T> {
    ranks: &'w DeviceCommunicator,
    memory: SettledMut<'w, T>,
    /// By rank.
    parts: Vec<Part>,
    /// Every rank can open every other's memory.
    is_open: bool,
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
pub struct Epoch<'e, T> {
    ranks: &'e DeviceCommunicator,
    memory: Memory,
    parts: &'e [Part],
    is_open: bool,
    asked: Vec<Asked>,
    /// The window, and the buffers of the operations.
    borrows: PhantomData<&'e mut [T]>,
}

impl DeviceCommunicator {
    /// A window of every rank's `memory`, of whichever length. Collective.
    ///
    /// # Errors
    /// [`Error::OtherDevice`], and what the driver says where a slab cannot be exported; the
    /// other ranks get [`Error::Peer`].
    pub fn window<'w, T: Pod>(&'w self, memory: SettledMut<'w, T>) -> Result<Window<'w, T>, Error> {
        self.ready(&[])?;
        let place = memory.place();
        let own = Memory::of::<T>(place, memory.len());
        let _call = self.traced(WINDOW, own.bytes);
        let parts = self.tell_parts(WINDOW, own, self.own(place))?;
        let opens = |part: &Part| part.bytes == 0 || !part.place.is_none();
        let is_open = self.plan.path == Path::Ipc && parts.iter().all(opens);
        Ok(Window { ranks: self, memory, parts, is_open })
    }
}

impl<'w, T: Pod> Window<'w, T> {
    /// Elements of a rank's part. Like a slice's index, it panics if there is no such rank.
    pub fn len_of(&self, rank: Rank) -> usize {
        self.parts[rank as usize].bytes / size_of::<T>().max(1)
    }

    /// This rank's part, for reading.
    pub fn local(&self) -> Settled<'_, T> {
        self.memory.as_settled()
    }

    /// This rank's part, for writing.
    pub fn local_mut(&mut self) -> SettledMut<'_, T> {
        self.memory.slice_mut(..)
    }

    /// Begins an epoch, which every rank begins and closes as often. It waits for nobody.
    pub fn epoch(&mut self) -> Epoch<'_, T> {
        Epoch {
            ranks: self.ranks,
            memory: Memory::of::<T>(self.memory.place(), self.memory.len()),
            parts: &self.parts,
            is_open: self.is_open,
            asked: Vec::new(),
            borrows: PhantomData,
        }
    }
}

impl<'e, T: Pod> Epoch<'e, T> {
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

    fn ask(&mut self, way: Way, target: Rank, at: usize, own: Memory) -> Result<(), Error> {
        self.asked.extend(self.ranks.ask(self.parts, way, target, at, own, size_of::<T>())?);
        Ok(())
    }

    /// Carries out what all ranks have asked for in this epoch. Collective. When it returns, the
    /// parts have what was put, and the buffers what was got.
    pub fn close(self) -> Result<(), Error> {
        let ranks = self.ranks;
        ranks.ready(&[])?;
        let bytes = self.asked.iter().map(|asked| asked.own.bytes).sum();
        let _call = ranks.traced(EPOCH, bytes);
        let token = DriverToken::at_entry();
        let state = &mut *ranks.state.borrow_mut();
        if self.is_open {
            // From here on every rank is inside this call.
            ranks.agree(EPOCH, Ok(()))?;
            // SAFETY: the targets' ranks are in the same call, which has their memory borrowed, until
            // all have agreed; ours is borrowed by the epoch.
            let mine = unsafe { ranks.copy_asked(state, self.parts, &self.asked, &token) };
            return ranks.agree(EPOCH, mine);
        }
        self.through_chunks(state, &token)
    }

    /// Both ranks of an operation know of it, and it goes as parts do: of each pair of ranks
    /// one at a time, first those that put, then those that get.
    fn through_chunks(&self, state: &mut State, token: &DriverToken) -> Result<(), Error> {
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
                let traffic = match way {
                    Way::Put => Traffic::of_addresses(asked, served),
                    Way::Get => Traffic::of_addresses(served, asked),
                };
                ranks.parts_staged(state, EPOCH, &traffic, Ok(()), token)?;
            }
        }
        Ok(())
    }
}

impl<T> std::fmt::Debug for Window<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window")
            .field("memory", &self.memory)
            .field("is_open", &self.is_open)
            .finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for Epoch<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Epoch").field("asked", &self.asked.len()).finish_non_exhaustive()
    }
}
