//! Slabs of other ranks, opened once, and what ranks tell each other of theirs.
#![allow(unsafe_code)]

use crate::buffers::Gpu;
use crate::words::{WORD, put_word, word};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, DriverError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;

/// Memory of a rank, as others find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exported {
    /// Where its slab begins at that rank. None begins at 0.
    slab: DevicePtr,
    /// Bytes from there.
    offset: u64,
    handle: [u8; 64],
}

impl Exported {
    /// Of what is told.
    pub(crate) const BYTES: usize = 2 * WORD + 64;

    /// No memory, or none that others could open.
    pub(crate) const NONE: Exported = Exported { slab: DevicePtr(0), offset: 0, handle: [0; 64] };

    pub(crate) fn is_none(&self) -> bool {
        self.slab.0 == 0
    }

    /// Memory at `at` that no other rank opens: it has no handle.
    pub(crate) fn of_this_rank(at: DevicePtr) -> Exported {
        Exported { slab: at, ..Exported::NONE }
    }

    /// Where it is at that rank.
    pub(crate) fn address(&self) -> u64 {
        self.slab.0 + self.offset
    }

    /// Some bytes further on.
    pub(crate) fn skip(self, bytes: usize) -> Exported {
        Exported { offset: self.offset + bytes as u64, ..self }
    }

    /// As it is told: the first [`BYTES`](Exported::BYTES) of `to`.
    pub(crate) fn write(&self, to: &mut [u8]) {
        put_word(to, 0, self.slab.0);
        put_word(to, WORD, self.offset);
        to[2 * WORD..Exported::BYTES].copy_from_slice(&self.handle);
    }

    /// What was told so.
    pub(crate) fn read(from: &[u8]) -> Exported {
        let mut handle = [0; 64];
        handle.copy_from_slice(&from[2 * WORD..Exported::BYTES]);
        Exported { slab: DevicePtr(word(from, 0)), offset: word(from, WORD), handle }
    }
}

/// What a communicator's rank has open, and what it holds for the others. Operations that
/// do not block share it with those that do.
pub(crate) struct Imports {
    gpu: Gpu,
    /// This one.
    rank: Rank,
    known: RefCell<Known>,
    /// Whoever keeps where memory of other ranks is beyond an operation has a clone.
    kept: Rc<()>,
}

#[derive(Default)]
struct Known {
    /// By rank and slab: the handle, and where it is here. An address of a rank's that
    /// comes with another handle is another slab: the old one is closed.
    open: HashMap<(Rank, u64), ([u8; 64], DevicePtr)>,
    /// Our own slabs that others may have open.
    held: HashMap<u64, [u8; 64]>,
}

impl Imports {
    /// Those of `rank`.
    pub(crate) fn new(gpu: &Gpu, rank: Rank) -> Imports {
        Imports { gpu: gpu.clone(), rank, known: RefCell::default(), kept: Rc::default() }
    }

    /// What others are told of memory of our own at `at`. Its slab, of which start and bytes
    /// are given, stays until [`release`](Imports::release); without one, `NONE`.
    pub(crate) fn export(
        &self,
        at: DevicePtr,
        slab: Option<(DevicePtr, usize)>,
        token: &DriverToken,
    ) -> Result<Exported, DriverError> {
        let Some((start, bytes)) = slab else { return Ok(Exported::NONE) };
        // The handle of a slab that went with its device would be refused where it is opened, and
        // that rank be blamed for it.
        self.gpu.driver().context_id(token)?;
        let handle = match self.known.borrow_mut().held.entry(start.0) {
            Entry::Occupied(held) => *held.get(),
            Entry::Vacant(place) => *place.insert(self.gpu.exports().handle(start, bytes, true, token)?),
        };
        Ok(Exported { slab: start, offset: at.0 - start.0, handle })
    }

    /// Where memory of `rank` is here. This rank's own is where it is; `NONE` is nowhere, 0.
    pub(crate) fn find(
        &self,
        rank: Rank,
        memory: &Exported,
        token: &DriverToken,
    ) -> Result<DevicePtr, DriverError> {
        let &Exported { slab, offset, handle } = memory;
        if memory.is_none() {
            return Ok(DevicePtr(0));
        }
        let start = if rank == self.rank { slab } else { self.open(rank, slab, handle, token)? };
        Ok(DevicePtr(start.0 + offset))
    }

    /// Where the slab of `rank` is here.
    fn open(
        &self,
        rank: Rank,
        slab: DevicePtr,
        handle: [u8; 64],
        token: &DriverToken,
    ) -> Result<DevicePtr, DriverError> {
        let driver = self.gpu.driver();
        let open = &mut self.known.borrow_mut().open;
        if let Some(&(known, at)) = open.get(&(rank, slab.0)) {
            if known == handle {
                return Ok(at);
            }
            // SAFETY: opened below, used in calls that waited for their copies.
            unsafe { driver.ipc_close(at, token) }?;
            open.remove(&(rank, slab.0));
        }
        // SAFETY: the other rank keeps its slab until all have closed it (`export`).
        let at = unsafe { driver.ipc_open(handle, token) }?;
        open.insert((rank, slab.0), (handle, at));
        tracing::debug!(rank, slab = slab.0, "a slab of another rank was opened");
        Ok(at)
    }

    /// Slabs that are open.
    pub(crate) fn count(&self) -> usize {
        self.known.borrow().open.len()
    }

    /// Closes what is open: whether nothing is, then. What cannot be closed stays open, and known;
    /// what went with a device that was reset is closed.
    pub(crate) fn close(&self, token: &DriverToken) -> bool {
        let open = &mut self.known.borrow_mut().open;
        open.retain(|_, &mut (_, at)| {
            // SAFETY: opened by `open`; no copy is under way between calls.
            let closed = unsafe { self.gpu.driver().ipc_close(at, token) };
            let Err(error) = closed else { return false };
            if error.is_context_destroyed() {
                return false;
            }
            tracing::warn!(%error, "a slab of another rank could not be closed");
            true
        });
        open.is_empty()
    }

    /// For who keeps where memory of other ranks is: its slabs stay open and exported.
    pub(crate) fn keep(&self) -> Rc<()> {
        self.kept.clone()
    }

    /// Whether somebody does.
    pub(crate) fn is_kept(&self) -> bool {
        Rc::strong_count(&self.kept) > 1
    }

    /// All ranks have closed what they had open of ours.
    pub(crate) fn release(&self, token: &DriverToken) {
        for (start, _) in self.known.borrow_mut().held.drain() {
            self.gpu.exports().release(DevicePtr(start), token);
        }
    }
}
