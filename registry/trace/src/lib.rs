//! What happened, kept in a ring of fixed size, and files of it.
//!
//! Two kinds of trace share one format, one ring and one reader: a pool's own
//! (`DevicePool::start_trace`), and a process's, which `PINYARD_TRACE` asks for
//! ([`settings`]): every pool, registry and communicator of the process records into one
//! ring, which a thread writes to a file while the program runs. Beside it stands a small
//! file of counters, for `pinyard top`.
//!
//! ```text
//! event   is_on (a relaxed load) -> Recorder::record -> Ring::push          waits for nobody
//! flush   writer thread -> Ring::take -> file                               every 100 ms, or a quarter full
//! exit    atexit(3) -> what is left, and the event `end`
//! ```
//!
//! Nothing here runs in a hook: what hooks mark is recorded where the registry drains it.
//! No key of a registration is recorded.
//!
//! The format `pinyard-trace`: lines of JSON. The first is the [`Header`], each
//! other one an [`Event`], oldest first. Fields that a reader does not know are
//! skipped; a field changes its meaning only with the version. Version 1 is a pool's:
//! written at once, its header counts its events. Version 2 is a process's: its header
//! names the process and its last event is `end`; a file without one is of a process that
//! was killed, or runs.
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod counters;
mod event;
mod file;
mod hooks;
mod names;
mod process;
mod read;
mod recorder;
mod ring;
pub mod settings;
mod thread;
mod writer;

pub use self::{
    event::{Event, Kind},
    file::{Header, Trace, TraceFileError},
    names::Name,
    process::Process,
    read::{ReadError, Reader},
    recorder::{Recorder, StartError, is_on, recorder, start_from_environment},
    ring::{Record, Ring},
    thread::thread_number,
};
