//! Why a monitor could not be imported.

use crate::monitor::KEYS;
use pinyard_hooks::Report;
use std::collections::TryReserveError;
use thiserror::Error;

/// What stood in the way of [`import_monitor`](super::import_monitor).
#[derive(Debug, Error)]
pub enum ImportError {
    /// The loader found no libfabric, or one without the functions needed.
    #[error("libfabric cannot be used: {text}")]
    Absent {
        /// The loader's own words.
        text: String,
    },
    /// A libfabric whose cache takes no monitor, or hangs by itself.
    #[error("libfabric {}.{} is too old: a memory monitor needs {}.{}", version.0, version.1, oldest.0, oldest.1)]
    TooOld {
        /// Major and minor number found.
        version: (u32, u32),
        /// The oldest that will do.
        oldest: (u32, u32),
    },
    /// libfabric would ignore an imported monitor.
    #[error(
        "FI_MR_CACHE_MONITOR is {value}: libfabric takes that monitor and ignores an imported one; \
         unset the variable"
    )]
    MonitorChosen {
        /// Value of the variable.
        value: String,
    },
    /// Calls of some function escape the hooks.
    #[error("calls that change mappings escape the hooks:{}", escaping(report))]
    HooksIncomplete {
        /// A line per function.
        report: Box<Report>,
    },
    /// All places for subscribers of events are taken.
    #[error(
        "all {} places for subscribers of memory events are taken: close a registry",
        pinyard_hooks::MAX_SUBSCRIBERS
    )]
    NoSink,
    /// No memory for what the caches hold.
    #[error("a table of {KEYS} registrations: {0}; raise the limit (ulimit -v), or free memory")]
    NoMemory(#[from] TryReserveError),
    /// Another monitor was imported before, or a cache runs already.
    #[error(
        "fi_import_fid(mr_cache) returned -FI_EBUSY (libfabric {}.{}): another monitor was imported, or a \
         domain with a cache is open; import before MPI_Init and before the first fi_domain",
        version.0, version.1
    )]
    Busy {
        /// Of libfabric, major and minor number.
        version: (u32, u32),
    },
    /// A function of libfabric refused.
    #[error("{call} returned {code}: {text}")]
    Call {
        /// The call with its arguments in words.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// libfabric's text for it.
        text: String,
    },
    /// The helper thread could not be started.
    #[error("pthread_create(helper thread, 128 KiB stack): {0}")]
    Thread(#[source] std::io::Error),
}

/// The lines of the functions whose calls escape.
fn escaping(report: &Report) -> String {
    report.missed().map(|line| format!(" [{line}]")).collect()
}
