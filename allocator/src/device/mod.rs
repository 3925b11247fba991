//! Pools of device memory, in the order of streams.
//!
//! ```text
//! alloc   PoolStream::alloc -> Local::pop_small | pop_large                      (the stream's lock)
//! miss    Core::alloc_slow -> Central::find -> Heap::take | carve                (the pool's lock)
//! behind  Core::gather -> lenders -> detach -> lend … begin_epoch -> join -> find       (no lock at the driver)
//! others  Core::take_from_others -> steal -> mark … poll -> find | hold               (no lock at the driver)
//! grow    Core::grow_for -> Source::grow -> Registrar::register -> Heap::add     (no lock)
//! free    DeviceBuf::drop -> Local::freed, or an inbox                           (waits for nobody)
//! used    DeviceBuf::drop -> dropped … worker: mark -> Waiting … poll -> inbox   (no lock at the driver)
//! short   Core::squeeze -> steal all -> find … -> detach_slabs -> release -> grow -> observers
//! ```
//!
//! ```
//! use pinyard_allocator::device::DevicePool;
//! use pinyard_driver::{Driver, DriverToken, Simulated};
//! use std::sync::Arc;
//!
//! let gpu = Arc::new(Simulated::new(1 << 30));
//! let pool = DevicePool::builder(gpu.clone()).build()?;
//! let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry())?)?;
//! let block = pool.alloc(1 << 20, &stream)?;
//! let at = block.ptr();
//! drop(block); // the stream's later work may have it at once
//! assert_eq!(pool.alloc(1 << 20, &stream)?.ptr(), at);
//! assert_eq!(pool.stats().growths, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alloc;
mod block;
mod buf;
mod builder;
mod census;
mod classes;
mod copies;
mod core;
mod counts;
mod error;
mod events;
mod heap;
mod hub;
mod index;
mod leaks;
mod ledger;
mod levels;
mod local;
mod marks;
mod misuse;
mod places;
mod poison;
mod pool;
mod pressure;
mod raw;
mod reclaim;
mod registered;
mod requests;
mod slab;
mod snapshot;
mod squeeze;
mod stats;
mod stream;
mod tools;
mod waiting;
mod watch;
mod worker;

pub(crate) use self::ledger::{Ledger, Life, Note, Past};
pub use self::{
    buf::DeviceBuf,
    builder::DeviceBuilder,
    copies::CopySource,
    error::{CopyError, DeviceError, Shortage, StreamShare},
    leaks::{Holder, Leaks},
    marks::MarkKind,
    misuse::{Misuse, Offence, Place},
    pool::{DevicePool, PoolStream},
    raw::RawPool,
    requests::AllocFuture,
    slab::Registrar,
    snapshot::{
        BlockSnapshot, BlockState, SizeStatistics, SlabSnapshot, Snapshot, Statistics, StreamStatistics,
    },
    stats::{DeviceStats, Hits},
    watch::TraceOptions,
};
pub use crate::pressure::Pressure;
