//! What can go wrong, one enum per operation: the cause, the call that failed
//! with its errno and arguments, and what the caller can do about it.

use crate::backend::{BackendError, OpenError};
use crate::budget::Holding;
use crate::range::{ADDRESS_LIMIT, PageRange};
use pinyard_hooks::Report;
use thiserror::Error;

/// A range that names no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RangeError {
    /// The length is 0.
    #[error("empty range at {start:#x}: a registration needs at least one byte")]
    Empty {
        /// First byte.
        start: usize,
    },
    /// The address is null.
    #[error("null pointer with a length of {len} bytes")]
    Null {
        /// Length in bytes.
        len: usize,
    },
    /// Address plus length exceeds the address space.
    #[error("range at {start:#x} of {len} bytes wraps around the address space: check the length")]
    WrapsAround {
        /// First byte.
        start: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The range ends above the user space.
    #[error("range at {start:#x} of {len} bytes ends above {limit:#x}, the end of the user space", limit = ADDRESS_LIMIT)]
    AboveLimit {
        /// First byte.
        start: usize,
        /// Length in bytes.
        len: usize,
    },
}

impl RangeError {
    /// The reason why `start`, `len` names no memory.
    #[cold]
    pub(crate) fn of(start: usize, len: usize) -> RangeError {
        if len == 0 {
            RangeError::Empty { start }
        } else if start == 0 {
            RangeError::Null { len }
        } else if start.checked_add(len).is_none() {
            RangeError::WrapsAround { start, len }
        } else {
            RangeError::AboveLimit { start, len }
        }
    }
}

/// Why [`Registry::get`](crate::Registry::get) failed. The cache is as usable
/// afterwards as it was before.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GetError {
    /// The range names no memory.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Longer than the backend can register in one piece.
    #[error(
        "{range}: backend {backend} registers at most {limit} bytes in one piece; register the buffer in parts"
    )]
    TooLong {
        /// The pages asked for.
        range: PageRange,
        /// The backend's name.
        backend: &'static str,
        /// Its limit in bytes.
        limit: usize,
    },
    /// A page of the range is not mapped.
    #[error("{range}: nothing is mapped at {hole:#x} ({source}); was the buffer freed?")]
    Unmapped {
        /// The pages asked for.
        range: PageRange,
        /// First byte that is not mapped.
        hole: usize,
        /// What the backend said.
        source: Box<BackendError>,
    },
    /// The pages cannot be written, and the registration needs that.
    #[error("{range}: the mapping at {at:#x} is read-only ({source}); {remedy}")]
    ReadOnly {
        /// The pages asked for.
        range: PageRange,
        /// First byte of the first mapping without write permission.
        at: usize,
        /// What the caller can do.
        remedy: &'static str,
        /// What the backend said.
        source: Box<BackendError>,
    },
    /// RLIMIT_MEMLOCK is used up.
    #[error(
        "{range}: RLIMIT_MEMLOCK allows {limit} bytes, {pinned} are pinned by this registry, and other pins of the process or user count too ({source}); raise `ulimit -l` (on a cluster: LimitMEMLOCK, PropagateResourceLimits) or lower the registry's budget"
    )]
    Memlock {
        /// The pages asked for.
        range: PageRange,
        /// The soft limit in bytes.
        limit: u64,
        /// Bytes that this registry has pinned.
        pinned: usize,
        /// What the backend said.
        source: Box<BackendError>,
    },
    /// The registry's byte budget is used up by registrations in use.
    #[error(
        "{range}: the budget of {budget} bytes is used up: {pinned} bytes are pinned and in use ({holdings}; RLIMIT_MEMLOCK is {memlock}); {remedy}"
    )]
    Budget {
        /// The pages asked for.
        range: PageRange,
        /// The registry's budget in bytes.
        budget: usize,
        /// Bytes pinned now, by every registry of the budget.
        pinned: usize,
        /// What the caller can do.
        remedy: &'static str,
        /// Who holds them.
        holdings: Holdings,
        /// The process's soft RLIMIT_MEMLOCK.
        memlock: Memlock,
    },
    /// As many regions are in use as the registry or its backend can have.
    #[error(
        "{range}: all {limit} regions that backend {backend} and this registry allow are in use; give leases back, or use fewer and larger buffers"
    )]
    TooManyRegions {
        /// The pages asked for.
        range: PageRange,
        /// The backend's name.
        backend: &'static str,
        /// Regions allowed.
        limit: usize,
    },
    /// As many registrations are under way as a registry can follow, and this one
    /// was asked for from inside one of them.
    #[error("{range}: {limit} registrations are under way, each waiting for the next")]
    TooManyUnderWay {
        /// The pages asked for.
        range: PageRange,
        /// Registrations that can be under way at a time.
        limit: usize,
    },
    /// This process is a fork of the one that made the registry.
    #[error(
        "this registry belongs to the parent process: pinned pages and device handles do not survive a fork; make a registry after forking"
    )]
    Forked,
    /// The backend refused for a reason of its own.
    #[error("{range}: {source}")]
    Backend {
        /// The pages asked for.
        range: PageRange,
        /// What the backend said.
        source: Box<BackendError>,
    },
}

