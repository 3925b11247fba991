//! Parts that go around a pool, of host or of device memory, one task each, in any order:
//! `Statistics::new(Limit::new(pool, bytes))` limits first and counts what passed.
//!
//! An adaptor is a type around another's type. What is not used is neither in the type
//! nor in the code, and what is used is known to the compiler: which memory it is, what an
//! allocation is told ([`Terms`]) and how it fails ([`Refusal`]) are types of the innermost
//! pool's. The manner is RMM's (rapidsai/rmm, `mr/*_adaptor.hpp`), whose adaptors are
//! resources around resources.
//!
//! Around a device pool an allocation has its stream:
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
//!
//! Around a host pool, pinned or of the program's own source as well, it has an alignment,
//! or elements of a type; the block is a slice:
//!
//! ```
//! use pinyard_allocator::Pool;
//! use pinyard_allocator::adaptors::{Align, Allocate, AllocateHost, HostBlock, Limit, Statistics};
//! use pinyard_registry::{Registry, backend::Mlock};
//!
//! let registry = Registry::builder().backend(Mlock::new()).build()?;
//! let pool = Pool::host(&registry).slab_bytes(2 << 20).build()?;
//! let part = Statistics::new(Limit::new(&pool, 1 << 20));
//! let mut halo = part.alloc_slice::<f32>(1000)?;
//! halo.fill(0.5);
//! assert_eq!(halo.buf().key(), pool.alloc::<u8>(4000)?.key()); // of one slab
//! assert!(part.alloc(1 << 20, &Align(64)).is_err());
//! drop(halo);
//! assert_eq!((part.counts().peak_bytes, part.counts().failures), (4000, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod device;
mod fault;
mod held;
mod host;
mod limit;
mod retry;
mod statistics;
mod traced;

pub use self::{
    device::DeviceBlock,
    fault::Fault,
    held::Held,
    host::{Align, AllocateHost, HostBlock},
    limit::Limit,
    retry::Retry,
    statistics::{Statistics, StatisticsCounts},
    traced::Traced,
};
use crate::fence::Fence;

/// Hands out blocks: a pool, or an adaptor around one. Any thread may ask.
pub trait Allocate: Send + Sync {
    /// What it hands out.
    type Block: Block;
    /// What it is told beside the bytes: the innermost pool's matter.
    type Terms: Terms + ?Sized;
    /// Why it may refuse.
    type Error: Refusal;

    /// A block of `bytes` bytes, at least one. See [`DevicePool::alloc`], whose terms are a
    /// stream, one of the innermost pool's; and [`Pool::alloc_aligned`], whose terms are an
    /// [`Align`]. Fails as the innermost pool does, or as an adaptor does.
    ///
    /// [`DevicePool::alloc`]: crate::device::DevicePool::alloc
    /// [`Pool::alloc_aligned`]: crate::Pool::alloc_aligned
    fn alloc(&self, bytes: usize, terms: &Self::Terms) -> Result<Self::Block, Self::Error>;
}

/// A block in use. Dropping it is the pool's drop: from any thread, with any lock held,
/// without a call of the driver. More of it: [`DeviceBlock`], [`HostBlock`].
pub trait Block: Send {
    /// Where it begins, in the address space of the device or of the process.
    fn address(&self) -> u64;

    /// Gives it up: its memory is used again only after `fence` has passed. Adaptors count
    /// it as freed now. Waits for nothing.
    fn defer_until(self, fence: Fence);
}

/// What an allocation is told beside its bytes.
pub trait Terms {
    /// `cuStreamGetId` of the stream in whose order it is; 0 if it is in none's.
    fn stream_id(&self) -> u64 {
        0
    }
}

/// Why an allocation failed: what adaptors ask of it, and the failures that are their own.
pub trait Refusal: Sized {
    /// Whether freeing blocks may help.
    fn is_shortage(&self) -> bool;

    /// [`Limit`]'s: with `used` bytes in use, `wanted` more exceed the share of `limit` bytes.
    fn share(limit: usize, wanted: usize, used: usize) -> Self;

    /// [`Fault`]'s: the allocation of this number, from 0, of `wanted` bytes.
    fn injected(number: u64, wanted: usize) -> Self;
}

impl<A: Allocate> Allocate for &A {
    type Block = A::Block;
    type Terms = A::Terms;
    type Error = A::Error;

    fn alloc(&self, bytes: usize, terms: &A::Terms) -> Result<A::Block, A::Error> {
        (**self).alloc(bytes, terms)
    }
}
