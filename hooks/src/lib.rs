//! Sees every change of a mapping and leaves a word about it where nothing waits.
//!
//! The crate that runs inside `munmap`, `madvise` and their kin, in programs
//! whose allocators call those from inside malloc and free. It is `no_std`
//! without `alloc`: what runs in a hook cannot name an allocator, a lock, a
//! thread-local or a logger, and it calls nothing above this crate. A hook
//! publishes the range to a lock-free [`inbox`](Inbox) and makes the real call;
//! consumers pull.
//!
//! ```text
//! munmap(2) … -> entry::munmap -> monitor::before -> Filter::may_overlap -> Inbox::push -> the real call
//! consumer    -> Sink::has_news -> begin / take / finish
//! ```
//!
//! Linux on x86-64 and aarch64 with glibc.
#![cfg_attr(not(loom), no_std)]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_env = "gnu"
)))]
compile_error!("pinyard-hooks patches glibc's entries on x86-64 and aarch64 Linux; there are no others yet");

mod event;
mod filter;
mod inbox;
mod monitor;
mod sync;
pub mod sys;

#[cfg(not(loom))]
mod effect;
#[cfg(not(loom))]
mod entry;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod install;
#[cfg(not(loom))]
mod passthrough;
#[cfg(not(loom))]
mod patch;
mod report;
#[cfg(not(loom))]
mod self_test;
mod signals;
#[cfg(not(loom))]
mod text;

pub use event::{Event, PAGE_SHIFT, PAGE_SIZE};
pub use filter::Filter;
pub use inbox::{Inbox, Mark};
pub use monitor::*;
pub use report::{Function, FunctionReport, ModuleName, Owner, Report, Seen, Why};
pub use signals::SignalsBlocked;

#[cfg(not(loom))]
pub use fork::generation as fork_generation;
#[cfg(not(loom))]
pub use install::{install, remove, report, test_again, untouched, verify};
