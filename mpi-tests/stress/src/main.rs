//! A rank of `pinyard stress`.
//!
//! ```text
//! main -> MPI -> rank::prepare -> Steps::run -> rank::conclude -> records to rank 0 -> verdict
//! step    Plan::step -> Slot::change -> Registry::get -> Device -> MPI -> Pattern::check -> Device
//! beside  watchdog (hangs, signals, SIGKILL), sampler (series, progress), flood
//! ```
//!
//! All randomness is the plan's, which every rank computes from the seed. So all know what
//! each must have sent, and nothing travels beside the messages but, every few steps, the
//! agreement to go on.

mod device;
mod faults;
mod launcher;
#[cfg(feature = "verbs")]
mod loopback;
mod machine;
mod memory;
mod options;
mod payload;
mod plan;
mod rank;
mod rma;
mod sampler;
mod shared;
mod steps;
mod watchdog;
mod words;

use clap::Parser;
use pinyard_mpi_tests::purging::Purging;
use std::process::ExitCode;

/// Releases pages from inside malloc and free.
#[global_allocator]
static ALLOCATOR: Purging = Purging;

fn main() -> ExitCode {
    rank::run(&options::Cli::parse())
}
