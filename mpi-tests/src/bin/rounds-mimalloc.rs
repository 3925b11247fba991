//! The rounds over pinyard on mimalloc. The launcher sets MIMALLOC_PURGE_DELAY=0:
//! pages go back to the system as soon as they are free, not 10 ms later.

use clap::Parser;
use mimalloc::MiMalloc;
use pinyard_mpi_tests::options::Options;
use pinyard_mpi_tests::rank;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    rank::over_pinyard("mimalloc", || {}, &Options::parse())
}
