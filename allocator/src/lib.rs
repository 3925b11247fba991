//! Pools of registered memory: a slab is registered once, when it is mapped, and
//! every block in it has its key by arithmetic.
//!
//! ```text
//! alloc   Pool::alloc -> threads::with -> Magazines::pop -> Bin::pop            (no lock)
//! miss    Handle::alloc_slow -> Core::take -> Ranges::take -> carve             (the pool's lock)
//! grow    Handle::grow -> Slab::birth -> Source::grow -> Registry::get          (no lock)
//! free    PoolBuf::drop -> Core::free -> Magazines::push -> Bin::push           (no lock)
//! fence   PoolBuf::defer_until -> Deferred::push … Deferred::poll -> Core::free (no lock)
//! short   Handle::squeeze -> Deferred::poll … gather_all -> detach_free_slabs -> Slab::release -> Handle::grow
//! trim    Core::gather_all -> detach_free_slabs -> Slab::release -> Registry::invalidate -> Source::shrink
//! ```
//!
//! What no other pool gives together: an allocation or a free is a few stores to
//! memory of the thread's own, without an atomic read-modify-write; yet what a
//! thread keeps can be taken back from it when memory is short, without its help.
//! No source, backend or fence is ever called with a lock held, and dropping a
//! block calls none of them.
//!
//! ```
//! use pinyard_allocator::Pool;
//! use pinyard_registry::{Registry, backend::Mlock};
//!
//! let registry = Registry::builder().backend(Mlock::new()).build()?;
//! let pool = Pool::host(&registry).slab_bytes(2 << 20).limit(16 << 20).build()?;
//! let mut block = pool.alloc::<u32>(1000)?;
//! block.fill(7);
//! assert_eq!(block.slab_base() + block.offset_in_slab(), block.as_ptr() as usize);
//! drop(block); // stays registered
//! pool.alloc::<u32>(1000)?;
//! assert_eq!(pool.stats().registrations, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod biased;
mod bin;
mod block;
mod inbox;
mod latch;
mod retire;
mod sleep;
mod sync;

#[cfg(not(loom))]
pub mod adaptors;
#[cfg(not(loom))]
mod batch;
#[cfg(not(loom))]
mod buf;
#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod carve;
#[cfg(not(loom))]
mod classes;
#[cfg(not(loom))]
mod close;
#[cfg(not(loom))]
mod coming;
#[cfg(not(loom))]
pub mod config;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
mod cut;
#[cfg(not(loom))]
mod deferred;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod exit;
#[cfg(not(loom))]
mod fence;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod grow;
#[cfg(not(loom))]
mod growing;
#[cfg(not(loom))]
mod host;
#[cfg(not(loom))]
mod leaks;
#[cfg(not(loom))]
mod magazine;
#[cfg(not(loom))]
mod poison;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod pressure;
#[cfg(not(loom))]
mod ranges;
#[cfg(not(loom))]
mod relief;
#[cfg(not(loom))]
pub mod replay;
#[cfg(not(loom))]
mod requests;
#[cfg(not(loom))]
mod shared;
#[cfg(not(loom))]
mod slab;
#[cfg(not(loom))]
mod snapshot;
#[cfg(not(loom))]
mod source;
#[cfg(not(loom))]
mod sources;
#[cfg(not(loom))]
mod span;
#[cfg(not(loom))]
mod squeeze;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
pub mod trace;
#[cfg(not(loom))]
mod worker;

#[cfg(loom)]
mod models;
/// The models' blocks lie nowhere.
#[cfg(loom)]
mod span {
    pub(crate) struct Span;
}

#[cfg(not(loom))]
pub use self::{
    buf::PoolBuf,
    builder::Builder,
    coming::AllocFuture,
    error::{AllocError, BuildError, Error},
    fence::{AtomicFence, Fence, Poll},
    host::HostSource,
    leaks::{PoolHolder, PoolLeaks},
    pool::Pool,
    pressure::{Bound, HostLimits, Pressure, Room, Watermarks},
    snapshot::{PoolSnapshot, SizeUse, SlabUse},
    source::{DriverToken, HostMemory, Segment, Source, SourceError},
    sources::{CustomSource, DeviceSource, ManagedSource, PinnedSource, VirtualSource},
    stats::{PoolShortage, PoolStats},
};
