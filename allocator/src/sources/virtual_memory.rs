//! Device memory mapped piece by piece at growing addresses (`cuMemCreate`,
//! `cuMemMap`): neighbouring segments are one piece, so that little is lost to
//! fragmentation. On request of a kind that a NIC may reach. Unlike memory of
//! `cuMemAlloc` it is shared by file descriptors, not by IPC handles.
#![allow(unsafe_code)]

use crate::pressure::Room;
use crate::source::{DriverToken, Segment, Source, SourceError};
use parking_lot::Mutex;
use pinyard_driver::{DevicePtr, Driver};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Segments that follow one another in one reserved range of addresses.
pub struct VirtualSource {
    driver: Arc<dyn Driver>,
    granularity: usize,
    rdma: bool,
    ranges: Mutex<Vec<Reserved>>,
}

/// Reserved addresses.
struct Reserved {
    start: usize,
    bytes: usize,
    /// From here on none were given out.
    next: usize,
    /// Below, those that came back: start and bytes. No two touch, and none touches `next`.
    holes: BTreeMap<usize, usize>,
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

    /// Addresses for `bytes`: behind the last segment, which they join; else in a new range,
    /// where more joins them; at last where segments were given back.
    fn place(&self, bytes: usize, token: &DriverToken) -> Result<usize, SourceError> {
        let refused = |reason: &str| SourceError {
            call: format!("addresses for {bytes} bytes"),
            reason: reason.to_owned(),
            hint: String::new(),
        };
        let mut ranges = self.ranges.lock();
        if let Some(at) = ranges.last_mut().and_then(|last| last.append(bytes)) {
            return Ok(at);
        }
        drop(ranges);
        // Twice the device, so that most segments join others.
        let length = self.driver.device().total_bytes.max(bytes).checked_mul(2);
        let length = length.and_then(|length| length.checked_next_multiple_of(self.granularity));
        let length = length.ok_or_else(|| refused("more than there are"))?;
        let start = match self.driver.address_reserve(length, self.granularity, token) {
            Ok(start) => start.0 as usize,
            Err(error) => {
                let mut ranges = self.ranges.lock();
                let hole = ranges.iter_mut().find_map(|range| range.refill(bytes));
                return hole.ok_or_else(|| error.into());
            }
        };
        let mut ranges = self.ranges.lock();
        ranges.push(Reserved { start, bytes: length, next: start, holes: BTreeMap::new(), segments: 0 });
        let new = ranges.last_mut().and_then(|last| last.append(bytes));
        new.ok_or_else(|| refused("others took the range just reserved"))
    }

    /// A segment is gone, or was never mapped.
    fn leave(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        let mut ranges = self.ranges.lock();
        let of = |range: &Reserved| (range.start..range.start + range.bytes).contains(&segment.start);
        let Some(at) = ranges.iter().position(of) else { return Ok(()) };
        ranges[at].give_back(segment);
        if ranges[at].segments > 0 {
            return Ok(());
        }
        let Reserved { start, bytes, .. } = ranges.remove(at);
        drop(ranges);
        // SAFETY: reserved by `place`; nothing is mapped there.
        Ok(unsafe { self.driver.address_free(DevicePtr(start as u64), bytes, token) }?)
    }
}

impl Reserved {
    fn append(&mut self, bytes: usize) -> Option<usize> {
        let at = self.next;
        (bytes <= self.start + self.bytes - at).then(|| {
            self.next += bytes;
            self.segments += 1;
            at
        })
    }

    /// In the lowest hole that has room.
    fn refill(&mut self, bytes: usize) -> Option<usize> {
        let (&at, &hole) = self.holes.iter().find(|&(_, &hole)| hole >= bytes)?;
        self.holes.remove(&at);
        if hole > bytes {
            self.holes.insert(at + bytes, hole - bytes);
        }
        self.segments += 1;
        Some(at)
    }

