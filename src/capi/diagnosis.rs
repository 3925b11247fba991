//! What a registry says of itself.
#![allow(unsafe_code, non_camel_case_types)]

use super::backend::pny_access;
use super::get::access_of;
use super::registry::{REGISTRIES, pny_registry};
use super::sized::{self, Sized_};
use super::status::{at_boundary, pny_status};
use core::ffi::{c_char, c_void};
use pinyard_boundary::from_pointer;

/// Counters of a registry. All but the last three only grow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pny_registry_counts {
    /// sizeof(pny_registry_counts).
    pub size: usize,
    /// pny_get served by a region that was there.
    pub hits: u64,
    /// pny_get that had to register, or failed to.
    pub misses: u64,
    /// Registrations made by the backend.
    pub registrations: u64,
    /// Registrations taken back by the backend.
    pub deregistrations: u64,
    /// Registrations that the backend refused to take back.
    pub failed_deregistrations: u64,
    /// Regions taken out because their mapping changed, or on request.
    pub invalidations: u64,
    /// Regions that a larger or more permissive one replaced.
    pub merges: u64,
    /// Regions taken out to stay within the limits.
    pub evictions: u64,
    /// Times that every region was taken out.
    pub flushes: u64,
    /// Changes that touched too much to be marked by a hook, and were left for later.
    pub overflows: u64,
    /// Registrations made again because the mapping changed meanwhile.
    pub retries: u64,
    /// Registrations that served their caller alone and were not kept.
    pub uncached: u64,
    /// Nanoseconds that the backend took to register, all threads together.
    pub registering_ns: u64,
    /// Half of the registrations took less than this, in nanoseconds.
    pub registering_p50_ns: u64,
    /// 99 of 100 took less than this.
    pub registering_p99_ns: u64,
    /// Nanoseconds that the backend took to deregister.
    pub deregistering_ns: u64,
    /// Half of the deregistrations took less than this, in nanoseconds.
    pub deregistering_p50_ns: u64,
    /// 99 of 100 took less than this.
    pub deregistering_p99_ns: u64,
    /// Regions that a pny_get can find now.
    pub regions: u64,
    /// Regions retired but still held, or not yet deregistered.
    pub graveyard: u64,
    /// Bytes pinned now, those being registered or retired included.
    pub pinned_bytes: u64,
}

// SAFETY: integers.
unsafe impl Sized_ for pny_registry_counts {
    const NAME: &'static str = "pny_registry_counts";
    const FIRST: usize = 176;
}

/// Fills `*counts`, whose `size` the caller has set. Takes the registry's lock: not for hot
/// paths. All 0 in a forked child.
///
/// PNY_ERR_INVALID  null, or `size` is none of this structure's
/// PNY_ERR_STALE    not a registry, or one that was destroyed
///
/// # Safety
/// `counts` is writable for its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_registry_stats(
    registry: pny_registry,
    counts: *mut pny_registry_counts,
) -> pny_status {
    at_boundary("pny_registry_stats", || {
        sized::required("counts", counts.cast())?;
        // SAFETY: the caller's contract.
        unsafe { sized::claimed(counts) }?;
        let now = REGISTRIES.get(from_pointer(registry))?.registry.stats();
        let (registering, deregistering) = (now.registering, now.deregistering);
        let quantile = |times: pinyard_registry::Times, quantile| times.quantile(quantile).as_nanos() as u64;
        let filled = pny_registry_counts {
            size: 0,
            hits: now.hits,
            misses: now.misses,
            registrations: now.registrations,
            deregistrations: now.deregistrations,
            failed_deregistrations: now.failed_deregistrations,
            invalidations: now.invalidations,
            merges: now.merges,
            evictions: now.evictions,
            flushes: now.flushes,
            overflows: now.overflows,
            retries: now.retries,
            uncached: now.uncached,
            registering_ns: registering.total().as_nanos() as u64,
            registering_p50_ns: quantile(registering, 0.5),
            registering_p99_ns: quantile(registering, 0.99),
            deregistering_ns: deregistering.total().as_nanos() as u64,
            deregistering_p50_ns: quantile(deregistering, 0.5),
            deregistering_p99_ns: quantile(deregistering, 0.99),
            regions: now.regions,
            graveyard: now.graveyard,
            pinned_bytes: now.pinned_bytes,
        };
        // SAFETY: the caller's contract.
        unsafe { sized::write(counts, &filled) }
    })
}

/// Says in words why the range is, or is not, served from the cache at this moment: cut to
/// `capacity` bytes as snprintf(3) does, with the whole length in `*length` where that is
/// not null. Takes the registry's lock: for diagnosis. In a forked child it says that.
///
/// PNY_ERR_INVALID  `registry` is null, or `text` with a capacity; the range or the access
///                  is none
/// PNY_ERR_STALE    not a registry, or one that was destroyed
///
/// # Safety
/// `text` is writable for `capacity` bytes, or null with a capacity of 0; `length` is
/// writable or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_explain(
    registry: pny_registry,
    address: *const c_void,
    size: usize,
    access: pny_access,
    text: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> pny_status {
    at_boundary("pny_explain", || {
        let registry = &REGISTRIES.get(from_pointer(registry))?.registry;
        let said = registry.explain((address.cast::<u8>(), size), access_of(access)?).to_string();
        // SAFETY: the caller's contract.
        unsafe { sized::text(&said, text, capacity, length) }
    })
}
