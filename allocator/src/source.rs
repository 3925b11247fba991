//! Where slabs come from. One trait, one file per kind of memory.
#![allow(unsafe_code)] // declares unsafe functions, calls none

use crate::pressure::Room;
use pinyard_driver::DriverError;
pub use pinyard_driver::DriverToken;
use pinyard_worker::caught;

/// A piece of memory that a source has handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte, a multiple of the source's granularity.
    pub start: usize,
    /// Length in bytes, likewise.
    pub bytes: usize,
}

/// A failed call of a source: the call with its arguments, its error code, and
/// what the caller can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {reason}{hint}")]
pub struct SourceError {
    /// The call with its arguments.
    pub call: String,
    /// The system's or the driver's words.
    pub reason: String,
    /// What the caller can do, starting with `; `, or nothing.
    pub hint: String,
}

/// Hands out memory in large segments: host, pinned, device.
///
/// Called from any thread, several at a time, never under a lock of the pool's.
/// May take long, and call drivers. Must not allocate from a pool that it feeds.
///
/// # Safety
/// A segment that `grow` returned is memory that nobody else uses until `shrink`
/// is given the same segment, with `start` and `bytes` multiples of `granularity`, a
/// power of two of at least 4096, and at least the bytes asked for.
pub unsafe trait Source: Send + Sync {
    /// A short name for messages.
    fn name(&self) -> &'static str;

    /// Segments start and end at multiples of this.
    fn granularity(&self) -> usize;

    /// Whether segments that are neighbours are one piece of memory: a block may
    /// then lie in two of them, in a pool whose slabs nobody registers.
    fn joins(&self) -> bool {
        false
    }

    /// What is left where its memory comes from, as whoever gives it says; `None` where
    /// nobody does. Asked before a slab is made, and while memory is short.
    fn room(&self, _token: &DriverToken) -> Option<Room> {
        None
    }

    /// At least `bytes` bytes, a multiple of the granularity.
    fn grow(&self, bytes: usize, token: &DriverToken) -> Result<Segment, SourceError>;

    /// Takes a segment back. Nothing is registered there any more. A panic is an error like
    /// another: the segment stays.
    ///
    /// # Safety
    /// The segment came from this source's `grow`, is given back once, and nobody
    /// uses its memory.
    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError>;
}

/// A source whose memory the host may use as its own.
///
/// # Safety
/// Segments are mapped, readable and writable by the host, and initialised.
pub unsafe trait HostMemory: Source {}

/// Has the program's code do something with a segment: a panic is an error like another.
pub(crate) fn by_program<T>(
    call: &str,
    segment: Segment,
    work: impl FnOnce() -> Result<T, SourceError>,
) -> Result<T, SourceError> {
    caught(work).unwrap_or_else(|panicked| {
        Err(SourceError {
            call: format!("{call} of {} bytes at {:#x}", segment.bytes, segment.start),
            reason: format!("it panicked: {panicked}"),
            hint: String::new(),
        })
    })
}

impl From<DriverError> for SourceError {
    fn from(error: DriverError) -> SourceError {
        let hint =
            if error.is_out_of_memory() { "; see who holds the device's memory: nvidia-smi" } else { "" };
        let reason = format!("{} (code {})", error.text, error.code);
        SourceError { call: error.call, reason, hint: hint.to_owned() }
    }
}
