//! Memory of a GPU, as far as a NIC needs to know it.

use super::BackendError;
use crate::range::PageRange;
use std::os::fd::OwnedFd;

/// A dma-buf that holds a range of device memory.
#[derive(Debug)]
pub struct DmaBuf {
    /// The buffer. A registration keeps what is behind it, so that it can be closed
    /// when the call has returned.
    pub fd: OwnedFd,
    /// Where the range starts in it, in bytes.
    pub offset: u64,
}

/// Tells device memory from host memory. [`Cuda`](super::Cuda) is one.
///
/// Called by a backend's `register`: from any thread, under no lock.
pub trait DeviceMemory: Send + Sync {
    /// The ordinal of the device that holds `range`; `None` for host memory.
    fn device_of(&self, range: PageRange) -> Result<Option<i32>, BackendError>;

    /// A dma-buf that holds `range`, which is device memory.
    fn export(&self, range: PageRange) -> Result<DmaBuf, BackendError>;
}
