//! What can go wrong, and who holds what when it does.

use crate::source::SourceError;
use pinyard_driver::DriverError;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Why an allocation failed. The pool and its live blocks are as they were.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// No bytes were asked for.
    #[error("empty allocation: a block has at least one byte")]
    Empty,
    /// More bytes than there are addresses.
    #[error("{bytes} bytes exceed the address space: check the size")]
    Overflow {
        /// Bytes asked for.
        bytes: usize,
    },
    /// The stream handle is of another pool.
    #[error("the stream belongs to another pool: ask this pool for its own handle of it")]
    ForeignStream,
    /// The stream was retired, by this or another handle of it.
    #[error("the stream is retired: ask the pool for a handle of the stream that is used now")]
    Retired,
    /// `CU_STREAM_PER_THREAD`, or CUDA's `cudaStreamPerThread`.
    #[error(
        "the per-thread default stream is another stream in every thread, and memory is used in the order of \
         one: create a stream (cuStreamCreate)"
    )]
    PerThread,
    /// The pool's own limit.
    #[error("pool limit of {limit} bytes reached: {wanted} wanted, {reserved} reserved for slabs")]
    Limit {
        /// The limit given to the builder.
        limit: usize,
        /// Bytes that the allocation needs.
        wanted: usize,
        /// Bytes of all slabs.
        reserved: usize,
    },
    /// The memory itself was refused.
    #[error("no slab of {bytes} bytes from source {name}: {source}")]
    Source {
        /// Bytes of the slab.
        bytes: usize,
        /// The source's name.
        name: &'static str,
        /// The cause.
        source: SourceError,
    },
    /// The memory was there, but its registration was refused.
    #[error("a slab of {bytes} bytes could not be registered: {source}")]
    Registration {
        /// Bytes of the slab.
        bytes: usize,
        /// The cause.
        source: SourceError,
    },
    /// Nothing is left: everything that could be free was waited for and given back.
    #[error("{cause}; {shortage}; free blocks, wait for streams, or raise the limit")]
    OutOfMemory {
        /// What was refused at last.
        cause: Box<DeviceError>,
        /// Who holds the memory.
        shortage: Box<Shortage>,
    },
    /// A share of a pool: [`adaptors::Limit`](crate::adaptors::Limit).
    #[error(
        "share of {limit} bytes used up: {wanted} wanted, {used} in use; free blocks, or raise the share"
    )]
    Share {
        /// The share.
        limit: usize,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes in use.
        used: usize,
    },
    /// A failure that was asked for: [`adaptors::Fault`](crate::adaptors::Fault).
    #[error("allocation {number}, of {wanted} bytes, fails on purpose")]
    Injected {
        /// Its number, from 0.
        number: u64,
        /// Bytes asked for.
        wanted: usize,
    },
    /// This process is a fork of the one that made the pool.
    #[error("this pool belongs to the parent process: no device context survives a fork")]
    Forked,
    /// A call of the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl DeviceError {
    /// Whether freeing blocks may help.
    pub fn is_shortage(&self) -> bool {
        use DeviceError::{Injected, Limit, OutOfMemory, Share, Source};
        matches!(self, Limit { .. } | Source { .. } | OutOfMemory { .. } | Share { .. } | Injected { .. })
    }
}

/// Why a copy was not made. The source is given up all the same.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The source does not fit there.
    #[error("{bytes} bytes from byte {offset} on do not fit a block of {target} bytes")]
    Bounds {
        /// Where in the target.
        offset: usize,
        /// Bytes of the source.
        bytes: usize,
        /// Bytes of the target.
        target: usize,
    },
    /// The stream is being captured.
    #[error(
        "the stream is being captured: a graph would read the source at every launch, after it is gone; copy \
         outside the capture"
    )]
    Captured,
    /// The stream was retired: nobody would wait for the copy.
    #[error("the stream is retired: ask the pool for a handle of the stream that is used now")]
    Retired,
    /// This process is a fork of the one that made the pool.
    #[error("this pool belongs to the parent process: no device context survives a fork")]
    Forked,
    /// A call of the driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Who holds a pool's memory at a moment of need. Bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// Wanted.
    pub wanted: usize,
    /// All slabs.
    pub reserved: usize,
    /// Blocks in use.
    pub live: u64,
    /// Blocks in use, how many.
    pub live_blocks: u64,
    /// Dropped blocks that wait for other streams or fences.
    pub waiting_blocks: usize,
    /// Free blocks that wait for the streams that freed them.
    pub waiting: usize,
    /// Free, in pieces that are too short.
    pub free: usize,
    /// The device's free memory, if it answered.
    pub device_free: Option<usize>,
    /// Per stream.
    pub streams: Vec<StreamShare>,
}

/// A stream's part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamShare {
    /// `cuStreamGetId`.
    pub id: u64,
    /// Bytes in use of blocks allocated on it.
    pub live: u64,
    /// Free bytes that only it may use now.
    pub kept: usize,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes wanted; of {} in slabs {} are in use in {} blocks ({} blocks wait for other users), {} \
             wait for their streams, {} are free in shorter pieces",
            self.wanted,
            self.reserved,
            self.live,
            self.live_blocks,
            self.waiting_blocks,
            self.waiting,
            self.free
        )?;
        if let Some(free) = self.device_free {
            write!(f, "; the device has {free} free")?;
        }
        for StreamShare { id, live, kept } in &self.streams {
            write!(f, "; stream {id}: {live} in use, {kept} kept")?;
        }
        Ok(())
    }
}

/// Called before an allocation fails, without a lock: it may free blocks, after which
/// the allocation is tried once more.
pub(super) type Observer = Arc<dyn Fn(&Shortage) + Send + Sync>;
