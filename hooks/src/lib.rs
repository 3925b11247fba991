//! Sees every change of a mapping and leaves a word about it where nothing waits.
//!
//! The crate that runs inside `munmap`, `madvise` and their kin, in programs
//! whose allocators call those from inside malloc and free. It is `no_std`
//! without `alloc`: what runs in a hook cannot name an allocator, a lock, a
//! thread-local or a logger, and it calls nothing above this crate. A hook marks
//! the registered regions that the range touches in every [`Map`](map::Map),
//! leaves the range in every lock-free [`Inbox`] that wants it, and makes the real
//! call; consumers look when it suits them.
//!
//! ```text
//! munmap(2) … -> entry::munmap -> monitor::before -> Map::publish -> Slot::mark        -> the real call
//!                                                 -> Filter::may_overlap -> Inbox::push
//! registry    -> Map::news, Slot::state, take_changed
//! others      -> Sink::has_news -> begin / take / finish
//! ```
//!
//! Linux on x86-64 and aarch64 with glibc.
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(not(loom), no_std)]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_env = "gnu"
)))]
compile_error!("pinyard-hooks patches glibc's entries on x86-64 and aarch64 Linux; there are no others yet");

mod array;
mod cancellation;
pub mod daemon;
pub mod descriptors;
mod event;
mod filter;
mod inbox;
pub mod map;
mod monitor;
mod slots;
mod sync;
pub mod sys;

#[cfg(not(loom))]
mod effect;
#[cfg(not(loom))]
mod entry;
#[cfg(not(loom))]
mod entry_break;
#[cfg(not(loom))]
mod entry_shared;
#[cfg(not(loom))]
mod files;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod fresh;
mod holder;
#[cfg(not(loom))]
mod install;
#[cfg(not(loom))]
mod libc_functions;
#[cfg(not(loom))]
pub mod listener;
#[cfg(not(loom))]
mod loader;
mod own_object;
#[cfg(not(loom))]
mod passthrough;
#[cfg(not(loom))]
mod patch;
#[cfg(not(loom))]
mod places;
#[cfg(not(loom))]
mod plain;
mod privilege;
#[cfg(not(loom))]
mod refused;
mod report;
#[cfg(not(loom))]
mod self_test;
#[cfg(not(loom))]
mod settled;
mod signals;
mod stack;
#[cfg(not(loom))]
mod text;
mod thread_end;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
pub mod userfaultfd;

pub use array::{Array, Zero};
pub use cancellation::Uncancelled;
pub use event::{Event, PAGE_SHIFT, PAGE_SIZE};
pub use filter::Filter;
pub use holder::{Found, Holder};
pub use inbox::{Inbox, Mark};
pub use monitor::*;
#[cfg(not(loom))]
pub use places::MapPlace;
pub use report::{Function, FunctionReport, ModuleName, Owner, Report, Seen, Why};
pub use signals::SignalsBlocked;
pub use sync::COMING as MAX_COMING;

#[cfg(not(loom))]
pub use files::declare_shared;
#[cfg(not(loom))]
pub use fork::{generation as fork_generation, install as notice_forks};
#[cfg(not(loom))]
pub use fresh::map_to_register;
#[cfg(not(loom))]
pub use install::{install, remove, repairs, report, test_again, untouched, verify};
#[cfg(not(loom))]
pub use plain::{is_plain, note_doubtful};
pub use privilege::is_privileged;
#[cfg(not(loom))]
pub use settled::{has_hidden_ring, look_at_loaded_objects, unsettled, wait_until_published};
pub use stack::{THREAD_STACK, stack_size};
#[cfg(not(loom))]
pub use text::is_sealed;
pub use thread_end::{at_thread_end, make_key};
