//! Leases: a registration that is held, and a key that is only looked up.
#![allow(unsafe_code, non_camel_case_types)]

use super::backend::{pny_access, pny_key};
use super::leases::{self, Deposited};
use super::registry::{REGISTRIES, pny_registry};
use super::sized;
use super::status::{Failure, IntoFailure, at_quick_boundary, failed, pny_status, pny_status::*};
use core::ffi::c_void;
use pinyard_boundary::from_pointer;
use pinyard_hooks::Uncancelled;
use pinyard_registry::{Access, GetError, Lease};

/// A registration that is held. Filled by pny_get; read it, do not write it. A copy is the
/// same lease.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct pny_lease {
    /// What pny_put takes; 0: nothing is held.
    pub ticket: u64,
    /// What the device needs.
    pub key: pny_key,
    /// Address of the registration's first byte, a multiple of 4096, at or below the
    /// buffer's.
    pub base: u64,
    /// Bytes registered from there, a multiple of 4096.
    pub length: u64,
}

impl IntoFailure for GetError {
    #[cold]
    fn into_failure(self) -> Failure {
        let status = match &self {
            GetError::Range(_) | GetError::TooLong { .. } => PNY_ERR_INVALID,
            GetError::Unmapped { .. } => PNY_ERR_UNMAPPED,
            GetError::ReadOnly { .. } => PNY_ERR_READ_ONLY,
            GetError::Memlock { .. }
            | GetError::Budget { .. }
            | GetError::TooManyRegions { .. }
            | GetError::TooManyUnderWay { .. } => PNY_ERR_LIMIT,
            GetError::Forked => PNY_ERR_FORKED,
            _ => PNY_ERR_BACKEND,
        };
        Failure::new(status, self.to_string())
    }
}

/// Access flags that there are.
pub(super) fn access_of(bits: pny_access) -> Result<Access, Failure> {
    Access::from_bits(bits).ok_or_else(|| {
        let cause = format!(
            "access {bits:#x} has a bit that is none of PNY_LOCAL_WRITE, PNY_REMOTE_WRITE, PNY_REMOTE_READ and PNY_REMOTE_ATOMIC"
        );
        Failure::new(PNY_ERR_INVALID, cause)
    })
}

/// A registration that covers `length` bytes at `address` and allows `access`, from the
/// cache or newly made, held until pny_put. The memory is neither read nor written.
///
/// While it is held the device may use the pages that are mapped now. Unmapping them
/// meanwhile does not end the registration: its holder still has it, but nobody else
/// finds it. Where other threads change the mapping again and again while it is being
/// registered, the registration is for this caller alone and ends with pny_put; of pages
/// that changed meanwhile the device may have the old ones.
///
/// A hit takes no lock and tens of nanoseconds; a miss takes as long as the backend.
/// `*lease` is overwritten, so it must not hold another one. Any thread; not for signal
/// handlers.
///
/// PNY_ERR_INVALID    null, an empty or wrapping range, unknown access flags
/// PNY_ERR_STALE      not a registry
/// PNY_ERR_UNMAPPED   nothing is mapped at a page of the range
/// PNY_ERR_READ_ONLY  the access writes, and the mapping is read-only
/// PNY_ERR_LIMIT      a limit is used up by what is held; the text says by whom
/// PNY_ERR_FORKED     the registry is the parent process's
/// PNY_ERR_RESOURCES  four million leases are held
/// PNY_ERR_BACKEND    the backend failed
/// On an error `*lease` is all 0.
///
/// # Safety
/// `lease` is writable. Nobody destroys the registry meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_get(
    registry: pny_registry,
    address: *const c_void,
    length: usize,
    access: pny_access,
    lease: *mut pny_lease,
) -> pny_status {
    at_quick_boundary("pny_get", || {
        sized::required("lease", lease.cast())?;
        // SAFETY: the caller's contract.
        unsafe { lease.write(pny_lease::default()) };
        let owner = from_pointer(registry);
        let (registry, access) = (&REGISTRIES.get(owner)?.registry, access_of(access)?);
        let range = (address.cast::<u8>(), length);
        let got = match registry.get_cached(range, access) {
            Some(hit) => hit,
            None => {
                let _uncancelled = Uncancelled::now();
                registry.get(range, access).map_err(failed)?
            }
        };
        let (key, base, length) = (got.key().into(), got.base() as u64, got.len() as u64);
        let raw = got.into_raw();
        let Some(ticket) = leases::give(Deposited { registry: owner, lease: raw }) else {
            // SAFETY: laid down just now.
            drop(unsafe { Lease::from_raw(&REGISTRIES.get(owner)?.registry, raw) });
            return Err(Failure::new(PNY_ERR_RESOURCES, "four million leases are held"));
        };
        // SAFETY: the caller's contract.
        unsafe { lease.write(pny_lease { ticket, key, base, length }) };
        Ok(())
    })
}

/// Gives a lease back and sets its `ticket` to 0. The registration stays in the cache.
/// Takes no lock and never calls the backend. Any thread; not for signal handlers.
///
/// PNY_ERR_INVALID  `lease` is null
/// PNY_ERR_STALE    it was given back before, here or in a copy of the structure
///
/// # Safety
/// `lease` is readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_put(lease: *mut pny_lease) -> pny_status {
    at_quick_boundary("pny_put", || {
        sized::required("lease", lease.cast())?;
        // SAFETY: the caller's contract.
        let ticket = unsafe { (&raw const (*lease).ticket).read() };
        let Deposited { registry, lease: raw } = leases::take(ticket)?;
        // SAFETY: as above.
        unsafe { (&raw mut (*lease).ticket).write(0) };
        // SAFETY: laid down by `pny_get` with this registry, and the ticket was good once.
        drop(unsafe { Lease::from_raw(&REGISTRIES.get_held(registry)?.registry, raw) });
        Ok(())
    })
}

/// The key of a cached registration that covers the range, without holding it. The caller
/// keeps the buffer mapped while it uses the key, and a limit of the registry may
/// deregister it at any time: for registries whose budget is not exceeded. Cheaper than
/// pny_get: nothing is written but `*key`.
///
/// PNY_ERR_INVALID    null, or the range or the access is none
/// PNY_ERR_STALE      not a registry, or one that was destroyed
/// PNY_ERR_NOT_FOUND  there is none, or changes wait to be applied, or the registry is the
///                    parent process's; pny_get says which
///
/// # Safety
/// `key` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_lookup(
    registry: pny_registry,
    address: *const c_void,
    length: usize,
    access: pny_access,
    key: *mut pny_key,
) -> pny_status {
    at_quick_boundary("pny_lookup", || {
        sized::required("key", key.cast())?;
        let registry = &REGISTRIES.get(from_pointer(registry))?.registry;
        match registry.lookup((address.cast::<u8>(), length), access_of(access)?) {
            Some(found) => {
                // SAFETY: the caller's contract.
                unsafe { key.write(found.into()) };
                Ok(())
            }
            None => Err(Failure::new(PNY_ERR_NOT_FOUND, "no cached registration covers the range")),
        }
    })
}
