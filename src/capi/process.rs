//! Beginning and end.

use super::hooks::complete;
use super::pools::POOLS;
use super::registry::REGISTRIES;
use super::status::{Failure, at_boundary, pny_status, pny_status::*};
use super::streams::STREAMS;
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

/// Ends what a pny_init began. The last one makes sure that all was given back. It destroys
/// nothing itself: what there is may be another library's, and in use on another thread. The
/// hooks stay, as libraries that were loaded later may have built on them. pny_init begins
/// anew.
///
/// PNY_ERR_NOT_READY: there was no pny_init.
/// PNY_ERR_BUSY: streams, pools or registries of this process are left, whoever made them; the
/// text names them. Nothing has changed: with these destroyed, pny_finalize may be called
/// again.
#[unsafe(no_mangle)]
#[allow(unsafe_code)]
pub extern "C" fn pny_finalize() -> pny_status {
    at_boundary("pny_finalize", || {
        let left: Vec<String> = STREAMS.left().chain(POOLS.left()).chain(REGISTRIES.left()).collect();
        let less = |users: u32| match users {
            1 if !left.is_empty() => None,
            _ => users.checked_sub(1),
        };
        match USERS.fetch_update(SeqCst, SeqCst, less) {
            Ok(_) => Ok(()),
            Err(0) => Err(Failure::new(PNY_ERR_NOT_READY, "there was no pny_init")),
            Err(_) => Err(Failure::new(PNY_ERR_BUSY, format!("not destroyed: {}", named(&left)))),
        }
    })
}

/// The first of them, and how many more.
fn named(left: &[String]) -> String {
    const MOST: usize = 8;
    let first = left[..left.len().min(MOST)].join(", ");
    match left.len().saturating_sub(MOST) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}
