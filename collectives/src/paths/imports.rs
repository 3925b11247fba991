//! Slabs of other ranks, opened once.
#![allow(unsafe_code)]

use crate::buffers::Gpu;
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, DriverError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// What a communicator's rank has open, and what it holds for the others. Operations that
/// do not block share it with those that do.
pub(crate) struct Imports {
    gpu: Gpu,
    known: RefCell<Known>,
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
    pub(crate) fn new(gpu: &Gpu) -> Imports {
        Imports { gpu: gpu.clone(), known: RefCell::default() }
    }

    /// The handle of a slab of our own, which from now on stays until
    /// [`release`](Imports::release).
    pub(crate) fn export(
        &self,
        slab: (DevicePtr, usize),
        token: &DriverToken,
    ) -> Result<[u8; 64], DriverError> {
        let (start, bytes) = slab;
        match self.known.borrow_mut().held.entry(start.0) {
            Entry::Occupied(held) => Ok(*held.get()),
            Entry::Vacant(place) => Ok(*place.insert(self.gpu.exports().handle(start, bytes, true, token)?)),
        }
    }

    /// Where the slab of `rank` is here.
    pub(crate) fn open(
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
            open.remove(&(rank, slab.0));
            // SAFETY: opened below, used in calls that waited for their copies.
            unsafe { driver.ipc_close(at, token) }?;
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

    /// Closes what is open.
    pub(crate) fn close(&self, token: &DriverToken) {
        for (_, (_, at)) in self.known.borrow_mut().open.drain() {
            // SAFETY: opened by `open`; no copy is under way between calls.
            if let Err(error) = unsafe { self.gpu.driver().ipc_close(at, token) } {
                tracing::warn!(%error, "a slab of another rank could not be closed");
            }
        }
    }

    /// All ranks have closed what they had open of ours.
    pub(crate) fn release(&self, token: &DriverToken) {
        for (start, _) in self.known.borrow_mut().held.drain() {
            self.gpu.exports().release(DevicePtr(start), token);
        }
    }
}
