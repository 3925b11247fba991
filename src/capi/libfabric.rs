//! pinyard's memory monitor under libfabric's own registration caches.
#![allow(unsafe_code, non_camel_case_types)]

use super::sized::{self, Sized_};
use super::status::{Failure, IntoFailure, at_boundary, failed, pny_status, pny_status::*};
use crate::libfabric::{self, ImportError};

impl IntoFailure for ImportError {
    fn into_failure(self) -> Failure {
        let status = match &self {
            ImportError::Absent { .. } | ImportError::TooOld { .. } => PNY_ERR_ABSENT,
            ImportError::MonitorChosen { .. } | ImportError::Call { .. } => PNY_ERR_REFUSED,
            ImportError::HooksIncomplete { .. } => PNY_ERR_HOOKS_INCOMPLETE,
            ImportError::Busy { .. } => PNY_ERR_BUSY,
            ImportError::NoSink | ImportError::NoMemory(_) | ImportError::Thread(_) => PNY_ERR_RESOURCES,
        };
        Failure::new(status, self.to_string())
    }
}

/// What the monitor has done since the import.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pny_libfabric_monitor_counts {
    /// sizeof(pny_libfabric_monitor_counts).
    pub size: usize,
    /// Lookups that found an entry and asked whether it is still good.
    pub valid_calls: u64,
    /// Those that were told no.
    pub stale_answers: u64,
    /// Entries that libfabric was allowed to cache.
    pub subscriptions: u64,
    /// Entries that it was told not to cache.
    pub refusals: u64,
    /// Changes of mappings drained from the hooks.
    pub events: u64,
    /// Stale ranges taken out of libfabric's caches in the background.
    pub deliveries: u64,
    /// Ranges known at the moment.
    pub keys: u64,
}

// SAFETY: integers.
unsafe impl Sized_ for pny_libfabric_monitor_counts {
    const NAME: &'static str = "pny_libfabric_monitor_counts";
    const FIRST: usize = 64;
}

/// Installs the hooks and puts pinyard's memory monitor under libfabric's registration
/// caches, for the rest of the process. Call it before MPI_Init and before the first
/// fi_domain: Open MPI then leaves out its own monitor, whose notifications hang when an
/// allocator releases pages from inside malloc. Once it has succeeded, a further call does
/// nothing. Starts a thread.
///
/// On failure nothing is imported:
/// PNY_ERR_ABSENT            no libfabric.so.1, or older than 1.14
/// PNY_ERR_REFUSED           FI_MR_CACHE_MONITOR is set, or libfabric refused
/// PNY_ERR_HOOKS_INCOMPLETE  as pny_hooks_install
/// PNY_ERR_BUSY              another monitor or a cache was there first
/// PNY_ERR_RESOURCES         no thread or no subscriber's place
#[unsafe(no_mangle)]
pub extern "C" fn pny_libfabric_import_monitor() -> pny_status {
    at_boundary("pny_libfabric_import_monitor", || libfabric::import_monitor().map_err(failed))
}

/// Fills `*counts`, whose `size` the caller has set.
///
/// PNY_ERR_INVALID: null, or `size` is of no version of this structure.
/// PNY_ERR_NOT_READY: no monitor was imported. `*counts` is untouched then.
///
/// # Safety
/// `counts` is null or writable for its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_libfabric_monitor_stats(
    counts: *mut pny_libfabric_monitor_counts,
) -> pny_status {
    at_boundary("pny_libfabric_monitor_stats", || {
        sized::required("counts", counts.cast())?;
        // SAFETY: the caller's contract.
        unsafe { sized::claimed(counts) }?;
        let stats = libfabric::monitor_stats().ok_or_else(|| {
            Failure::new(PNY_ERR_NOT_READY, "no monitor was imported; call pny_libfabric_import_monitor")
        })?;
        let filled = pny_libfabric_monitor_counts {
            size: 0,
            valid_calls: stats.valid_calls,
            stale_answers: stats.stale_answers,
            subscriptions: stats.subscriptions,
            refusals: stats.refusals,
            events: stats.events,
            deliveries: stats.deliveries,
            keys: stats.keys,
        };
        // SAFETY: the caller's contract.
        unsafe { sized::write(counts, &filled) }
    })
}
