//! What can go wrong: the rank, the call, the cause.

use mpi::topology::Rank;
use pinyard_allocator::device::DeviceError;
use pinyard_allocator::{AllocError, BuildError};
use pinyard_driver::{Absent, DriverError};
use thiserror::Error;

/// Why a device could not be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No driver, or no such device.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// A pool was not made.
    #[error(transparent)]
    Pool(#[from] BuildError),
    /// The registry of the pinned memory was not made.
    #[error("no registry for pinned memory: {reason}")]
    Registry {
        /// The registry's words.
        reason: String,
    },
}

/// Why a buffer was not made, settled or copied.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BufferError {
    /// No device memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No pinned memory.
    #[error(transparent)]
    Pinned(#[from] AllocError),
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A copy between buffers of different lengths.
    #[error("a copy between {elements} and {other} elements: the lengths must be equal")]
    Length {
        /// Elements of the buffer.
        elements: usize,
        /// Elements of the other side.
        other: usize,
    },
    /// A stream or a slice that does not belong with the buffers of this [`Gpu`](crate::Gpu).
    #[error("the stream is refused: {reason}")]
    Stream {
        /// Why.
        reason: String,
    },
    /// The size exceeds the address space.
    #[error("{elements} elements of {element_bytes} bytes exceed the address space: check the count")]
    TooLong {
        /// Elements asked for.
        elements: usize,
        /// Bytes of one.
        element_bytes: usize,
    },
}

/// An MPI function that failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{call} failed: {text} (code {code})")]
pub struct MpiError {
    /// The function.
    pub call: &'static str,
    /// Its code.
    pub code: i32,
    /// MPI's words for the code.
    pub text: String,
}

/// What went wrong at another rank, as far as it says so; it has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// Its driver refused a copy, or an allocation.
    #[error("its device's driver refused")]
    Driver,
    /// Its device's context is gone, or broken.
    #[error("its device's context cannot be used any more")]
    Context,
    /// Its buffer has another length.
    #[error("its buffer has another length")]
    Length,
    /// Its buffer belongs to another device than its communicator.
    #[error("its buffer is another device's")]
    Device,
    /// MPI failed it.
    #[error("MPI failed it")]
    Mpi,
    /// The path that the ranks have chosen does not have it.
    #[error("the path does not have it")]
    Path,
    /// It has called something else.
    #[error("it has called something else, or with another root")]
    Call,
    /// Something else.
    #[error("it says no more")]
    Other,
}

/// Why a communicator for device buffers was not made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommunicatorError {
    /// MPI is not there.
    #[error("MPI is not initialised, or finalised already")]
    NoMpi,
    /// An MPI function failed.
    #[error("rank {rank}: {source}")]
    Mpi {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: MpiError,
    },
    /// Memory for staging was refused.
    #[error("rank {rank}: no memory for staging: {source}")]
    Staging {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: BufferError,
    },
    /// Neither chunks that the ranks of a node share nor a rank's own.
    #[error("rank {rank}: no pinned chunks: {reason}")]
    Chunks {
        /// This rank.
        rank: Rank,
        /// The failed call.
        reason: String,
    },
    /// A variable of the environment has no meaning.
    #[error("rank {rank}: {name}={value} is refused: {allowed}")]
    Environment {
        /// This rank.
        rank: Rank,
        /// The variable.
        name: &'static str,
        /// What it is set to.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// A path was asked for that does not exist here.
    #[error("rank {rank}: path {path} was asked for, but {reason}")]
    Path {
        /// This rank.
        rank: Rank,
        /// The path.
        path: &'static str,
        /// Why not.
        reason: String,
    },
    /// Another rank could not go on.
    #[error("rank {rank} could not make its part of the communicator: see its error")]
    Peer {
        /// The other rank.
        rank: Rank,
    },
}

