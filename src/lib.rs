//! Registered memory for MPI programs: a registration cache that no allocator
//! can hang and that marks what a change of a mapping makes stale, and pools whose
//! slabs are registered once.
//!
//! This crate names what its layers offer ([`hooks`], [`registry`],
//! [`allocator`]) and adds the C interface (`src/include/pinyard.h`) and the memory
//! monitor for [`libfabric`]'s own cache.
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub use pinyard_allocator as allocator;
pub use pinyard_hooks as hooks;
pub use pinyard_libfabric as libfabric;
pub use pinyard_registry as registry;
pub use pinyard_trace as trace;

pub use allocator::{Pool, PoolBuf};
pub use hooks::notify_unmapped;
pub use registry::{Access, Lease, MemoryKey, OwnedLease, Registry};

#[allow(unreachable_pub)]
mod capi;
pub mod environment;
pub mod prometheus;

/// The examples of the README and the book, compiled, and run where they can be.
#[cfg(doctest)]
#[allow(rustdoc::invalid_codeblock_attributes)] // marks of xtask/ci/book-commands.sh
mod book {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/src/backends.md")]
    mod backends {}
    #[doc = include_str!("../docs/src/observability.md")]
    mod observability {}
    #[doc = include_str!("../docs/src/rust.md")]
    mod rust {}
    #[doc = include_str!("../docs/src/start.md")]
    mod start {}
}
