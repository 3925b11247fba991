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
//! libfabric accepts one imported monitor per process, before its first cache:
//! import before `MPI_Init`. Open MPI's own import then gets `-FI_EBUSY` and goes
//! on without. Providers that are loaded as files of their own (`libverbs-fi.so`)
//! carry a copy of libfabric's cache that no import reaches.
//!
//! ```text
//! import.rs   fi_open, fi_import_fid, the callbacks
//! monitor.rs  what a callback answers, and which race remains
//! table.rs    what libfabric's caches hold
//! helper.rs   the thread that delivers stale ranges and verifies the hooks
//! ```
//!
//! [Open MPI #13149]: https://github.com/open-mpi/ompi/issues/13149
//! [libfabric #10879]: https://github.com/ofiwg/libfabric/issues/10879
//! [libfabric #9594]: https://github.com/ofiwg/libfabric/issues/9594

mod abi;
mod error;
mod helper;
mod import;
mod monitor;
mod table;
#[cfg(test)]
mod tests;

pub use error::ImportError;
pub use monitor::Stats;

use std::sync::{Mutex, MutexGuard};

static IMPORTED: Mutex<Option<&'static import::Imported>> = Mutex::new(None);

fn imported() -> MutexGuard<'static, Option<&'static import::Imported>> {
    IMPORTED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Installs the hooks and puts the monitor under libfabric's caches, for the
/// rest of the process. Once that has succeeded, a further call does nothing.
///
/// Call it before `MPI_Init` and before the first `fi_domain`, best before other
/// threads run (see [`pinyard_hooks::FunctionReport::boundary`]). Not for hooks
/// and signal handlers.
///
/// # Errors
/// [`ImportError`] says which step was refused; nothing has been imported then.
/// Hooks that were installed stay.
pub fn import_monitor() -> Result<(), ImportError> {
    let mut imported = imported();
    if imported.is_none() {
        *imported = Some(import::import()?);
    }
    Ok(())
}

/// What the monitor has done so far; `None` before the import.
pub fn monitor_stats() -> Option<Stats> {
    imported().map(|imported| imported.monitor().stats())
}

/// Looks whether the hooks are still in place and repairs what another library
/// has patched over, as [`pinyard_hooks::verify`] does; where calls escape, the
/// monitor answers "no" from now on. Call it after a library was loaded that
/// patches libc (`MPI_Init` does that); the helper thread does it every 100 ms.
///
/// Not for hooks and signal handlers, and not from inside libfabric.
pub fn verify_hooks() -> bool {
    let complete = pinyard_hooks::verify();
    if let Some(imported) = *imported() {
        imported.monitor().trust(complete);
    }
    complete
}
