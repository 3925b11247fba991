//! The rounds over pinyard, on the allocator that releases pages from inside
//! malloc and free.

use clap::Parser;
use pinyard_mpi_tests::options::Options;
use pinyard_mpi_tests::purging::{self, Purging};
use pinyard_mpi_tests::rank;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Purging = Purging;

fn main() -> ExitCode {
    rank::over_pinyard("purging", purging::disarm, &Options::parse())
}
