//! What happened in a pool, kept in a ring of fixed size, and files of it.
//!
//! The format `pinyard-trace`, version 1: lines of JSON. The first is the [`Header`], each
//! other one an [`Event`], oldest first. Fields that a reader does not know are
//! skipped; a field changes its meaning only with the version.

mod event;
mod file;
mod read;
mod ring;
mod stack;

pub use self::{
    event::{Event, Kind},
    file::{Header, Trace, TraceFileError},
    read::{ReadError, Reader},
};
pub(crate) use self::{
    ring::{Record, Ring},
    stack::{Stack, thread_number},
};
