//! An event.

use crate::ring::Record;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// A block was handed out.
    Alloc,
    /// A block was dropped.
    Free,
    /// Another stream uses a block.
    RecordUse,
    /// An allocation found neither memory nor a slab, and waits for streams; or a stream
    /// was made to wait for another's memory.
    Wait,
    /// A slab was made.
    Grow,
    /// A slab was given back.
    Trim,
    /// An allocation failed.
    Oom,
    /// The backend registered a range.
    Register,
    /// The backend took a registration back.
    Deregister,
    /// A region left the cache: its mapping changed, everything was taken out, or the
    /// program asked.
    Invalidate,
    /// A region left the cache to stay within the limits.
    Evict,
    /// A block was given up until a fence passes; its `free` is when that was seen.
    Fence,
    /// A call of MPI on device buffers.
    Mpi,
    /// Events were lost here: `bytes` of them, overwritten before they were written.
    Lost,
    /// The last line of a process's trace: it ended, or its file has its full length.
    End,
}

impl Kind {
    /// All, each at its own number.
    pub const ALL: [Kind; 15] = [
        Kind::Alloc,
        Kind::Free,
        Kind::RecordUse,
        Kind::Wait,
        Kind::Grow,
        Kind::Trim,
        Kind::Oom,
        Kind::Register,
        Kind::Deregister,
        Kind::Invalidate,
        Kind::Evict,
        Kind::Fence,
        Kind::Mpi,
        Kind::Lost,
        Kind::End,
    ];

    /// As files have it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Alloc => "alloc",
            Kind::Free => "free",
            Kind::RecordUse => "record_use",
            Kind::Wait => "wait",
            Kind::Grow => "grow",
            Kind::Trim => "trim",
            Kind::Oom => "oom",
            Kind::Register => "register",
            Kind::Deregister => "deregister",
            Kind::Invalidate => "invalidate",
            Kind::Evict => "evict",
            Kind::Fence => "fence",
            Kind::Mpi => "mpi",
            Kind::Lost => "lost",
            Kind::End => "end",
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// Nanoseconds since the trace was started; of what took time, when it began.
    #[serde(rename = "t")]
    pub time_ns: u64,
    /// The thread, as the kernel numbers it.
    pub thread: u32,
    /// What happened.
    pub event: Kind,
    /// `cuStreamGetId` of the stream; 0 if it is of none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stream: u64,
    /// Bytes asked for, of the slab or range, or that MPI moves.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Bytes of the block; 0 if there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub block_bytes: u64,
    /// The block's number, given to no other of the trace; 0 if it was allocated before
    /// the trace was started, or there is none. Of a process's trace: given to no other
    /// block in use.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub block: u64,
    /// Where the block, slab or range begins.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub address: u64,
    /// How long it took, in nanoseconds; 0 if it took none or was not timed.
    #[serde(rename = "took", default, skip_serializing_if = "is_zero")]
    pub duration_ns: u64,
    /// Of a process's trace: the pool, registry or communicator, counted from 1.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub of: u64,
    /// The source of the pool, the registry's backend, or MPI's operation.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub name: Cow<'static, str>,
    /// How MPI's operation was carried out.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub path: Cow<'static, str>,
    /// Where the block's slab begins, if that was known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub slab: u64,
    /// Functions on the stack, innermost first, where stacks were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
}

impl Event {
    /// An allocation, for traces that were not recorded but made.
    pub fn alloc(time_ns: u64, block: u64, bytes: u64, stream: u64) -> Event {
        Event { block, bytes, stream, ..Event::empty(time_ns, Kind::Alloc) }
    }

    /// The end of a block.
    pub fn free(time_ns: u64, block: u64) -> Event {
        Event { block, ..Event::empty(time_ns, Kind::Free) }
    }

    /// A use of a block by another stream.
    pub fn record_use(time_ns: u64, block: u64, stream: u64) -> Event {
        Event { block, stream, ..Event::empty(time_ns, Kind::RecordUse) }
    }

    /// With names in place of numbers; `stack` is innermost first.
    pub fn of(record: Record, stack: Vec<String>) -> Event {
        let Record { time_ns, thread, kind, stream, bytes, block_bytes, block, address, .. } = record;
        let Record { duration_ns, of, name, path, slab, .. } = record;
        Event {
            time_ns,
            thread,
            event: kind,
            stream,
            bytes,
            block_bytes,
            block,
            address,
            duration_ns,
            of: u64::from(of),
            name: Cow::Borrowed(name.text()),
            path: Cow::Borrowed(path.text()),
            slab,
            stack,
        }
    }

    fn empty(time_ns: u64, event: Kind) -> Event {
        Event::of(Record { time_ns, ..Record::of(event) }, Vec::new())
    }
}

// serde's shape.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn is_empty(text: &str) -> bool {
    text.is_empty()
}