/// A limit in bytes that may be none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memlock(pub Option<u64>);

impl std::fmt::Display for Memlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(bytes) => write!(f, "{bytes} bytes"),
            None => f.write_str("unlimited"),
        }
    }
}

/// What the registries of a budget hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holdings(pub Vec<Holding>);

impl std::fmt::Display for Holdings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, holding) in self.0.iter().enumerate() {
            write!(f, "{}{holding}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// Why a registry could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No backend was given.
    #[error("a registry needs a backend")]
    NoBackend,
    /// Some function's calls would escape the hooks.
    #[error("changes of mappings would go unseen, so nothing may be cached:\n{}", missed(.0))]
    HooksIncomplete(Box<Report>),
    /// The environment variable `PINYARD_HOOKS` names no mechanism.
    #[error("PINYARD_HOOKS is {value:?}: it must be one of {}, or unset", mechanisms())]
    UnknownMechanism {
        /// What it says.
        value: String,
    },
    /// The mechanism that `PINYARD_HOOKS` names does not work here.
    #[error(
        "PINYARD_HOOKS is {name}: {why}; userfaultfd needs Linux 5.11 and a seccomp filter that allows it; or unset the variable"
    )]
    Mechanism {
        /// Its name.
        name: &'static str,
        /// What failed.
        why: pinyard_hooks::Why,
    },
    /// The process has as many registries as the hooks can serve.
    #[error("{limit} registries exist in this process, as many as the hooks can serve; share one")]
    TooManyRegistries {
        /// Registries allowed.
        limit: usize,
    },
    /// Address space for the map was refused.
    #[error("mmap of the region map failed: {source}; see `ulimit -v` and vm.overcommit_memory")]
    Map {
        /// mmap's errno.
        source: std::io::Error,
    },
    /// The trace that `PINYARD_TRACE` asks for could not be begun.
    #[error("{0}")]
    Trace(&'static pinyard_trace::StartError),
    /// The reaper's thread was refused.
    #[error("the reaper's thread could not be started: {source}")]
    Thread {
        /// The cause.
        source: std::io::Error,
    },
}

#[cfg(not(loom))]
fn mechanisms() -> String {
    crate::trust::Mechanism::ALL.map(crate::trust::Mechanism::name).join(", ")
}

#[cfg(loom)]
fn mechanisms() -> String {
    String::new()
}

fn missed(report: &Report) -> String {
    let lines: Vec<String> = report.missed().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

/// Any error of this crate.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// From [`Registry::get`](crate::Registry::get).
    #[error(transparent)]
    Get(#[from] GetError),
    /// From [`Builder::build`](crate::Builder::build).
    #[error(transparent)]
    Build(#[from] BuildError),
    /// From a backend's constructor.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// From the constructor of a backend that opens a device or a library.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// From a range.
    #[error(transparent)]
    Range(#[from] RangeError),
}
