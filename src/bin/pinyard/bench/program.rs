//! Where the programs that measure are.

use crate::demo::{Refusal, own_folder};
use pinyard_bench_report::Absence;
use pinyard_bench_report::catalogue::{Benchmark, Program};
use std::path::{Path, PathBuf};

/// The folders in which they are looked for, in this order.
pub(crate) struct Programs {
    folders: Vec<PathBuf>,
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
            "build it with `cargo build --release -p pinyard-gpu-tests` (needs an MPI's development files \
             and libclang), and name its folder with --programs",
        ),
    }
}

impl Programs {
    /// `named` alone, or this command's folder and where `make install` puts programs.
    pub(crate) fn of(named: Option<&Path>) -> Result<Programs, Refusal> {
        if let Some(folder) = named {
            return Ok(Programs { folders: vec![folder.to_owned()] });
        }
        let own = own_folder()?;
        let installed = own.join("../libexec/pinyard");
        Ok(Programs { folders: vec![own, installed] })
    }

    /// The program of `benchmark`, or why there is none.
    pub(crate) fn of_benchmark(&self, benchmark: &Benchmark) -> Result<PathBuf, Absence> {
        let (name, remedy) = known(benchmark.program);
        let found = self.folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file());
        found.ok_or_else(|| {
            let folders: Vec<String> =
                self.folders.iter().map(|folder| folder.display().to_string()).collect();
            Absence::new(format!("{name} is not in {}", folders.join(" or ")), remedy)
        })
    }
}
