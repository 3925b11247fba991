//! Host memory of ours in cudarc's copies (feature `cudarc`).
//!
//! cudarc queues a copy and takes for granted that the driver has read or written a plain
//! slice when the call returns, which holds for pageable memory alone. So these are no
//! plain slices to it: its copy ends before its call does. A copy that goes on while the host
//! does something else is [`PinnedBuf::copy_from`] or [`PinnedBuf::copy_to`].
#![allow(unsafe_code)] // implements methods that cudarc declares unsafe

use super::host::HostBuf;
use super::pinned::PinnedBuf;
use bytemuck::Pod;
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaStream, DriverError, HostSlice, SyncOnDrop};

impl<T: Pod> PinnedBuf<T> {
    /// Waits for the copies that were queued. cudarc is told at its next call if that fails, as it
    /// is of what fails in its own drops.
    fn passed(&self, stream: &CudaStream) {
        if let Err(error) = self.copies_passed() {
            tracing::warn!(%error, "copies of a pinned buffer could not be waited for");
            let told = DriverError(CUresult::CUDA_ERROR_UNKNOWN);
            stream.context().record_err(Err::<(), _>(told));
        }
    }
}

/// Its copies are waited for before one of cudarc's begins, and that before its call
/// returns.
impl<T: Pod> HostSlice<T> for PinnedBuf<T> {
    fn len(&self) -> usize {
        PinnedBuf::len(self)
    }

    unsafe fn stream_synced_slice<'a>(&'a self, stream: &'a CudaStream) -> (&'a [T], SyncOnDrop<'a>) {
        self.passed(stream);
        (self.elements(), SyncOnDrop::sync_stream(stream))
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        self.passed(stream);
        (self.elements_mut(), SyncOnDrop::sync_stream(stream))
    }
}

/// A copy of cudarc's has passed when its call returns: the pool's memory may be pinned. Not so
/// of the slice that it derefs to, which cudarc takes for pageable.
impl<T: Pod> HostSlice<T> for HostBuf<T> {
    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    unsafe fn stream_synced_slice<'a>(&'a self, stream: &'a CudaStream) -> (&'a [T], SyncOnDrop<'a>) {
        (self, SyncOnDrop::sync_stream(stream))
    }

    unsafe fn stream_synced_mut_slice<'a>(
        &'a mut self,
        stream: &'a CudaStream,
    ) -> (&'a mut [T], SyncOnDrop<'a>) {
        (self, SyncOnDrop::sync_stream(stream))
    }
}
