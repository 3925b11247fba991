//! Pinned chunks of one rank, used in turn.
#![allow(unsafe_code)]

use super::lanes::{Lanes, Streams};
use crate::buffers::Gpu;
use crate::error::BufferError;
use pinyard_allocator::{DriverToken, PoolBuf};
use pinyard_driver::{DevicePtr, DriverError, Stream};
use std::sync::Arc;

/// The chunks of a communicator.
pub(crate) struct Ring {
    gpu: Gpu,
    /// Dropped before the memory: it waits for the copies.
    lanes: Lanes,
    memory: PoolBuf<u8>,
    slot_bytes: usize,
}

impl Ring {
    /// Alignment of a slot: no two share a page.
    pub(crate) const ALIGN: usize = 4096;

    /// With streams of its own.
    pub(crate) fn new(
        gpu: &Gpu,
        slots: usize,
        slot_bytes: usize,
        token: &DriverToken,
    ) -> Result<Ring, BufferError> {
        Ring::on(&Arc::new(Streams::new(gpu, token)?), gpu, (slots, slot_bytes), token)
    }

    /// With streams that other rings use as well: what is queued there waits for nobody.
    pub(crate) fn on(
        streams: &Arc<Streams>,
        gpu: &Gpu,
        (slots, slot_bytes): (usize, usize),
        token: &DriverToken,
    ) -> Result<Ring, BufferError> {
        let slot_bytes = slot_bytes.next_multiple_of(Ring::ALIGN);
        let memory = gpu.pinned_pool().alloc_aligned::<u8>(slots * slot_bytes, Ring::ALIGN)?;
        let lanes = Lanes::new(streams.clone(), slots, token)?;
        Ok(Ring { gpu: gpu.clone(), lanes, memory, slot_bytes })
    }

    /// Makes room for slots of `bytes`. No copy is under way.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), BufferError> {
        let bytes = bytes.next_multiple_of(Ring::ALIGN);
        if bytes > self.slot_bytes {
            self.memory = self.gpu.pinned_pool().alloc_aligned::<u8>(self.slots() * bytes, Ring::ALIGN)?;
            self.slot_bytes = bytes;
        }
        Ok(())
    }

    pub(crate) fn slots(&self) -> usize {
        self.lanes.slots()
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Where a slot begins.
    pub(crate) fn slot(&mut self, number: usize) -> *mut u8 {
        let at = number % self.slots() * self.slot_bytes;
        self.memory[at..].as_mut_ptr()
    }

    /// A slot's bytes. No copy of it is under way.
    pub(crate) fn bytes(&mut self, number: usize, bytes: usize) -> &mut [u8] {
        let at = number % self.slots() * self.slot_bytes;
        &mut self.memory[at..at + bytes]
    }

    /// Queues a copy from the device to a slot.
    ///
    /// # Safety
    /// `from` has the bytes, and stands unwritten until [`wait`](Ring::wait) of the slot.
    pub(crate) unsafe fn load(
        &mut self,
        slot: usize,
        offset: usize,
        from: DevicePtr,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        assert!(offset + bytes <= self.slot_bytes, "a copy beyond its slot");
        let to = self.slot(slot).wrapping_add(offset);
        // SAFETY: within the slot (just checked), which stands until its event has passed;
        // the rest is the caller's contract.
        unsafe { self.gpu.driver().copy_to_host(to, from, bytes, self.lanes.down(), token) }
    }

    /// Queues a copy from a slot to the device.
    ///
    /// # Safety
    /// `to` has the bytes, and nobody uses it until [`wait`](Ring::wait) of the slot.
    pub(crate) unsafe fn store(
        &mut self,
        slot: usize,
        offset: usize,
        to: DevicePtr,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        assert!(offset + bytes <= self.slot_bytes, "a copy beyond its slot");
        let from = self.slot(slot).wrapping_add(offset);
        // SAFETY: as in `load`.
        unsafe { self.gpu.driver().copy_to_device(to, from, bytes, self.lanes.up(), token) }
    }

    /// Copies within the device, or from another one's memory, and waits.
    ///
    /// # Safety
    /// Both have the bytes; nobody writes `from` or uses `to` meanwhile.
    pub(crate) unsafe fn copy_across(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's contract; waited for here.
        let queued = unsafe { self.queue_across(to, from, bytes, token) };
        self.wait_stores(token)?;
        queued
    }

    /// Queues such a copy; [`stored`](Ring::stored) marks its end.
    ///
    /// # Safety
    /// As of `copy_across`, until it is waited for.
    pub(crate) unsafe fn queue_across(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError> {
        // SAFETY: the caller's contract.
        unsafe { self.gpu.driver().copy_on_device(to, from, bytes, self.lanes.up(), token) }
    }

    /// The stream of stores and copies across, for kernels among them.
    pub(crate) fn stream(&self) -> Stream {
        self.lanes.up()
    }

    /// Marks the end of the slot's loads.
    pub(crate) fn loaded(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.lanes.loaded(slot, token)
    }

    /// Marks the end of the slot's stores.
    pub(crate) fn stored(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.lanes.stored(slot, token)
    }

    /// Waits for what was marked last.
    pub(crate) fn wait(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.lanes.wait(slot, token)
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self, slot: usize, token: &DriverToken) -> Result<bool, DriverError> {
        self.lanes.has_ended(slot, token)
    }

    /// Waits for every load.
    pub(crate) fn wait_loads(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.lanes.wait_loads(token)
    }

    /// Waits for every store, and every copy across.
    pub(crate) fn wait_stores(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.lanes.wait_stores(token)
    }

    /// Waits for every copy.
    pub(crate) fn wait_all(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.lanes.wait_all(token)
    }
}
