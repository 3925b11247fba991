//! What a rank may do while it has a window's locks.

use super::Way;
use super::held::Held;
use super::memory::{Got, Sent, WindowMemory};
use crate::buffers::{BufferStream, DeviceBuf, HostBuf, Pinned, PinnedBuf, PinnedMut, SettledMut};
use crate::communicator::DeviceCommunicator;
use crate::error::{BufferError, Error};
use bytemuck::Pod;
use mpi::topology::Rank;
use std::marker::PhantomData;
use std::ops::Deref;

/// The window's memory, and that of the operations.
type Borrows<'b, B> = PhantomData<(&'b mut (), fn(B))>;

/// A part that is locked. Nothing has moved before [`flush`](Locked::flush) or
/// [`unlock`](Locked::unlock); dropped, it unlocks, and what was asked for does not move.
#[must_use = "operations are carried out by `flush` and `unlock`"]
pub struct Locked<'l, 'b, B> {
    pub(super) held: Held<'l>,
    pub(super) target: Rank,
    pub(super) borrows: Borrows<'b, B>,
}

impl<'l, 'b, B: WindowMemory> Locked<'l, 'b, B> {
    /// Puts `from` into the part, at its element `at`. Of operations between two flushes that touch
    /// the same elements, one of which is a put, any may come first.
    ///
    /// # Errors
    /// [`Error::Range`] for elements that the part does not have; [`Error::OtherDevice`]. Nothing
    /// is noted then.
    pub fn put(&mut self, at: usize, from: impl Sent<'b, B>) -> Result<(), Error> {
        self.held.ask(Way::Put, self.target, at, &from, B::ELEMENT)
    }

    /// Gets elements of the part, from its element `at` on, as many as `into` has. Otherwise as
    /// [`put`](Locked::put).
    pub fn get(&mut self, at: usize, into: impl Got<'b, B>) -> Result<(), Error> {
        self.held.ask(Way::Get, self.target, at, &into, B::ELEMENT)
    }

    /// Carries out what was asked for: then the part has what was put, and the buffers what was got,
    /// and they are nobody's any more. Still locked; where it fails, not.
    pub fn flush<'n>(self) -> Result<Locked<'l, 'n, B>, Error> {
        let Locked { mut held, target, .. } = self;
        held.carry_out()?;
        Ok(Locked { held, target, borrows: PhantomData })
    }

    /// The same, and unlocks.
    pub fn unlock(self) -> Result<(), Error> {
        self.held.unlock()
    }
}

/// All parts, whose locks are shared. As [`Locked`].
#[must_use = "operations are carried out by `flush` and `unlock`"]
pub struct LockedAll<'l, 'b, B> {
    pub(super) held: Held<'l>,
    pub(super) borrows: Borrows<'b, B>,
}

impl<'l, 'b, B: WindowMemory> LockedAll<'l, 'b, B> {
    /// As [`Locked::put`], into the part of rank `target`.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`] as well.
    pub fn put(&mut self, target: Rank, at: usize, from: impl Sent<'b, B>) -> Result<(), Error> {
        self.held.ask(Way::Put, target, at, &from, B::ELEMENT)
    }

    /// As [`Locked::get`], of the part of rank `target`.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`] as well.
    pub fn get(&mut self, target: Rank, at: usize, into: impl Got<'b, B>) -> Result<(), Error> {
        self.held.ask(Way::Get, target, at, &into, B::ELEMENT)
    }

    /// As [`Locked::flush`], of all parts.
    pub fn flush<'n>(self) -> Result<LockedAll<'l, 'n, B>, Error> {
        let LockedAll { mut held, .. } = self;
        held.carry_out()?;
        Ok(LockedAll { held, borrows: PhantomData })
    }

    /// The same, and unlocks.
    pub fn unlock(self) -> Result<(), Error> {
        self.held.unlock()
    }
}

/// This rank's own part, which no other rank uses meanwhile: the buffer, for reading. For
/// writing it has methods of its own, as a buffer that could be moved out might be freed.
/// Unlocking waits for what streams have been given that uses it.
pub struct Own<'l, B: WindowMemory> {
    pub(super) ranks: &'l DeviceCommunicator,
    pub(super) memory: &'l mut B,
    /// Given back when nothing queued uses the memory.
    pub(super) held: Option<Held<'l>>,
}

impl<B: WindowMemory> Own<'_, B> {
    /// Waits until nothing queued uses the part, and unlocks it.
    ///
    /// # Errors
    /// What the driver says of the wait; it is unlocked all the same.
    pub fn unlock(mut self) -> Result<(), Error> {
        let waited = self.memory.settled();
        self.held = None;
        waited.map(drop).map_err(|error| self.ranks.report.staging(error))
    }
}

impl<B: WindowMemory> Deref for Own<'_, B> {
    type Target = B;
    fn deref(&self) -> &B {
        self.memory
    }
}

impl<T: Pod, S: BufferStream> Own<'_, DeviceBuf<T, S>> {
    /// As [`DeviceBuf::settle_mut`].
    pub fn settle_mut(&mut self) -> Result<SettledMut<'_, T>, BufferError> {
        self.memory.settle_mut()
    }

    /// As [`DeviceBuf::write`].
    pub fn write(&mut self, from: &[T]) -> Result<(), BufferError> {
        self.memory.write(from)
    }
}

impl<T: Pod> Own<'_, PinnedBuf<T>> {
    /// As [`PinnedBuf::settle`].
    pub fn settle(&mut self) -> Result<Pinned<'_, T>, BufferError> {
        self.memory.settle()
    }

    /// As [`PinnedBuf::settle_mut`].
    pub fn settle_mut(&mut self) -> Result<PinnedMut<'_, T>, BufferError> {
        self.memory.settle_mut()
    }

    /// As [`PinnedBuf::copy_from`].
    pub fn copy_from<S: BufferStream>(&mut self, from: &DeviceBuf<T, S>) -> Result<(), BufferError> {
        self.memory.copy_from(from)
    }

    /// As [`PinnedBuf::copy_to`].
    pub fn copy_to<S: BufferStream>(&mut self, to: &mut DeviceBuf<T, S>) -> Result<(), BufferError> {
        self.memory.copy_to(to)
    }
}

impl<T: Pod> Own<'_, HostBuf<T>> {
    /// The elements, for writing.
    pub fn elements_mut(&mut self) -> &mut [T] {
        self.memory
    }
}

impl<B: WindowMemory> Drop for Own<'_, B> {
    fn drop(&mut self) {
        if self.held.is_some()
            && let Err(error) = self.memory.settled()
        {
            tracing::error!(%error, "a window's part was unlocked, but what uses it could not be waited for");
        }
    }
}

impl<B> std::fmt::Debug for Locked<'_, '_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locked")
            .field("target", &self.target)
            .field("asked", &self.held.asked.len())
            .finish_non_exhaustive()
    }
}

impl<B> std::fmt::Debug for LockedAll<'_, '_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockedAll").field("asked", &self.held.asked.len()).finish_non_exhaustive()
    }
}

impl<B: WindowMemory> std::fmt::Debug for Own<'_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("rank", &self.ranks.rank()).finish_non_exhaustive()
    }
}
