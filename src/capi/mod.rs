//! The C interface, from which `src/include/pinyard.h` is generated (`xtask/ci/header.sh`):
//! names and documentation here are C's.
//!
//! ```text
//! call    pny_* -> pinyard_boundary::at_boundary -> Handles -> the Rust interface
//! result  Failure -> pny_status, and the thread's pny_last_error
//! ```
//!
//! No panic leaves a function: it becomes `PNY_ERR_INTERNAL`. Where nothing can panic
//! (`pny_notify_unmapped`, which also runs in signal handlers), nothing is caught.
//! A handle is a number in a pointer's clothes and is never followed: one that is null,
//! was destroyed, or never was a handle is refused.

mod backend;
mod block_table;
mod blocks;
mod callbacks;
mod diagnosis;
mod find;
mod get;
mod hooks;
mod leases;
mod libfabric;
mod plug;
mod pools;
mod process;
mod registry;
mod sized;
mod status;
mod streams;

#[cfg(test)]
mod tests;
