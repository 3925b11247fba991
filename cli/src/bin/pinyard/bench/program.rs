//! The programs that measure, and what it takes to have them.

use crate::demo::Refusal;
use crate::demo::mpi::Mpirun;
use crate::programs::Folders;
use pinyard_cli::bench::Absence;
use pinyard_cli::bench::catalogue::{Benchmark, Program};
use std::path::{Path, PathBuf};

/// Where they are looked for.
pub(crate) struct Programs {
    plain: Folders,
    linked: Folders,
}

/// A program's name, and what it takes to have it.
fn known(program: Program) -> (&'static str, &'static str) {
    match program {
        Program::Bench => (
            "pinyard-bench",
            "build it with `cargo build --release -p pinyard-benches`, or name its folder with --programs",
        ),
        Program::Mpi => (
            "gpu-bandwidth",
            "build it with `cargo build --release -p pinyard-mpi-tests --features gpu` and name its folder with one more \
             --programs, or install it with `make install` (both need that MPI's development files and \
             libclang)",
        ),
    }
}

impl Programs {
    /// Those in the folders `named` alone; or this command's, or an installation's, with ranks
    /// that are linked with the MPI of `mpirun`.
    pub(crate) fn of(named: &[PathBuf], mpirun: &Path) -> Result<Programs, Refusal> {
        let mpi = Mpirun::find(mpirun).ok().map(|mpirun| mpirun.kind);
        Ok(Programs { plain: Folders::plain(named)?, linked: Folders::linked(named, mpi)? })
    }

    /// The program of `benchmark`, or why there is none.
    pub(crate) fn of_benchmark(&self, benchmark: &Benchmark) -> Result<PathBuf, Absence> {
        let (name, remedy) = known(benchmark.program);
        let folders = match benchmark.program {
            Program::Bench => &self.plain,
            Program::Mpi => &self.linked,
        };
        folders.find(name).map_err(|why| Absence::new(why, remedy))
    }
}
