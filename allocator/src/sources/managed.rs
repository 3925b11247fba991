//! Managed memory, of host and device, up to a bound: more than the device has
//! would be paged to and fro, and on some systems hang it.
#![allow(unsafe_code)]

use crate::pressure::Room;
use crate::source::{DriverToken, HostMemory, Segment, Source, SourceError};
use pinyard_driver::{DevicePtr, Driver};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const GRANULARITY: usize = 2 << 20;

/// Segments from `cuMemAllocManaged`.
pub struct ManagedSource {
    driver: Arc<dyn Driver>,
    bound: usize,
    used: AtomicUsize,
}

impl ManagedSource {
    /// At most `bound` bytes of managed memory, and at most half of the device's.
    /// Fails where the host may not touch managed memory while the device runs.
    pub fn new(driver: Arc<dyn Driver>, bound: usize) -> Result<ManagedSource, SourceError> {
        if !driver.device().concurrent_managed {
            return Err(SourceError {
                call: format!("ManagedSource of {bound} bytes"),
                reason: "the host may not touch managed memory while the device runs".to_owned(),
                hint: "; use PinnedSource, or device memory and copies".to_owned(),
            });
        }
        let bound = bound.min(driver.device().total_bytes / 2);
        Ok(ManagedSource { driver, bound, used: AtomicUsize::new(0) })
    }
}

// SAFETY: the driver's memory is nobody else's until it is freed; the driver aligns
// allocations of whole 2 MiB to 2 MiB, which is checked.
unsafe impl Source for ManagedSource {
    fn name(&self) -> &'static str {
        "managed"
    }

    fn granularity(&self) -> usize {
        GRANULARITY
    }

    fn room(&self, _: &DriverToken) -> Option<Room> {
        Some(Room { free: self.bound.saturating_sub(self.used.load(Relaxed)), total: self.bound })
    }

    fn grow(&self, bytes: usize, token: &DriverToken) -> Result<Segment, SourceError> {
        // What overflows is more than any device has.
        let bytes = bytes.checked_next_multiple_of(GRANULARITY).unwrap_or(bytes);
        let reserved = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(bytes).filter(|&sum| sum <= self.bound));
        if let Err(used) = reserved {
            return Err(SourceError {
                call: format!("cuMemAllocManaged({bytes})"),
                reason: format!("not called: {used} of at most {} bytes are in use", self.bound),
                hint: "; raise the bound, at most half of the device's memory".to_owned(),
            });
        }
        let granted = self.driver.mem_alloc_managed(bytes, token).map_err(SourceError::from);
        let aligned = granted.and_then(|at| {
            if (at.0 as usize).is_multiple_of(GRANULARITY) {
                return Ok(Segment { start: at.0 as usize, bytes });
            }
            // SAFETY: just allocated.
            unsafe { self.driver.mem_free(at, token) }?;
            Err(SourceError {
                call: format!("cuMemAllocManaged({bytes})"),
                reason: format!("{:#x} is not a multiple of {GRANULARITY}", at.0),
                hint: String::new(),
            })
        });
        aligned.inspect_err(|_| {
            self.used.fetch_sub(bytes, Relaxed);
        })
    }

    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        // SAFETY: the caller's contract.
        unsafe { self.driver.mem_free(DevicePtr(segment.start as u64), token) }?;
        self.used.fetch_sub(segment.bytes, Relaxed);
        Ok(())
    }
}

// SAFETY: with concurrent access, which `new` asks for, the host reads and writes
// managed memory as its own; the driver zeroes it at first touch.
unsafe impl HostMemory for ManagedSource {}
