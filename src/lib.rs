//! Registered memory for MPI programs: a registration cache that no allocator
//! can hang and that no stale registration survives, and pools whose slabs are
//! registered once.
pub use pinyard_hooks as hooks;

mod capi;
pub mod libfabric;
