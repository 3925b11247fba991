//! Device memory mapped piece by piece at growing addresses (`cuMemCreate`,
//! `cuMemMap`): neighbouring segments are one piece, so that little is lost to
//! fragmentation. On request of a kind that a NIC may reach. Unlike memory of
//! `cuMemAlloc` it is shared by file descriptors, not by IPC handles.
#![allow(unsafe_code)]

use crate::pressure::Room;
use crate::source::{DriverToken, Segment, Source, SourceError};
use parking_lot::Mutex;
use pinyard_driver::{DevicePtr, Driver};
use std::sync::Arc;

/// Segments that follow one another in one reserved range of addresses.
pub struct VirtualSource {
    driver: Arc<dyn Driver>,
    granularity: usize,
    rdma: bool,
    ranges: Mutex<Vec<Reserved>>,
}

/// Addresses of which those below `next` were given out.
struct Reserved {
    start: usize,
    bytes: usize,
    next: usize,
    /// Segments mapped here, those to come included.
    segments: usize,
}

impl VirtualSource {
    /// Memory of the driver's device; with `rdma`, memory that a NIC may reach.
    pub fn new(driver: Arc<dyn Driver>, rdma: bool) -> Result<VirtualSource, SourceError> {
        let device = driver.device();
        let lacks = match (device.virtual_memory, device.rdma_virtual_memory || !rdma) {
            (false, _) => Some("the device has no virtual memory management"),
            (true, false) => Some("the device's virtual memory cannot be reached by a NIC"),
            (true, true) => None,
        };
        if let Some(reason) = lacks {
            return Err(SourceError {
                call: format!("VirtualSource (rdma {rdma})"),
                reason: reason.to_owned(),
                hint: "; use DeviceSource".to_owned(),
            });
        }
        let granularity = driver.physical_granularity(rdma, &DriverToken::at_entry())?;
        Ok(VirtualSource { driver, granularity, rdma, ranges: Mutex::new(Vec::new()) })
    }

    /// Addresses for `bytes`: behind the last segment, or in a new range.
    fn place(&self, bytes: usize, token: &DriverToken) -> Result<usize, SourceError> {
        if let Some(at) = take(self.ranges.lock().last_mut(), bytes) {
            return Ok(at);
        }
        // Twice the device: what is given back in the middle is not filled again.
        let length = (2 * self.driver.device().total_bytes.max(bytes)).next_multiple_of(self.granularity);
        let start = self.driver.address_reserve(length, self.granularity, token)?.0 as usize;
        let mut ranges = self.ranges.lock();
        ranges.push(Reserved { start, bytes: length, next: start, segments: 0 });
        take(ranges.last_mut(), bytes).ok_or_else(|| SourceError {
            call: format!("addresses for {bytes} bytes"),
            reason: "others took the range just reserved".to_owned(),
            hint: String::new(),
        })
    }

    /// A segment is gone, or was never mapped.
    fn leave(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        let mut ranges = self.ranges.lock();
        let of = |range: &Reserved| (range.start..range.start + range.bytes).contains(&segment.start);
        let Some(at) = ranges.iter().position(of) else { return Ok(()) };
        let range = &mut ranges[at];
        range.segments -= 1;
        if range.next == segment.start + segment.bytes {
            range.next = segment.start;
        }
        if range.segments > 0 {
            return Ok(());
        }
        let Reserved { start, bytes, .. } = ranges.remove(at);
        drop(ranges);
        // SAFETY: reserved by `place`; nothing is mapped there.
        Ok(unsafe { self.driver.address_free(DevicePtr(start as u64), bytes, token) }?)
    }
}

fn take(range: Option<&mut Reserved>, bytes: usize) -> Option<usize> {
    let range = range?;
    let at = range.next;
    (at + bytes <= range.start + range.bytes).then(|| {
        range.next += bytes;
        range.segments += 1;
        at
    })
}

// SAFETY: each segment has physical memory of its own, mapped at addresses that
// `take` gives out once until `leave`.
unsafe impl Source for VirtualSource {
    fn name(&self) -> &'static str {
        "virtual"
    }

    fn granularity(&self) -> usize {
        self.granularity
    }

    fn joins(&self) -> bool {
        true
    }

    fn room(&self, token: &DriverToken) -> Option<Room> {
        let info = self.driver.mem_info(token).ok()?;
        Some(Room { free: info.free, total: info.total })
    }

    fn grow(&self, bytes: usize, token: &DriverToken) -> Result<Segment, SourceError> {
        let bytes = bytes.next_multiple_of(self.granularity);
        let physical = self.driver.physical_create(bytes, self.rdma, token)?;
        let mapped = self.place(bytes, token).and_then(|start| {
            let segment = Segment { start, bytes };
            // SAFETY: addresses of ours, where nothing is mapped.
            let mapped = unsafe { self.driver.map(DevicePtr(start as u64), bytes, physical, token) };
            match mapped {
                Ok(()) => Ok(segment),
                Err(error) => {
                    self.leave(segment, token)?;
                    Err(error.into())
                }
            }
        });
        // SAFETY: released once; the mapping, if there is one, keeps the memory.
        let released = unsafe { self.driver.physical_release(physical, token) };
        if let (Ok(segment), Err(error)) = (&mapped, &released) {
            // SAFETY: just mapped, and seen by nobody.
            unsafe { self.shrink(*segment, token) }?;
            return Err(error.clone().into());
        }
        mapped
    }

    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        // SAFETY: the caller's contract; mapped as a whole by `grow`.
        unsafe { self.driver.unmap(DevicePtr(segment.start as u64), segment.bytes, token) }?;
        self.leave(segment, token)
    }
}
