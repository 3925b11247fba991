//! Where the programs that measure are.

use crate::demo::{Refusal, own_folder};
use pinyard_bench_report::Absence;
use pinyard_bench_report::catalogue::{Benchmark, Program};
use std::path::PathBuf;

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
             and libclang), and name its folder with one more --programs",
        ),
    }
}

impl Programs {
    /// Those `named` alone, or this command's folder and where `make install` puts programs.
    pub(crate) fn of(named: &[PathBuf]) -> Result<Programs, Refusal> {
        if !named.is_empty() {
            return Ok(Programs { folders: named.to_owned() });
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use pinyard_bench_report::catalogue;
    use std::fs;

    #[test]
    fn each_program_is_taken_from_the_first_named_folder_that_has_it() {
        let root = tempfile::tempdir().unwrap();
        let folders = ["bench", "mpi"].map(|name| root.path().join(name));
        for (folder, programs) in
            folders.iter().zip([&["pinyard-bench"][..], &["pinyard-bench", "gpu-bandwidth"]])
        {
            fs::create_dir(folder).unwrap();
            programs.iter().for_each(|name| fs::write(folder.join(name), "").unwrap());
        }
        let of = |named: &[PathBuf], name: &str| {
            let wanted = catalogue::find(&[name.to_owned()]).unwrap();
            Programs::of(named).unwrap().of_benchmark(wanted[0])
        };
        assert_eq!(of(&folders, "cache.hit").unwrap(), folders[0].join("pinyard-bench"));
        assert_eq!(of(&folders, "mpi.gpu").unwrap(), folders[1].join("gpu-bandwidth"));
        assert!(of(&folders[..1], "mpi.gpu").is_err());
    }
}
