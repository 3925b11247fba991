//! Pinned chunks that the ranks of a node share: one rank fills a slot, from its device
//! or from MPI, and the others take it from there to theirs. Piece `p` of all that were
//! ever filled lies in slot `p` mod slots.
#![allow(unsafe_code)]

use super::lanes::{Lanes, Streams};
use super::shared::{BROKEN, FILLED, Shared};
use crate::buffers::Gpu;
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, DriverError};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// One rank's view of the chunks of its node, pinned.
pub(crate) struct Chunks {
    gpu: Gpu,
    pub(super) lanes: Lanes,
    memory: Arc<Shared>,
    /// This rank's on its node; none where the chunks are its own.
    place: Option<usize>,
    /// Pieces of all transfers so far. Between two of them the same at every rank of the
    /// node.
    pub(super) pieces: u64,
}

impl Chunks {
    /// Those in `memory`, which `gpu` copies from and to: of the rank at `place` of its node,
    /// or a rank's own.
    pub(crate) fn pin(
        gpu: &Gpu,
        memory: Arc<Shared>,
        place: Option<usize>,
        token: &DriverToken,
    ) -> Result<Chunks, String> {
        let (start, bytes) = (memory.map.as_mut_ptr(), memory.map.len());
        let lanes = Streams::new(gpu, token)
            .and_then(|streams| Lanes::new(Arc::new(streams), memory.shape.slots, token));
        let lanes = lanes.map_err(|error| error.to_string())?;
        // SAFETY: our mapping, which stands until `drop` has undone this.
        unsafe { gpu.driver().host_register(start, bytes, token) }.map_err(|error| error.to_string())?;
        Ok(Chunks { gpu: gpu.clone(), lanes, memory, place, pieces: 0 })
    }

    /// Whether all ranks of each node have them in common.
    pub(crate) fn are_shared(&self) -> bool {
        self.place.is_some()
    }

    pub(crate) fn slots(&self) -> usize {
        self.memory.shape.slots
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.memory.shape.slot_bytes
    }

    /// Where the slot of a piece begins.
    pub(super) fn slot(&self, piece: u64) -> *mut u8 {
        let shape = self.memory.shape;
        let number = (piece % shape.slots as u64) as usize;
        self.memory.map.as_mut_ptr().wrapping_add(shape.first_slot() + number * shape.stride())
    }

    /// Queues a copy of `bytes` from the device to the slot of a piece.
    ///
    /// # Safety
    /// `from` has the bytes, and stands unwritten until the slot's copies have ended.
    pub(super) unsafe fn load(
        &self,
        piece: u64,
        from: DevicePtr,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        assert!(bytes <= self.slot_bytes(), "a copy beyond its slot");
        // SAFETY: within the slot (just checked), which this rank fills alone; the rest is the
        // caller's contract.
        unsafe { self.gpu.driver().copy_to_host(self.slot(piece), from, bytes, self.lanes.down(), token) }
    }

    /// Queues a copy from the slot of a piece to the device.
    ///
    /// # Safety
    /// `to` has the bytes, and nobody uses it until the slot's copies have ended.
    pub(super) unsafe fn store(
        &self,
        piece: u64,
        to: DevicePtr,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        assert!(bytes <= self.slot_bytes(), "a copy beyond its slot");
        // SAFETY: within the slot, which nobody fills again before this rank is done with it.
        unsafe { self.gpu.driver().copy_to_device(to, self.slot(piece), bytes, self.lanes.up(), token) }
    }

    /// Pieces in slots so far. Acquire: with what is in them.
    pub(super) fn filled(&self) -> u64 {
        self.memory.word(FILLED, 0).load(Acquire)
    }

    /// Release: `pieces` are in their slots.
    pub(super) fn fill(&self, pieces: u64) {
        self.memory.word(FILLED, 0).store(pieces, Release);
    }

    /// Pieces that every rank of the node is done with. Acquire: nobody reads them any more.
    pub(super) fn all_done(&self) -> u64 {
        let words = (0..self.memory.shape.ranks).map(|place| self.memory.done(place).load(Acquire));
        words.min().unwrap_or(0)
    }

    /// Release: this rank has read what it wants of them.
    pub(super) fn done(&self, pieces: u64) {
        self.memory.done(self.place.unwrap_or(0)).store(pieces, Release);
    }

    /// MPI failed the transfer whose pieces end here.
    pub(super) fn break_off(&self, end: u64) {
        self.memory.word(BROKEN, 0).fetch_max(end, AcqRel);
    }

    /// Whether it has.
    pub(super) fn is_broken(&self, end: u64) -> bool {
        self.memory.word(BROKEN, 0).load(Acquire) == end
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        let token = DriverToken::at_entry();
        let _ = self.lanes.wait_all(&token);
        // SAFETY: registered by `pin`; no copy is under way.
        if let Err(error) = unsafe { self.gpu.driver().host_unregister(self.memory.map.as_mut_ptr(), &token) }
        {
            tracing::debug!(%error, "chunks stay pinned until they are unmapped");
        }
    }
}
