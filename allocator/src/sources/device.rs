//! Device memory from `cuMemAlloc`: it can be exported to other processes, as a
//! dma-buf, and registered with a NIC, which memory of `cuMemAllocAsync` cannot.
#![allow(unsafe_code)]

use crate::pressure::Room;
use crate::source::{DriverToken, Segment, Source, SourceError};
use pinyard_driver::{DevicePtr, Driver};
use std::sync::Arc;

/// What the driver aligns allocations of at least this length to.
const GRANULARITY: usize = 2 << 20;

/// Segments from `cuMemAlloc`.
pub struct DeviceSource {
    driver: Arc<dyn Driver>,
}

impl DeviceSource {
    /// Memory of the driver's device.
    pub fn new(driver: Arc<dyn Driver>) -> DeviceSource {
        DeviceSource { driver }
    }
}

// SAFETY: the driver's memory is nobody else's until it is freed (`Driver`'s
// contract); the alignment is checked.
unsafe impl Source for DeviceSource {
    fn name(&self) -> &'static str {
        "device"
    }

    fn granularity(&self) -> usize {
        GRANULARITY
    }

    fn room(&self, token: &DriverToken) -> Option<Room> {
        let info = self.driver.mem_info(token).ok()?;
        Some(Room { free: info.free, total: info.total })
    }

    fn grow(&self, bytes: usize, token: &DriverToken) -> Result<Segment, SourceError> {
        // What overflows is more than any device has.
        let bytes = bytes.checked_next_multiple_of(GRANULARITY).unwrap_or(bytes);
        let at = self.driver.mem_alloc(bytes, token)?;
        let start = at.0 as usize;
        if start.is_multiple_of(GRANULARITY) {
            return Ok(Segment { start, bytes });
        }
        // SAFETY: just allocated.
        unsafe { self.driver.mem_free(at, token) }?;
        Err(SourceError {
            call: format!("cuMemAlloc({bytes})"),
            reason: format!("{start:#x} is not a multiple of {GRANULARITY}"),
            hint: "; use VirtualSource on this driver".to_owned(),
        })
    }

    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        // SAFETY: the caller's contract.
        Ok(unsafe { self.driver.mem_free(DevicePtr(segment.start as u64), token) }?)
    }
}
