//! The rows of the table: which program runs with which cache.

use super::Refusal;
use crate::programs::Folders;
use serde::Serialize;
use std::path::PathBuf;

/// What a row is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Stale pages.
    NoHooks,
    /// The hang.
    Naive,
    /// Neither.
    Pinyard,
    /// Neither, and no registration after warm-up.
    Pool,
}

/// A row before it is run.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) allocator: &'static str,
    pub(crate) program: &'static str,
    pub(crate) cache: &'static str,
    /// Environment of the ranks.
    pub(crate) environment: &'static [(&'static str, &'static str)],
}

const fn purging(kind: Kind, name: &'static str, cache: &'static str) -> Spec {
    let program = "rounds-purging";
    Spec { kind, name, allocator: "purging", program, cache, environment: &[] }
}

/// The naive cache's hooks only work alone: UCX's and Open MPI's, where the MPI
/// loads them, would be written over them, and the cache would go stale instead.
const NO_OTHER_HOOKS: &[(&str, &str)] =
    &[("UCX_MEM_MMAP_HOOK_MODE", "none"), ("OMPI_MCA_memory", "^patcher")];

const NAIVE: Spec = Spec {
    kind: Kind::Naive,
    name: "naive cache",
    allocator: "purging",
    program: "rounds-naive",
    cache: "naive",
    environment: NO_OTHER_HOOKS,
};

/// Free pages go back to the system at once, not after a delay, and they are
/// small ones: io_uring counts a huge page whole against RLIMIT_MEMLOCK.
const PURGE_AT_ONCE: &[(&str, &str)] = &[("MIMALLOC_PURGE_DELAY", "0"), ("MIMALLOC_ALLOW_THP", "0")];

const fn mimalloc(kind: Kind, name: &'static str, cache: &'static str) -> Spec {
    let program = "rounds-mimalloc";
    Spec { kind, name, allocator: "mimalloc", program, cache, environment: PURGE_AT_ONCE }
}

/// In the order of the table.
pub(crate) const ALL: &[Spec] = &[
    purging(Kind::NoHooks, "no hooks", "no-hooks"),
    NAIVE,
    purging(Kind::Pinyard, "pinyard", "pinyard"),
    purging(Kind::Pool, "pinyard pool", "pool"),
    mimalloc(Kind::NoHooks, "no hooks", "no-hooks"),
    mimalloc(Kind::Pinyard, "pinyard", "pinyard"),
    mimalloc(Kind::Pool, "pinyard pool", "pool"),
];

/// The program of `spec`.
pub(crate) fn program(folders: &Folders, spec: &Spec) -> Result<PathBuf, Refusal> {
    folders.find(spec.program).map_err(|why| {
        Refusal::new(
            why,
            "build it with `cargo build --release -p pinyard-mpi-tests --features mpi`, or install it with \
             `make install` (both need that MPI's development files and libclang), or name its folder with \
             --programs",
        )
    })
}
