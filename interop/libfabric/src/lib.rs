//! pinyard's hooks under libfabric's registration cache.
//!
//! libfabric caches memory registrations and needs to hear of every change of a
//! mapping. Its own monitor and the one that Open MPI imports tell it from
//! inside the hook, under a lock that the cache holds while it allocates: an
//! allocator that gives pages back from inside malloc hangs the process
//! ([Open MPI #13149], [libfabric #10879], [libfabric #9594]). The monitor here
//! is a *pull* monitor: hooks leave a word and go on, and the cache asks at every
//! lookup.
//!
//! A copy of the cache accepts one imported monitor per process, before its first
//! domain: import before `MPI_Init`. Open MPI's own import then gets `-FI_EBUSY` and
//! goes on without. A provider that is loaded as a file of its own
//! (`libverbs-fi.so`) carries a copy of libfabric's cache, with a monitor of its own.
//!
//! ```text
//! copy.rs     which copies of the cache there are, and the way into each
//! import.rs   fi_import_fid, the callbacks
//! monitor.rs  what a callback answers, and which race remains
//! table.rs    what the caches of one copy hold
//! helper.rs   the thread that delivers stale ranges and verifies the hooks
//! ```
//!
//! [Open MPI #13149]: https://github.com/open-mpi/ompi/issues/13149
//! [libfabric #10879]: https://github.com/ofiwg/libfabric/issues/10879
//! [libfabric #9594]: https://github.com/ofiwg/libfabric/issues/9594
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod abi;
mod copy;
mod error;
mod helper;
mod import;
mod monitor;
mod table;
#[cfg(test)]
mod tests;

pub use error::ImportError;
pub use helper::{PERIOD, every_round};
pub use import::check_environment;
pub use monitor::Stats;

use copy::Copy;
use import::Imported;
use pinyard_hooks::Report;
use std::ffi::OsStr;
use std::sync::{Mutex, MutexGuard};

const LIBRARY: &str = "libfabric.so.1";

/// Each copy's identity and the monitor that is under it.
static IMPORTED: Mutex<Vec<(usize, &'static Imported)>> = Mutex::new(Vec::new());

fn imported() -> MutexGuard<'static, Vec<(usize, &'static Imported)>> {
    IMPORTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What the helper does for the monitors.
fn round(complete: bool) {
    let all: Vec<_> = imported().iter().map(|&(_, imported)| imported).collect();
    for imported in all {
        imported.monitor().trust(complete);
        imported.deliver();
    }
}

/// Installs the hooks and puts the monitor under the caches of the process's
/// `libfabric.so.1`, for the rest of the process. Once that has succeeded, a further
/// call does nothing.
///
/// Call it before `MPI_Init` and before the first `fi_domain`, best before other
/// threads run (see [`pinyard_hooks::FunctionReport::boundary`]). Not for hooks
/// and signal handlers.
///
/// # Errors
/// [`ImportError`] says which step was refused; nothing has been imported then.
/// Hooks that were installed stay.
pub fn import_monitor() -> Result<(), ImportError> {
    let copy = Copy::core(OsStr::new(LIBRARY))?;
    if imported().iter().any(|&(known, _)| known == copy.identity()) {
        return Ok(());
    }
    check_environment()?;
    let report = pinyard_hooks::install();
    if !report.is_complete() {
        return Err(ImportError::HooksIncomplete { report: Box::new(report) });
    }
    import_into(copy, true).map(drop)
}

/// A loaded object that has a copy of the registration cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// libfabric.
    Core,
    /// A provider that libfabric has loaded from a file of its own, and started.
    Provider,
}

/// What an import found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Import {
    /// Of libfabric, major and minor number.
    pub version: (u32, u32),
    /// There was no monitor of ours under this copy before.
    pub first: bool,
}

/// Puts a monitor under the caches of the object that the loader knows as `name`.
/// `report` is what [`pinyard_hooks::install`] said: where calls escape, the monitor
/// is put in all the same, and libfabric, which is told "no" then, caches nothing:
/// slower, and nothing hangs. Otherwise as [`import_monitor`].
///
/// # Errors
/// As [`import_monitor`]; [`ImportError::Absent`] where the provider exports no way
/// to its cache.
pub fn import_monitor_into(name: &OsStr, holder: Holder, report: &Report) -> Result<Import, ImportError> {
    let copy = match holder {
        Holder::Core => Copy::core(name),
        Holder::Provider => Copy::provider(name),
    }?;
    import_into(copy, report.is_complete())
}

fn import_into(copy: Copy, trusted: bool) -> Result<Import, ImportError> {
    let mut imported = imported();
    let (identity, version) = (copy.identity(), copy.version);
    let first = !imported.iter().any(|&(known, _)| known == identity);
    if first {
        check_environment()?;
        imported.push((identity, import::import(copy, trusted)?));
    }
    Ok(Import { version, first })
}

/// What the monitors have done so far, together; `None` before the first import.
pub fn monitor_stats() -> Option<Stats> {
    imported().iter().map(|(_, imported)| imported.monitor().stats()).reduce(|sum, next| sum + next)
}

/// Whether a cache of libfabric's has been attached to a monitor of ours, which a domain
/// does before it registers anything. False in a process whose domains cache nothing, or
/// cache under another monitor.
pub fn monitor_is_attached() -> bool {
    imported().iter().any(|(_, imported)| imported.monitor().is_attached())
}

/// Looks whether the hooks are still in place and repairs what another library
/// has patched over, as [`pinyard_hooks::verify`] does; where calls escape, the
/// monitors answer "no" from now on. Call it after a library was loaded that
/// patches libc (`MPI_Init` does that); the helper thread does it every 50 ms.
///
/// Not for hooks and signal handlers, and not from inside libfabric.
pub fn verify_hooks() -> bool {
    let complete = pinyard_hooks::verify();
    for (_, imported) in imported().iter() {
        imported.monitor().trust(complete);
    }
    complete
}
