//! What happened in a pool: its trace, of the format of [`pinyard_trace`], and stacks.

mod process;
mod stack;

pub(crate) use self::{
    process::Traced,
    stack::{DEPTH, Stack},
};
pub use pinyard_trace::{Event, Header, Kind, ReadError, Reader, Trace, TraceFileError};
pub(crate) use pinyard_trace::{Record, Ring, thread_number};
