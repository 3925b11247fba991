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

use boxcar::Vec as Kept;
use copy::{Copy, Load};
use import::Imported;
use pinyard_hooks::Report;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicUsize, Ordering::*};

const LIBRARY: &str = "libfabric.so.1";

/// Each copy's identity and the monitor that is under it. Only ever longer: a thread that
/// is in the loader, or in libfabric, keeps nobody from the list.
static IMPORTED: Kept<(usize, &Imported)> = Kept::new();

/// Copies by their identity, and how many threads are putting a monitor under each.
static PLACES: Kept<(usize, AtomicUsize)> = Kept::new();

fn imported() -> impl Iterator<Item = &'static Imported> {
    IMPORTED.iter().map(|(_, (_, imported))| *imported)
}

fn is_imported(identity: usize) -> bool {
    IMPORTED.iter().any(|(_, &(known, _))| known == identity)
}

/// Of two threads that come first, each may have a place of its own.
fn place(identity: usize) -> &'static AtomicUsize {
    let known = PLACES.iter().find(|(_, (known, _))| *known == identity);
    let (_, (_, threads)) = known.unwrap_or_else(|| {
        let index = PLACES.push((identity, AtomicUsize::new(0)));
        (index, &PLACES[index])
    });
    threads
}

fn is_under_way(identity: usize) -> bool {
    PLACES.iter().any(|(_, (known, threads))| *known == identity && threads.load(SeqCst) > 0)
}

/// What the helper does for the monitors.
fn round(complete: bool) {
    for imported in imported() {
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
    let copy = Copy::core(OsStr::new(LIBRARY), Load::Wanted)?;
    if is_imported(copy.identity()) {
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
        Holder::Core => Copy::core(name, Load::Never),
        Holder::Provider => Copy::provider(name),
    }?;
    import_into(copy, report.is_complete())
}

/// Under no lock: opening the library, and its cache, may wait for the loader, and a
/// constructor that the loader runs may come here. Of two threads that put a monitor in at
/// once, libfabric refuses one, or keeps the later one; both have found a monitor of ours
/// under the copy when they return.
fn import_into(copy: Copy, trusted: bool) -> Result<Import, ImportError> {
    let (identity, version) = (copy.identity(), copy.version);
    let found = |first| Ok(Import { version, first });
    if is_imported(identity) {
        return found(false);
    }
    check_environment()?;
    let threads = place(identity);
    threads.fetch_add(1, SeqCst);
    let result = import::import(copy, trusted).map(|imported| IMPORTED.push((identity, imported)));
    // SeqCst: before it looks for the others. The last of them says what is wrong.
    threads.fetch_sub(1, SeqCst);
    match result {
        Ok(_) => found(true),
        Err(ImportError::Busy { .. }) if is_imported(identity) || is_under_way(identity) => found(false),
        Err(error) => Err(error),
    }
}

/// What the monitors have done so far, together; `None` before the first import.
pub fn monitor_stats() -> Option<Stats> {
    imported().map(|imported| imported.monitor().stats()).reduce(|sum, next| sum + next)
}

/// Whether a cache of libfabric's has been attached to a monitor of ours, which a domain
/// does before it registers anything. False in a process whose domains cache nothing, or
/// cache under another monitor.
pub fn monitor_is_attached() -> bool {
    imported().any(|imported| imported.monitor().is_attached())
}

/// Looks whether the hooks are still in place and repairs what another library
/// has patched over, as [`pinyard_hooks::verify`] does; where calls escape, the
/// monitors answer "no" from now on. Call it after a library was loaded that
/// patches libc (`MPI_Init` does that); the helper thread does it every 50 ms.
///
/// Not for hooks and signal handlers, and not from inside libfabric.
pub fn verify_hooks() -> bool {
    let complete = pinyard_hooks::verify();
    for imported in imported() {
        imported.monitor().trust(complete);
    }
    complete
}
