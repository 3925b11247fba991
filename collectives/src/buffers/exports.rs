//! Slabs that other processes have opened stay where they are.
#![allow(unsafe_code)]

use parking_lot::Mutex;
use pinyard_allocator::{DeviceSource, DriverToken, Segment, Source, SourceError};
use pinyard_driver::{DevicePtr, Driver, DriverError};
use std::collections::BTreeMap;
use std::sync::Arc;

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
/// while a communicator may have it open is kept, serves the pool again when it wants
/// one of that length, and goes with its last holder.
#[derive(Clone)]
pub(crate) struct Exports(Arc<Inner>);

struct Inner {
    source: DeviceSource,
    driver: Arc<dyn Driver>,
    /// By start. No driver call is made with it locked.
    segments: Mutex<BTreeMap<usize, Exported>>,
}

impl Exports {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> Exports {
        let source = DeviceSource::new(driver.clone());
        Exports(Arc::new(Inner { source, driver, segments: Mutex::default() }))
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
        if let Some(exported) = self.0.segments.lock().get_mut(&at) {
            exported.holders += usize::from(holds);
            return Ok(exported.handle);
        }
        let handle = self.0.driver.ipc_handle(start, token)?;
        let mut segments = self.0.segments.lock();
        let exported = segments.entry(at).or_insert(Exported { bytes, handle, holders: 0, spare: false });
        exported.holders += usize::from(holds);
        Ok(exported.handle)
    }

    /// Nobody of a communicator's ranks has it open any more.
    pub(crate) fn release(&self, start: DevicePtr, token: &DriverToken) {
        let at = start.0 as usize;
        let mut segments = self.0.segments.lock();
        let Some(exported) = segments.get_mut(&at) else { return };
        exported.holders -= 1;
        if exported.holders > 0 || !exported.spare {
            return;
        }
        let segment = Segment { start: at, bytes: exported.bytes };
        segments.remove(&at);
        drop(segments);
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
        let mut segments = self.0.segments.lock();
        let spare = segments.iter_mut().find(|(_, exported)| exported.spare && exported.bytes == bytes);
        if let Some((&start, exported)) = spare {
            exported.spare = false;
            return Ok(Segment { start, bytes });
        }
        drop(segments);
        self.0.source.grow(bytes, token)
    }

    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        let mut segments = self.0.segments.lock();
        if let Some(exported) = segments.get_mut(&segment.start) {
            if exported.holders > 0 {
                exported.spare = true;
                return Ok(());
            }
            segments.remove(&segment.start);
        }
        drop(segments);
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
        let segment = exports.grow(1, &token).unwrap();
        let start = DevicePtr(segment.start as u64);
        let handle = exports.handle(start, segment.bytes, true, &token).unwrap();
        assert_eq!(exports.handle(start, segment.bytes, true, &token).unwrap(), handle);
        // SAFETY: nobody uses it.
        unsafe { exports.shrink(segment, &token) }.unwrap();
        assert_eq!(gpu.outstanding(), "1 allocations");
        assert_eq!(exports.grow(segment.bytes, &token).unwrap(), segment);
        // SAFETY: nobody uses it.
        unsafe { exports.shrink(segment, &token) }.unwrap();
        exports.release(start, &token);
        assert_eq!(gpu.outstanding(), "1 allocations");
        exports.release(start, &token);
        assert_eq!(gpu.outstanding(), "");
        let other = exports.grow(1, &token).unwrap();
        exports.handle(DevicePtr(other.start as u64), other.bytes, false, &token).unwrap();
        // SAFETY: nobody uses it, or has it open.
        unsafe { exports.shrink(other, &token) }.unwrap();
        assert_eq!((gpu.outstanding(), gpu.offences().len()), (String::new(), 0));
    }
}
