//! What can go wrong, one enum per operation: the cause, the call that failed,
//! and what the caller can do about it.

use crate::pressure::Bound;
use crate::source::SourceError;
use pinyard_registry::GetError;
use thiserror::Error;

/// Why an allocation failed. The pool and its live blocks are as they were.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AllocError {
    /// No bytes were asked for.
    #[error("empty allocation: {elements} elements of {element_bytes} bytes; a block has at least one byte")]
    Empty {
        /// Elements asked for.
        elements: usize,
        /// Bytes of one.
        element_bytes: usize,
    },
    /// The size exceeds the address space.
    #[error("{elements} elements of {element_bytes} bytes exceed the address space: check the count")]
    Overflow {
        /// Elements asked for.
        elements: usize,
        /// Bytes of one.
        element_bytes: usize,
    },
    /// No power of two, or more than slabs are aligned to.
    #[error("alignment {align} is refused: a power of two up to {largest} is possible")]
    Alignment {
        /// Alignment asked for.
        align: usize,
        /// The largest one.
        largest: usize,
    },
    /// The pool's own limit.
    #[error(
        "pool limit of {limit} bytes reached: {wanted} wanted, {reserved} reserved for slabs, {live} in use in \
         {live_blocks} blocks ({deferred} blocks of these wait for a fence); free blocks, or raise the limit"
    )]
    Limit {
        /// The limit given to the builder.
        limit: usize,
        /// Bytes that the allocation needs.
        wanted: usize,
        /// Bytes of all slabs.
        reserved: usize,
        /// Bytes of blocks in use.
        live: u64,
        /// Blocks in use.
        live_blocks: u64,
        /// Of these, blocks whose fence has not passed.
        deferred: u64,
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
    #[error("a slab of {bytes} bytes could not be registered with backend {backend}: {source}")]
    Registration {
        /// Bytes of the slab.
        bytes: usize,
        /// The backend's name.
        backend: &'static str,
        /// The cause.
        source: Box<GetError>,
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
    #[error(
        "this pool belongs to the parent process: its registrations do not survive a fork; make a pool after forking"
    )]
    Forked,
    /// Four thousand million blocks.
    #[error("all {ids} block numbers of the pool are used: use a second pool")]
    TooManyBlocks {
        /// Blocks that a pool can have.
        ids: u32,
    },
}

impl AllocError {
    /// Whether freeing blocks may help: also where it is the registration that was refused for
    /// want of room, since a pool gives back free slabs before it fails.
    pub fn is_shortage(&self) -> bool {
        use AllocError::{Injected, Limit, Registration, Share, Source};
        match self {
            Limit { .. } | Source { .. } | Share { .. } | Injected { .. } => true,
            Registration { source, .. } => match &**source {
                GetError::Memlock { .. } | GetError::Budget { .. } | GetError::TooManyRegions { .. } => true,
                GetError::Backend { source, .. } => {
                    matches!(source.errno, libc::ENOMEM | libc::EAGAIN | libc::ENOSPC)
                }
                _ => false,
            },
            _ => false,
        }
    }
}

/// Why a pool was not made.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Slabs of no bytes, or longer than the address space.
    #[error("slabs of {bytes} bytes are refused: 1 to {most} are possible, rounded up to {granularity}")]
    SlabBytes {
        /// Bytes asked for.
        bytes: usize,
        /// The most.
        most: usize,
        /// What slabs are rounded to.
        granularity: usize,
    },
    /// The limit leaves no room for any slab.
    #[error("a limit of {limit} bytes leaves no room for a slab of at least {granularity}")]
    Limit {
        /// The limit asked for.
        limit: usize,
        /// The shortest slab.
        granularity: usize,
    },
    /// A part of what there is, as the limit.
    #[error(
        "a limit of {part} of what there is is refused: parts are above 0 and up to 1, of memory whose source says \
         how much there is"
    )]
    LimitFraction {
        /// The part asked for.
        part: f64,
    },
    /// Parts are 0 to 1, and the low mark is not above the high one.
    #[error("watermarks {low:?} and {high:?} are refused: parts are 0 to 1, and the first is the lower")]
    Watermarks {
        /// Where pressure begins.
        low: Bound,
        /// Where it ends.
        high: Bound,
    },
    /// A setting of the environment.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// The trace that `PINYARD_TRACE` asks for could not be begun.
    #[error("{0}")]
    Trace(&'static pinyard_trace::StartError),
    /// The driver refused what the pool itself needs.
    #[error(transparent)]
    Driver(pinyard_driver::DriverError),
    /// The system has no memory for what the pool itself needs.
    #[error(transparent)]
    Memory(crate::source::SourceError),
    /// The pool's thread was not made.
    #[error("no thread for the pool: {reason}; see `ulimit -u`")]
    Thread {
        /// The system's words.
        reason: String,
    },
}

/// Any error of this crate.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// From an allocation.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// From [`Builder::build`](crate::Builder::build).
    #[error(transparent)]
    Build(#[from] BuildError),
}
