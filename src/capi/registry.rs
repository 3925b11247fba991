//! The registration cache.
#![allow(unsafe_code, non_camel_case_types)]

use super::backend::{
    FLAGS, PNY_NOTIFY_ONLY, PNY_TRUST_SHARED_MEMORY, Release, Wanted, pny_backend, pny_backend_ops, pny_flags,
};
use super::callbacks::may_destroy;
use super::sized::{self, Sized_};
use super::status::{Failure, IntoFailure, at_boundary, failed, pny_status, pny_status::*};
use core::ffi::{c_char, c_void};
use pinyard_boundary::{Handles, from_pointer, to_pointer};
use pinyard_registry::{BuildError, Coarsen, Events, Registry};
use std::sync::Arc;

/// A registration cache. Only its address is used, as a name.
pub struct pny_registry_object {
    _private: [u8; 0],
}

/// Handle of a registration cache. Any thread may use it; whoever destroys it makes sure
/// that no other thread is inside a call with it.
pub type pny_registry = *mut pny_registry_object;

pub(super) static REGISTRIES: Handles<Kept> = Handles::new(1, "pny_registry");

/// A registry that C has a handle of.
pub(super) struct Kept {
    pub(super) registry: Registry,
    release: Option<Release>,
    /// Each pool that registers its slabs here has a copy.
    users: Arc<()>,
    /// The fork generation of the process that made it.
    forks: u32,
}

impl Kept {
    /// Held by a pool for as long as it may register slabs.
    pub(super) fn user(&self) -> Arc<()> {
        self.users.clone()
    }

    /// Deregisters everything; then the backend's functions are not called any more.
    pub(super) fn end(self) {
        let own = self.forks == pinyard_hooks::fork_generation();
        if own {
            // Also where the thread of a device pool that is ending still has the registry.
            let _ = self.registry.flush();
        }
        drop(self.registry);
        if let Some(release) = self.release.filter(|_| own) {
            release.call();
        }
    }
}

/// How a registry is made. What is 0 or null has its default; begin with zeros and set
/// `size`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pny_registry_config {
    /// sizeof(pny_registry_config).
    pub size: usize,
    /// Who registers; default PNY_BACKEND_OPS, which needs `ops`.
    pub backend: pny_backend,
    /// PNY_TRUST_SHARED_MEMORY, PNY_ON_DEMAND, PNY_RELAXED_ORDERING, PNY_NOTIFY_ONLY.
    pub flags: pny_flags,
    /// A device's or a provider's name; see the backend.
    pub device: *const c_char,
    /// An object of the backend's library that the caller has made; see the backend. It
    /// outlives the registry.
    pub object: *mut c_void,
    /// For PNY_BACKEND_OPS.
    pub ops: *const pny_backend_ops,
    /// Handed to the functions of `ops`.
    pub user: *mut c_void,
    /// Bytes pinned at most, those being registered or retired included. When they are
    /// used up, regions that are not in use go; when all are in use, pny_get fails.
    /// Default: a budget that all registries of the process share, half of the memory of
    /// the machine or the cgroup, and RLIMIT_MEMLOCK for backends that lock pages.
    pub budget: usize,
    /// Regions at most, likewise. Default 65,536.
    pub max_regions: usize,
    /// Grows registrations to aligned blocks of so many bytes, rounded up to a power of two
    /// and to a page, within their mapping, so that many small buffers share a region.
    /// Default: not at all.
    pub coarsen: usize,
    /// Verbs: the port, from 1, that must be active. Default: any.
    pub port: u32,
    /// 0.
    pub reserved: u32,
    /// Another registry, whose budget this one shares; `budget` is 0 then.
    pub share_budget_of: pny_registry,
}

// SAFETY: integers and pointers.
unsafe impl Sized_ for pny_registry_config {
    const NAME: &'static str = "pny_registry_config";
    const FIRST: usize = 88;
}

impl IntoFailure for BuildError {
    fn into_failure(self) -> Failure {
        let status = match &self {
            BuildError::HooksIncomplete(_) => PNY_ERR_HOOKS_INCOMPLETE,
            BuildError::UnknownMechanism { .. } | BuildError::Mechanism { .. } | BuildError::Trace(_) => {
                PNY_ERR_REFUSED
            }
            BuildError::NoBackend => PNY_ERR_INVALID,
            _ => PNY_ERR_RESOURCES,
        };
        Failure::new(status, self.to_string())
    }
}

