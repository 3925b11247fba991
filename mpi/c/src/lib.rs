//! libpinyard_mpi: `src/include/pinyard_mpi.h`, which is generated from here (`xtask/ci/header.sh`).
//! Names and documentation are C's.
//!
//! ```text
//! call    pny_mpi_* -> pinyard_boundary::at_boundary -> communicator::within -> Ranks::way
//! device  -> transfers, reductions, shares -> pinyard_mpi::DeviceCommunicator
//! host, or an MPI that takes device pointers -> straight -> MPI
//! ```
//!
//! The library has a copy of pinyard's pools, for its own chunks, beside libpinyard.so's,
//! and neither hooks nor a registry that looks at the program's memory. Device memory is
//! known by asking the driver, so that it is all the same who allocated it.
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![allow(unreachable_pub)] // what C calls is public

mod communicator;
mod devices;
mod reductions;
mod shares;
mod status;
mod straight;
mod transfers;
mod types;