/// Why an operation failed. Ranks that are not named may have succeeded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// After `MPI_Finalize`.
    #[error("rank {rank}: MPI is finalised: communicate before the Universe is dropped")]
    Finalized {
        /// This rank.
        rank: Rank,
    },
    /// No such rank in the communicator.
    #[error("rank {rank}: there is no rank {wanted} among {size}")]
    NoSuchRank {
        /// This rank.
        rank: Rank,
        /// The rank asked for.
        wanted: Rank,
        /// Ranks of the communicator.
        size: Rank,
    },
    /// Two ranks' buffers do not fit each other.
    #[error(
        "{operation}: rank {rank} has {bytes} bytes where rank {other} has {other_bytes}: their counts must be equal"
    )]
    Counts {
        /// What was to be done.
        operation: &'static str,
        /// A rank that differs.
        rank: Rank,
        /// Its bytes.
        bytes: u64,
        /// The rank it differs from: the root, the sender, or rank 0.
        other: Rank,
        /// Its bytes.
        other_bytes: u64,
    },
    /// Ranks that are in different collectives, or in one with different roots or reductions.
    /// None of them moved anything.
    #[error("{operation}: {text}: all ranks make the same calls, in the same order")]
    Calls {
        /// What was to be done.
        operation: &'static str,
        /// A rank that differs.
        rank: Rank,
        /// The rank it differs from.
        other: Rank,
        /// Both, and in what they differ.
        text: String,
    },
    /// A buffer that is no multiple of the ranks long.
    #[error("{operation}: rank {rank} has {elements} elements for {size} ranks: a multiple is needed")]
    Share {
        /// What was to be done.
        operation: &'static str,
        /// This rank.
        rank: Rank,
        /// Elements of its buffer.
        elements: usize,
        /// Ranks of the communicator.
        size: Rank,
    },
    /// A list of parts that does not fit its buffer or the ranks.
    #[error("{operation}: rank {rank}: {text}")]
    Partition {
        /// What was to be done.
        operation: &'static str,
        /// This rank.
        rank: Rank,
        /// What is wrong with it.
        text: String,
    },
    /// Elements that a rank's part of a window does not have.
    #[error(
        "rank {rank}: {count} elements from element {start} on are not in rank {target}'s part of the window, which has {elements}"
    )]
    Range {
        /// This rank.
        rank: Rank,
        /// The rank whose part it is.
        target: Rank,
        /// The first element asked for.
        start: usize,
        /// Elements asked for.
        count: usize,
        /// Elements of the part.
        elements: usize,
    },
    /// What this communicator's path does not have.
    #[error("{operation}: rank {rank}: {reason}")]
    Unsupported {
        /// What was to be done.
        operation: &'static str,
        /// This rank.
        rank: Rank,
        /// Why not, and what there is in its place.
        reason: String,
    },
    /// A buffer of another device, or of the same one through another [`Gpu`](crate::Gpu).
    #[error(
        "rank {rank}: a buffer of {buffer} in a communicator of {communicator}: allocate it from that Gpu"
    )]
    OtherDevice {
        /// This rank.
        rank: Rank,
        /// The buffer's device.
        buffer: String,
        /// The communicator's.
        communicator: String,
    },
    /// More than an MPI count, where the pointer goes through to MPI.
    #[error("rank {rank}: {bytes} bytes exceed an MPI count, which the direct path is bound to: send ranges")]
    TooLong {
        /// This rank.
        rank: Rank,
        /// Bytes of one message or share.
        bytes: usize,
    },
    /// Another rank failed; what this rank received is incomplete.
    #[error("{operation}: rank {rank} failed, seen by rank {seen_by}: {what}")]
    Peer {
        /// What was to be done.
        operation: &'static str,
        /// The rank that failed.
        rank: Rank,
        /// This rank.
        seen_by: Rank,
        /// What it says.
        what: Failure,
    },
    /// A message that is none of this crate's: the other rank does something else.
    #[error("{operation}: rank {rank} received what is not this operation's: {text}")]
    Foreign {
        /// What was to be done.
        operation: &'static str,
        /// This rank.
        rank: Rank,
        /// What is wrong with it.
        text: String,
    },
    /// An MPI function failed.
    #[error("rank {rank}: {source}")]
    Mpi {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: MpiError,
    },
    /// The device's driver refused.
    #[error("rank {rank}: {source}")]
    Driver {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: DriverError,
    },
    /// The device's context was destroyed under the communicator, the driver has ended, or a fault
    /// of a kernel or the hardware has broken the context
    /// ([`DriverError::is_fault`](pinyard_driver::DriverError::is_fault)).
    #[error(
        "rank {rank}: the device's context cannot be used any more, nor any memory of it: {source}; {}",
        remedy(source)
    )]
    Context {
        /// This rank.
        rank: Rank,
        /// The call that found it out.
        source: DriverError,
    },
    /// No pinned memory for longer chunks.
    #[error("rank {rank}: no memory for staging: {source}")]
    Staging {
        /// This rank.
        rank: Rank,
        /// The cause.
        source: BufferError,
    },
}

/// What to do about a context that is lost.
fn remedy(source: &DriverError) -> &'static str {
    if source.is_fault() {
        "a kernel or the hardware has failed before: look for it with compute-sanitizer, and start the process anew"
    } else {
        "nothing may reset the device while a communicator stands"
    }
}

impl Error {
    /// What the other ranks are told.
    pub(crate) fn failure(&self) -> Failure {
        match self {
            Error::Driver { .. } | Error::Staging { .. } => Failure::Driver,
            Error::Context { .. } => Failure::Context,
            Error::Counts { .. } | Error::Share { .. } | Error::Partition { .. } | Error::Range { .. } => {
                Failure::Length
            }
            Error::OtherDevice { .. } => Failure::Device,
            Error::Mpi { .. } => Failure::Mpi,
            Error::Unsupported { .. } => Failure::Path,
            Error::Calls { .. } => Failure::Call,
            _ => Failure::Other,
        }
    }
}

impl Failure {
    /// Of several of one rank the greatest is told: what says nothing is the least.
    pub(crate) fn number(self) -> u32 {
        match self {
            Failure::Other => 1,
            Failure::Length => 2,
            Failure::Device => 3,
            Failure::Driver => 4,
            Failure::Mpi => 5,
            Failure::Context => 6,
            Failure::Path => 7,
            Failure::Call => 8,
        }
    }

    pub(crate) fn of(number: u32) -> Failure {
        match number {
            2 => Failure::Length,
            3 => Failure::Device,
            4 => Failure::Driver,
            5 => Failure::Mpi,
            6 => Failure::Context,
            7 => Failure::Path,
            8 => Failure::Call,
            _ => Failure::Other,
        }
    }
}
