//! Slabs that other processes have opened stay where they are.
#![allow(unsafe_code)]

use parking_lot::Mutex;
use pinyard_allocator::{DeviceSource, DriverToken, Segment, Source, SourceError};
use pinyard_driver::{DevicePtr, Driver, DriverError};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The part of a device's memory that may be exported and unused: the rest is there for the
/// program, and what is in use is opened again so rarely that it does not show.
const SHARE: usize = 16;

/// What is known of a segment that was exported.
struct Exported {
    bytes: usize,
    handle: [u8; 64],
    /// Communicators whose ranks may have it open.
    holders: usize,
    /// The pool gave it back.
    spare: bool,
}

/// Segments from `cuMemAlloc`, with their handles.
///
/// A driver must not free what another process has open (cuIpcCloseMemHandle in the
/// driver API's manual calls it undefined). So a segment that the pool gives back
/// while a communicator may have it open is kept, serves the pool again when it wants one
/// that is no longer, and goes with its last holder. So that memory does not run out for
/// them, communicators close everything at once when more was exported than is in use and a
/// sixteenth of the device (`DeviceCommunicator::close_spares`).
#[derive(Clone)]
pub(crate) struct Exports(Arc<Inner>);

struct Inner {
    source: DeviceSource,
    driver: Arc<dyn Driver>,
    /// No driver call is made with it locked.
    known: Mutex<Known>,
}

struct Known {
    /// By start.
    segments: BTreeMap<usize, Exported>,
    /// The sum of theirs.
    bytes: usize,
    /// More are too many.
    most: usize,
}

impl Known {
    fn remove(&mut self, start: usize) {
        self.bytes -= self.segments.remove(&start).map_or(0, |gone| gone.bytes);
    }
}

impl Exports {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Exports {
        let source = DeviceSource::new(driver.clone());
        let most = driver.device().total_bytes / SHARE;
        let known = Mutex::new(Known { segments: BTreeMap::new(), bytes: 0, most });
        Exports(Arc::new(Inner { source, driver, known }))
    }

    /// Whether so much was exported that communicators are to close what they have open.
    pub(crate) fn are_too_many(&self) -> bool {
        let known = self.0.known.lock();
        known.bytes > known.most
    }

    /// What is left of them is in use, or could not be closed: so much more may be exported.
    pub(crate) fn allow_more(&self) {
        let known = &mut *self.0.known.lock();
        known.most = known.bytes + self.0.driver.device().total_bytes / SHARE;
    }

    /// The handle of the segment of `bytes` that starts at `start`. With `holds` the
    /// caller becomes one more of those who [`release`](Exports::release) it.
    pub(crate) fn handle(
        &self,
        start: DevicePtr,
        bytes: usize,
        holds: bool,
        token: &DriverToken,
    ) -> Result<[u8; 64], DriverError> {
        let at = start.0 as usize;
        if let Some(exported) = self.0.known.lock().segments.get_mut(&at) {
            exported.holders += usize::from(holds);
            return Ok(exported.handle);
        }
        let handle = self.0.driver.ipc_handle(start, token)?;
        let known = &mut *self.0.known.lock();
        let exported = known.segments.entry(at).or_insert_with(|| {
            known.bytes += bytes;
            Exported { bytes, handle, holders: 0, spare: false }
        });
        exported.holders += usize::from(holds);
        Ok(exported.handle)
    }

    /// Nobody of a communicator's ranks has it open any more.
    pub(crate) fn release(&self, start: DevicePtr, token: &DriverToken) {
        let at = start.0 as usize;
        let mut known = self.0.known.lock();
        let Some(exported) = known.segments.get_mut(&at) else { return };
        exported.holders -= 1;
        if exported.holders > 0 || !exported.spare {
            return;
        }
        let segment = Segment { start: at, bytes: exported.bytes };
        known.remove(at);
        drop(known);
        // SAFETY: the pool gave it back, and nobody has it open.
        if let Err(error) = unsafe { self.0.source.shrink(segment, token) } {
            tracing::warn!(%error, "an exported slab could not be given back");
        }
    }
}

// SAFETY: DeviceSource's segments; one that is spare is given out once.
unsafe impl Source for Exports {
    fn name(&self) -> &'static str {
        "device, exportable"
    }

    fn granularity(&self) -> usize {
        self.0.source.granularity()
    }

    fn room(&self, token: &DriverToken) -> Option<pinyard_allocator::Room> {
        self.0.source.room(token)
    }

    fn grow(&self, bytes: usize, token: &DriverToken) -> Result<Segment, SourceError> {
        let bytes = bytes.next_multiple_of(self.granularity());
        let mut known = self.0.known.lock();
        let fits = |exported: &Exported| exported.spare && exported.bytes >= bytes;
        let spare = known.segments.iter_mut().filter(|(_, exported)| fits(exported));
        if let Some((&start, exported)) = spare.min_by_key(|(_, exported)| exported.bytes) {
            exported.spare = false;
            return Ok(Segment { start, bytes: exported.bytes });
        }
        drop(known);
        self.0.source.grow(bytes, token)
    }

    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        let mut known = self.0.known.lock();
        if let Some(exported) = known.segments.get_mut(&segment.start) {
            if exported.holders > 0 {
                exported.spare = true;
                return Ok(());
            }
            known.remove(segment.start);
        }
        drop(known);
        // SAFETY: the caller's contract.
        unsafe { self.0.source.shrink(segment, token) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinyard_driver::Simulated;

    #[test]
    fn a_segment_that_is_held_is_kept_given_out_again_and_goes_with_its_last_holder() {
        let gpu = Arc::new(Simulated::shareable(64 << 20));
        let token = DriverToken::at_entry();
        let exports = Exports::new(gpu.clone());
        let segment = exports.grow(5 << 20, &token).unwrap();
        let start = DevicePtr(segment.start as u64);
        let handle = exports.handle(start, segment.bytes, true, &token).unwrap();
        assert_eq!(exports.handle(start, segment.bytes, true, &token).unwrap(), handle);
        // SAFETY: nobody uses it.
        unsafe { exports.shrink(segment, &token) }.unwrap();
        assert_eq!(gpu.outstanding(), "1 allocations");
        // A shorter one has the room, a longer one has not.
        let longer = exports.grow(segment.bytes + 1, &token).unwrap();
        assert_ne!(longer.start, segment.start);
        // SAFETY: nobody uses it, or has it open.
        unsafe { exports.shrink(longer, &token) }.unwrap();
        assert_eq!(exports.grow(segment.bytes / 2, &token).unwrap(), segment);
        // SAFETY: nobody uses it.
        unsafe { exports.shrink(segment, &token) }.unwrap();
        exports.release(start, &token);
        assert_eq!(gpu.outstanding(), "1 allocations");
        // Of 64 MiB four may be exported.
        assert!(exports.are_too_many());
        exports.allow_more();
        assert!(!exports.are_too_many());
        exports.release(start, &token);
        assert_eq!((gpu.outstanding(), exports.0.known.lock().bytes), (String::new(), 0));
        let other = exports.grow(1, &token).unwrap();
        exports.handle(DevicePtr(other.start as u64), other.bytes, false, &token).unwrap();
        // SAFETY: nobody uses it, or has it open.
        unsafe { exports.shrink(other, &token) }.unwrap();
        assert_eq!((gpu.outstanding(), gpu.offences().len()), (String::new(), 0));
    }
}