/// Makes a registration cache and stores its handle in `*registry`. Installs the hooks if
/// they are not there yet, and starts a thread. `config` and what it points to may go
/// afterwards, but for `object` and `user`.
///
/// PNY_ERR_INVALID           the configuration contradicts itself
/// PNY_ERR_ABSENT            the backend's library or device is not there
/// PNY_ERR_REFUSED           it refuses; or PINYARD_HOOKS or a limit of the system does
/// PNY_ERR_HOOKS_INCOMPLETE  changes of mappings would go unseen
/// PNY_ERR_RESOURCES         as many registries as there can be, or no thread can be started
///
/// # Safety
/// `config` is readable for its size; `registry` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_registry_create(
    config: *const pny_registry_config,
    registry: *mut pny_registry,
) -> pny_status {
    at_boundary("pny_registry_create", || {
        sized::required("config", config.cast())?;
        sized::required("registry", registry.cast())?;
        // SAFETY: the caller's contract.
        let config = unsafe { sized::read(config) }?;
        let invalid = |cause: String| Failure::new(PNY_ERR_INVALID, format!("pny_registry_config: {cause}"));
        if config.flags & !FLAGS != 0 {
            return Err(invalid(format!("flags {:#x} has bits that are no flag", config.flags)));
        }
        if config.reserved != 0 {
            return Err(invalid(format!("reserved is {}, and must be 0", config.reserved)));
        }
        let mut builder = Registry::builder();
        if !config.share_budget_of.is_null() {
            if config.budget != 0 {
                return Err(invalid("budget and share_budget_of are both set".to_owned()));
            }
            let other = REGISTRIES.get(from_pointer(config.share_budget_of));
            let other = other.map_err(|Failure { status, cause }| {
                Failure::new(status, format!("pny_registry_config: share_budget_of: {cause}"))
            })?;
            builder = builder.budget(other.registry.budget().clone());
        } else if config.budget != 0 {
            builder = builder.budget(config.budget);
        }
        if config.max_regions != 0 {
            builder = builder.max_regions(config.max_regions);
        }
        if config.coarsen != 0 {
            builder = builder.coarsen(Coarsen::Blocks(config.coarsen));
        }
        if config.flags & PNY_NOTIFY_ONLY != 0 {
            builder = builder.events(Events::NotifyOnly);
        }
        if config.flags & PNY_TRUST_SHARED_MEMORY != 0 {
            builder = builder.trust_shared_memory();
        }
        // SAFETY: the caller's contract.
        let device = unsafe { sized::string("device", config.device) }?;
        let wanted = Wanted {
            backend: config.backend,
            device,
            port: config.port,
            object: config.object,
            ops: config.ops,
            user: config.user,
            flags: config.flags,
        };
        // SAFETY: the caller's contract.
        let (builder, release) = unsafe { wanted.give_to(builder) }?;
        let registry_made = builder.build().map_err(failed)?;
        let forks = pinyard_hooks::fork_generation();
        let handle =
            REGISTRIES.insert(Kept { registry: registry_made, release, users: Arc::new(()), forks })?;
        // SAFETY: the caller's contract.
        unsafe { registry.write(to_pointer(handle)) };
        Ok(())
    })
}

/// Deregisters everything and destroys the registry. When this returns PNY_OK, the device
/// has no registration of it left, and `release` of its `ops` has been called. In a forked
/// child, whose parent made it, only the handle goes.
///
/// PNY_ERR_INVALID  null
/// PNY_ERR_STALE    not a registry, or one that was destroyed
/// PNY_ERR_BUSY     leases are held, or pools register their slabs with it; the text says how
///                  many. Or the caller is a function that pinyard has called. Nothing has
///                  changed.
///
/// # Safety
/// No other thread is inside a call with this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_registry_destroy(registry: pny_registry) -> pny_status {
    at_boundary("pny_registry_destroy", || {
        REGISTRIES.take(from_pointer(registry), may_go)?.end();
        Ok(())
    })
}

/// Whether the registry is held by nobody.
fn may_go(Kept { registry, users, forks, .. }: &Kept) -> Result<(), Failure> {
    may_destroy("registry")?;
    let pools = Arc::strong_count(users) - 1;
    if pools > 0 && *forks == pinyard_hooks::fork_generation() {
        let plural = if pools == 1 { "" } else { "s" };
        let cause = format!("{pools} pool{plural} registered with it; destroy with pny_pool_destroy");
        return Err(Failure::new(PNY_ERR_BUSY, cause));
    }
    match registry.regions_in_use() {
        0 => Ok(()),
        held => {
            let cause = format!(
                "leases of {held} region{} of backend {} are held; give them back with pny_put",
                if held == 1 { "" } else { "s" },
                registry.backend_name()
            );
            Err(Failure::new(PNY_ERR_BUSY, cause))
        }
    }
}

/// Takes out every registration that shares a page with the range. Leases keep theirs; the
/// rest is deregistered before this returns. Takes the registry's lock. Any thread.
///
/// PNY_ERR_INVALID  null, or the range wraps around the address space
/// PNY_ERR_STALE    not a registry, or one that was destroyed
/// PNY_ERR_FORKED   the registry is the parent process's
///
/// # Safety
/// Nobody destroys the registry meanwhile. The memory is not accessed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_invalidate(
    registry: pny_registry,
    address: *const c_void,
    length: usize,
) -> pny_status {
    at_boundary("pny_invalidate", || {
        REGISTRIES
            .get(from_pointer(registry))?
            .registry
            .invalidate((address.cast::<u8>(), length))
            .map_err(failed)
    })
}

/// Takes out every registration. Leases keep theirs; the rest is deregistered before this
/// returns. Takes the registry's lock. Any thread.
///
/// Errors: as pny_invalidate.
///
/// # Safety
/// Nobody destroys the registry meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_flush(registry: pny_registry) -> pny_status {
    at_boundary("pny_flush", || REGISTRIES.get(from_pointer(registry))?.registry.flush().map_err(failed))
}
