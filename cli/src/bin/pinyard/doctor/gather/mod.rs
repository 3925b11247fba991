//! Gathers [`Facts`]: files of `/proc` and `/sys` below a root, what this process may do,
//! and what libraries answer in processes of their own.

mod devices;
mod libraries;
mod machine;
pub(crate) mod probe;
mod process;

use super::facts::{Facts, Gpus, Limits};
use super::settings;
use pinyard::registry::machine::{may_lock_anything, memory_limit};
use std::fs;
use std::path::{Path, PathBuf};

/// The file system that is examined.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    /// This machine's own.
    pub(crate) fn own() -> Root {
        Root(PathBuf::from("/"))
    }

    #[cfg(test)]
    pub(crate) fn of(path: &Path) -> Root {
        Root(path.to_owned())
    }

    /// Where `path`, which is absolute, is.
    fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A file's text without the space around it; `None` where it cannot be read.
    fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    /// The names in a folder, sorted; none where there is no such folder.
    fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// All of this machine's.
pub(crate) fn gather() -> Facts {
    let root = Root::own();
    // Each answer may take a while, and they do not depend on each other.
    let asked = libraries::Asked::ask(&root);
    let cuda = devices::has_gpus(&root).then(probe::Question::cuda);
    let mut facts = of_files(&root);
    if facts.kernel.release.is_empty() {
        process::without_proc(&mut facts);
    }
    facts.kernel.io_uring = process::io_uring();
    facts.kernel.userfaultfd = process::userfaultfd();
    (facts.limits.memlock, facts.limits.memlock_hard) = process::memlock();
    facts.limits.processors = process::processors();
    facts.hooks = process::hooks();
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    facts.environment = std::env::vars_os()
        .map(|(name, value)| (text(name), text(value)))
        .filter(|(name, value)| {
            settings::is_looked_at(name) && (!value.is_empty() || settings::is_pinyards(name))
        })
        .collect();
    facts.under_slurm = std::env::var_os("SLURM_JOB_ID").is_some();
    (facts.mpi, facts.libfabric, facts.ucx) = asked.answers();
    facts.preload = libraries::preload();
    // Without the program, which is built for an MPI, nothing was tried either.
    facts.tried = crate::probe::known().unwrap_or_default();
    if let Some(cuda) = cuda {
        devices::add_cuda(&mut facts.gpus, cuda.answer());
    }
    facts
}

/// What files tell of this machine, its devices among it.
pub(crate) fn devices() -> Facts {
    of_files(&Root::own())
}

/// What files tell.
fn of_files(root: &Root) -> Facts {
    Facts {
        host: machine::host(root),
        pinyard: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: machine::kernel(root),
        limits: Limits {
            may_lock_anything: may_lock_anything(&|path| root.text(path)),
            cgroup_memory: memory_limit(&|path| root.text(path)),
            memory: machine::memory(root),
            nodes: machine::nodes(root).len() as u64,
            ..Limits::default()
        },
        nics: devices::nics(root),
        gpus: Gpus { distances: machine::distances(root), ..devices::gpus(root) },
        ..Facts::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
