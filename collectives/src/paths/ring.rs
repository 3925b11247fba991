//! Pinned chunks, used in turn, and the streams that copy from and to them.
#![allow(unsafe_code)]

use crate::buffers::Gpu;
use crate::error::BufferError;
use pinyard_allocator::{DriverToken, PoolBuf};
use pinyard_driver::{DevicePtr, DriverError, Event, Stream};

/// Alignment of a slot: no two share a page.
const ALIGN: usize = 4096;

/// The chunks of a communicator.
pub(crate) struct Ring {
    gpu: Gpu,
    memory: PoolBuf<u8>,
    slot_bytes: usize,
    /// Passed when the slot's last copy has.
    events: Vec<Event>,
    /// From the device, and to it: a device copies both ways at a time.
    down: Stream,
    up: Stream,
}

impl Ring {
    pub(crate) fn new(
        gpu: &Gpu,
        slots: usize,
        slot_bytes: usize,
        token: &DriverToken,
    ) -> Result<Ring, BufferError> {
        let slot_bytes = slot_bytes.next_multiple_of(ALIGN);
        let memory = gpu.pinned_pool().alloc_aligned::<u8>(slots * slot_bytes, ALIGN)?;
        let driver = gpu.driver();
        let down = driver.stream_create(token)?;
        let up = driver.stream_create(token)?;
        // From here on what was made goes with the ring.
        let mut ring =
            Ring { gpu: gpu.clone(), memory, slot_bytes, events: Vec::with_capacity(slots), down, up };
        for _ in 0..slots {
            ring.events.push(driver.event_create(token)?);
        }
        Ok(ring)
    }

    /// Makes room for slots of `bytes`. No copy is under way.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), BufferError> {
        let bytes = bytes.next_multiple_of(ALIGN);
        if bytes > self.slot_bytes {
            self.memory = self.gpu.pinned_pool().alloc_aligned::<u8>(self.slots() * bytes, ALIGN)?;
            self.slot_bytes = bytes;
        }
        Ok(())
    }

    pub(crate) fn slots(&self) -> usize {
        self.events.len()
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
        unsafe { self.gpu.driver().copy_to_host(to, from, bytes, self.down, token) }
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
        unsafe { self.gpu.driver().copy_to_device(to, from, bytes, self.up, token) }
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
        unsafe { self.gpu.driver().copy_on_device(to, from, bytes, self.up, token) }
    }

    /// Marks the end of the slot's loads.
    pub(crate) fn loaded(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.gpu.driver().event_record(self.events[slot % self.slots()], self.down, token)
    }

    /// Marks the end of the slot's stores.
    pub(crate) fn stored(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.gpu.driver().event_record(self.events[slot % self.slots()], self.up, token)
    }

    /// Waits for what was marked last.
    pub(crate) fn wait(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.gpu.driver().event_synchronize(self.events[slot % self.slots()], token)
    }

    /// Waits for every load.
    pub(crate) fn wait_loads(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.gpu.driver().stream_synchronize(self.down, token)
    }

    /// Waits for every store, and every copy across.
    pub(crate) fn wait_stores(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.gpu.driver().stream_synchronize(self.up, token)
    }

    /// Waits for every copy.
    pub(crate) fn wait_all(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.wait_loads(token)?;
        self.wait_stores(token)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let token = DriverToken::at_entry();
        let driver = self.gpu.driver();
        // What cannot be waited for or destroyed belongs to a context that is gone.
        let _ = self.wait_all(&token);
        for &event in &self.events {
            // SAFETY: ours, used no more.
            let _ = unsafe { driver.event_destroy(event, &token) };
        }
        for stream in [self.down, self.up] {
            // SAFETY: ours, used no more.
            let _ = unsafe { driver.stream_destroy(stream, &token) };
        }
    }
}
