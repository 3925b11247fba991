//! What adaptors see of a device pool.

use super::{Allocate, Block, Held, Refusal, Terms};
use crate::device::{DeviceBuf, DeviceError, DevicePool, PoolStream};
use crate::fence::Fence;
use pinyard_driver::DevicePtr;

/// A block of device memory, in the order of a stream.
#[allow(clippy::len_without_is_empty)] // never empty
pub trait DeviceBlock: Block {
    /// Where it begins.
    fn ptr(&self) -> DevicePtr;

    /// Bytes asked for.
    fn len(&self) -> usize;

    /// See [`DeviceBuf::record_use`].
    fn record_use(&mut self, stream: &PoolStream);
}

impl Allocate for DevicePool {
    type Block = DeviceBuf;
    type Terms = PoolStream;
    type Error = DeviceError;

    fn alloc(&self, bytes: usize, stream: &PoolStream) -> Result<DeviceBuf, DeviceError> {
        DevicePool::alloc(self, bytes, stream)
    }
}

impl Terms for PoolStream {
    fn stream_id(&self) -> u64 {
        self.id()
    }
}

impl Block for DeviceBuf {
    fn address(&self) -> u64 {
        DeviceBuf::ptr(self).0
    }

    fn defer_until(self, fence: Fence) {
        DeviceBuf::defer_until(self, fence);
    }
}

impl DeviceBlock for DeviceBuf {
    fn ptr(&self) -> DevicePtr {
        DeviceBuf::ptr(self)
    }

    fn len(&self) -> usize {
        DeviceBuf::len(self)
    }

    fn record_use(&mut self, stream: &PoolStream) {
        DeviceBuf::record_use(self, stream);
    }
}

impl<B: DeviceBlock, T: Send, E: Send> DeviceBlock for Held<B, T, E> {
    fn ptr(&self) -> DevicePtr {
        self.block.ptr()
    }

    fn len(&self) -> usize {
        self.block.len()
    }

    fn record_use(&mut self, stream: &PoolStream) {
        self.block.record_use(stream);
    }
}

impl Refusal for DeviceError {
    fn is_shortage(&self) -> bool {
        DeviceError::is_shortage(self)
    }

    fn share(limit: usize, wanted: usize, used: usize) -> DeviceError {
        DeviceError::Share { limit, wanted, used }
    }

    fn injected(number: u64, wanted: usize) -> DeviceError {
        DeviceError::Injected { number, wanted }
    }
}