    fn give_back(&mut self, segment: Segment) {
        self.segments -= 1;
        let (mut start, mut bytes) = (segment.start, segment.bytes);
        if let Some((&below, &hole)) = self.holes.range(..start).next_back()
            && below + hole == start
        {
            self.holes.remove(&below);
            (start, bytes) = (below, hole + bytes);
        }
        if let Some(above) = self.holes.remove(&(start + bytes)) {
            bytes += above;
        }
        if start + bytes == self.next {
            self.next = start;
        } else {
            self.holes.insert(start, bytes);
        }
    }
}

// SAFETY: each segment has physical memory of its own, mapped at addresses that
// `place` gives out once until `leave`.
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
        // What overflows is more than any device has.
        let most = usize::MAX - usize::MAX % self.granularity;
        let bytes = bytes.checked_next_multiple_of(self.granularity).unwrap_or(most);
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

#[cfg(test)]
mod tests {
    use super::*;
    use pinyard_driver::{Call, Simulated};

    const MIB: usize = 1 << 20;

    /// Segments go in any order, and their addresses serve again, however often.
    #[test]
    fn addresses_in_the_middle_serve_again() {
        let gpu = Arc::new(Simulated::new(64 * MIB));
        let source = VirtualSource::new(gpu.clone(), true).unwrap();
        let token = DriverToken::at_entry();
        let piece = source.granularity();
        // SAFETY: segments of the source's own, which nobody uses.
        let give = |segment| unsafe { source.shrink(segment, &token) }.unwrap();
        let first = source.grow(piece, &token).unwrap();
        for _ in 0..40 {
            // A device's worth, less what stays, from the top downwards and upwards.
            let mut all: Vec<Segment> =
                (0..60 * MIB / piece).map(|_| source.grow(piece, &token).unwrap()).collect();
            let kept = all.swap_remove(all.len() / 3);
            all.sort_by_key(|segment| segment.start);
            let upper = all.split_off(all.len() / 2);
            all.into_iter().for_each(&give);
            upper.into_iter().rev().for_each(&give);
            let again = source.grow(3 * piece, &token).unwrap();
            assert!(again.start >= kept.start + kept.bytes || again.start + again.bytes <= kept.start);
            give(again);
            give(kept);
            let ranges = source.ranges.lock();
            assert_eq!((ranges.len(), ranges[0].segments, ranges[0].holes.len()), (1, 1, 0));
            assert_eq!(ranges[0].next, first.start + first.bytes);
        }
        // The end of the range is in use, so nothing is appended, and there are no more
        // addresses: the middle serves.
        let end = {
            let mut ranges = source.ranges.lock();
            let last = ranges[0].start + ranges[0].bytes - piece;
            let middle = Segment { start: ranges[0].next, bytes: last - ranges[0].next };
            assert_eq!(ranges[0].append(middle.bytes), Some(middle.start));
            drop(ranges);
            let end = source.grow(piece, &token).unwrap();
            assert_eq!(end.start, last);
            source.ranges.lock()[0].give_back(middle);
            end
        };
        gpu.fail_next(Call::AddressReserve, 1, 2);
        let middle = source.grow(piece, &token).unwrap();
        assert_eq!((middle.start, source.ranges.lock().len()), (first.start + piece, 1));
        [middle, end, first].into_iter().for_each(&give);
        assert_eq!(gpu.offences(), Vec::<String>::new());
        assert_eq!((gpu.used_bytes(), source.ranges.lock().len()), (0, 0));
    }

    #[test]
    fn sizes_at_the_end_of_the_address_space_are_refused() {
        let source = VirtualSource::new(Simulated::new(64 * MIB).running(), false).unwrap();
        for bytes in [65 * MIB, 1 << 46, usize::MAX / 2, usize::MAX - 4096, usize::MAX] {
            assert!(source.grow(bytes, &DriverToken::at_entry()).is_err(), "{bytes}");
        }
        assert!(source.place(usize::MAX / 2 + 1, &DriverToken::at_entry()).is_err());
    }
}
