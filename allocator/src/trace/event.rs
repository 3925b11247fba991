//! An event.

use super::ring::Record;
use super::stack::Stack;
use serde::{Deserialize, Serialize};

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
}

impl Kind {
    pub(crate) const ALL: [Kind; 7] =
        [Kind::Alloc, Kind::Free, Kind::RecordUse, Kind::Wait, Kind::Grow, Kind::Trim, Kind::Oom];
}

/// An event of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Event {
    /// Nanoseconds since the trace was started.
    #[serde(rename = "t")]
    pub time_ns: u64,
    /// The thread, as the kernel numbers it.
    pub thread: u32,
    /// What happened.
    pub event: Kind,
    /// `cuStreamGetId` of the stream; 0 if it is of none.
    #[serde(default)]
    pub stream: u64,
    /// Bytes asked for, or of the slab.
    #[serde(default)]
    pub bytes: u64,
    /// Bytes of the block; 0 if there is none.
    #[serde(default)]
    pub block_bytes: u64,
    /// The block's number, given to no other of the trace; 0 if it was allocated before
    /// the trace was started, or there is none.
    #[serde(default)]
    pub block: u64,
    /// Where the block begins.
    #[serde(default)]
    pub address: u64,
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

    /// With names for the stack.
    pub(crate) fn of(record: Record, stack: &Stack) -> Event {
        let Record { time_ns, thread, kind, stream, bytes, block_bytes, block, address } = record;
        Event {
            time_ns,
            thread,
            event: kind,
            stream,
            bytes,
            block_bytes,
            block,
            address,
            stack: stack.names(),
        }
    }

    fn empty(time_ns: u64, event: Kind) -> Event {
        Event {
            time_ns,
            thread: 0,
            event,
            stream: 0,
            bytes: 0,
            block_bytes: 0,
            block: 0,
            address: 0,
            stack: Vec::new(),
        }
    }
}
