//! Parts that go around a device pool, one task each, in any order:
//! `Statistics::new(Limit::new(pool, bytes))` limits first and counts what passed.
//!
//! An adaptor is a type around another's type. What is not used is neither in the type
//! nor in the code, and what is used is known to the compiler. The manner is RMM's
//! (rapidsai/rmm, `mr/*_adaptor.hpp`), whose adaptors are resources around resources.
//!
//! ```
//! use pinyard_allocator::adaptors::{Allocate, Limit, Statistics};
//! use pinyard_allocator::device::DevicePool;
//! use pinyard_driver::{Driver, DriverToken, Simulated};
//! use std::sync::Arc;
//!
//! let gpu = Arc::new(Simulated::new(1 << 30));
//! let pool = DevicePool::builder(gpu.clone()).build()?;
//! let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry())?)?;
//! // A part of the program gets 1 MiB of the pool.
//! let part = Statistics::new(Limit::new(pool, 1 << 20));
//! let block = part.alloc(600_000, &stream)?;
//! assert!(part.alloc(600_000, &stream).is_err());
//! drop(block);
//! assert_eq!((part.counts().peak_bytes, part.counts().live_bytes), (600_000, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fault;
mod held;
mod limit;
mod retry;
mod statistics;
mod traced;

pub use self::{
    fault::Fault,
    held::Held,
    limit::Limit,
    retry::Retry,
    statistics::{Statistics, StatisticsCounts},
    traced::Traced,
};
use crate::device::{DeviceBuf, DeviceError, DevicePool, PoolStream};
use crate::fence::Fence;
use pinyard_driver::DevicePtr;

/// Hands out blocks of device memory in the order of streams: a pool, or an adaptor
/// around one.
pub trait Allocate: Send + Sync {
    /// What it hands out.
    type Block: Block;

    /// See [`DevicePool::alloc`]. The stream is one of the innermost pool's.
    fn alloc(&self, bytes: usize, stream: &PoolStream) -> Result<Self::Block, DeviceError>;
}

/// A block in use. Dropping it is [`DeviceBuf`]'s drop: from any thread, with any lock
/// held, without a call of the driver.
#[allow(clippy::len_without_is_empty)] // never empty
pub trait Block: Send {
    /// Where it begins.
    fn ptr(&self) -> DevicePtr;

    /// Bytes asked for.
    fn len(&self) -> usize;

    /// See [`DeviceBuf::record_use`].
    fn record_use(&mut self, stream: &PoolStream);

    /// See [`DeviceBuf::defer_until`].
    fn defer_until(self, fence: Fence);
}

impl Allocate for DevicePool {
    type Block = DeviceBuf;

    fn alloc(&self, bytes: usize, stream: &PoolStream) -> Result<DeviceBuf, DeviceError> {
        DevicePool::alloc(self, bytes, stream)
    }
}

impl Block for DeviceBuf {
    fn ptr(&self) -> DevicePtr {
        DeviceBuf::ptr(self)
    }

    fn len(&self) -> usize {
        DeviceBuf::len(self)
    }

    fn record_use(&mut self, stream: &PoolStream) {
        DeviceBuf::record_use(self, stream);
    }

    fn defer_until(self, fence: Fence) {
        DeviceBuf::defer_until(self, fence);
    }
}

impl<A: Allocate> Allocate for &A {
    type Block = A::Block;

    fn alloc(&self, bytes: usize, stream: &PoolStream) -> Result<A::Block, DeviceError> {
        (**self).alloc(bytes, stream)
    }
}
