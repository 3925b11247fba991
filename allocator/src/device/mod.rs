//! Pools of device memory, in the order of streams.
//!
//! ```text
//! alloc   pool.rs     PoolStream::alloc -> Local::pop_small | pop_large                  the stream's lock
//! miss    alloc.rs    Core::alloc_slow -> Central::find_at -> take | carve -> Heap::take   the pool's lock
//! behind  hub.rs      Core::join | gather -> begin_epoch: detach, lend … -> find      no lock at the driver
//! used    reclaim.rs  Core::settle_dropped: mark the users, poll … -> find, gather    no lock at the driver
//! others  reclaim.rs  Core::take_from_others -> steal: detach, mark … poll -> find    no lock at the driver
//! grow    alloc.rs    Core::grow_for -> slab_birth: Source::grow, Registrar::register -> Heap::add   no lock
//! short   squeeze.rs  Core::squeeze -> take_all_kept -> find … detach_slabs -> release -> grow_for … hold … observers
//! free    core.rs     DeviceBuf::drop -> Core::free -> Local::freed, or the stream's inbox     waits for nobody
//!                     in use elsewhere: Core::free_used -> dropped; the worker: settle_dropped … the stream's inbox
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
