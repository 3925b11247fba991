//! Beginning and end.

use super::handles::to_pointer;
use super::hooks::complete;
use super::pools::{self, POOLS, pny_pool_object};
use super::registry::{REGISTRIES, may_go, pny_registry_object};
use super::status::{Failure, at_boundary, pny_status, pny_status::*};
use super::streams::{STREAMS, Streamed};
use core::ffi::c_char;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// The library's version, such as "0.1.0". A static text.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub extern "C" fn pny_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Calls of pny_init without their pny_finalize.
static USERS: AtomicU32 = AtomicU32::new(0);

/// Installs the hooks before anything else runs. Not needed: what needs the hooks installs
/// them. For programs and libraries that want a pair of calls: each pny_init has its
/// pny_finalize, any number of times, before or after MPI_Init and MPI_Finalize.
///
/// PNY_ERR_HOOKS_INCOMPLETE: as pny_hooks_install; pny_finalize is called all the same.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub extern "C" fn pny_init() -> pny_status {
    at_boundary("pny_init", || {
        USERS.fetch_add(1, SeqCst);
        pinyard_hooks::notice_forks();
        complete(&pinyard_hooks::install())
    })
}

/// Ends what a pny_init began. The last one destroys every stream, pool and registry that is
/// left. The hooks stay: libraries that were loaded later may have built on them. pny_init
/// begins anew.
///
/// PNY_ERR_NOT_READY: there was no pny_init.
/// PNY_ERR_BUSY: leases are held or blocks in use; those registries and pools stay, and so
/// does this pny_init.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub extern "C" fn pny_finalize() -> pny_status {
    at_boundary("pny_finalize", || {
        let less = |users: u32| users.checked_sub(1);
        let before = USERS.fetch_update(SeqCst, SeqCst, less);
        match before {
            Err(_) => return Err(Failure::new(PNY_ERR_NOT_READY, "there was no pny_init")),
            Ok(1) => {}
            Ok(_) => return Ok(()),
        }
        let mut held = Vec::new();
        for handle in STREAMS.all() {
            match STREAMS.take(handle, |_| Ok(())).and_then(Streamed::end) {
                Err(failure) if failure.status != PNY_ERR_STALE => held.push(failure.cause),
                _ => {}
            }
        }
        for handle in POOLS.all() {
            match POOLS.take(handle, pools::may_go) {
                Ok(pool) => pool.end(),
                Err(failure) if failure.status == PNY_ERR_STALE => {}
                Err(failure) => {
                    held.push(format!("pool {:p}: {}", to_pointer::<pny_pool_object>(handle), failure.cause))
                }
            }
        }
        for handle in REGISTRIES.all() {
            match REGISTRIES.take(handle, may_go) {
                Ok(registry) => registry.end(),
                // Another thread destroyed it meanwhile.
                Err(failure) if failure.status == PNY_ERR_STALE => {}
                Err(failure) => held.push(format!(
                    "registry {:p}: {}",
                    to_pointer::<pny_registry_object>(handle),
                    failure.cause
                )),
            }
        }
        if held.is_empty() {
            return Ok(());
        }
        USERS.fetch_add(1, SeqCst);
        Err(Failure::new(PNY_ERR_BUSY, held.join("; ")))
    })
}
