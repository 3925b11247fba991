//! The functions of the header as C calls them, with a device of the test's own.
#![allow(unsafe_code, clippy::disallowed_methods)] // unmaps as a program would

mod lives;
mod pools;
mod refusals;

use super::backend::*;
use super::blocks::*;
use super::diagnosis::*;
use super::find::*;
use super::get::*;
use super::hooks::*;
use super::libfabric::*;
use super::pools::*;
use super::process::*;
use super::registry::*;
use super::status::pny_status::{self, *};
use super::status::tests::{last_error, text as text_of};
use super::streams::*;
use core::ffi::{c_char, c_int, c_void};
use core::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};

const PAGE: usize = 4096;

/// A device of the test's own: what it was told, and what it is to answer.
#[derive(Default)]
struct Device {
    registered: AtomicU32,
    deregistered: AtomicU32,
    released: AtomicU32,
    /// Registrations when `release` was called.
    left: AtomicU32,
    errno: AtomicI32,
    deregister_errno: AtomicI32,
}

unsafe extern "C" fn register(
    user: *mut c_void,
    address: *mut c_void,
    length: usize,
    access: pny_access,
    key: *mut pny_key,
) -> c_int {
    // SAFETY: the `user` of `ops_of`.
    let device = unsafe { &*user.cast::<Device>() };
    assert!(address.addr().is_multiple_of(PAGE) && length.is_multiple_of(PAGE) && access <= 15);
    let errno = device.errno.load(SeqCst);
    if errno == 0 {
        let number = device.registered.fetch_add(1, SeqCst);
        // SAFETY: writable, as the header says.
        unsafe { *key = pny_key { lkey: 100 + u64::from(number), rkey: 7, handle: address.addr() as u64 } };
    }
    errno
}

unsafe extern "C" fn deregister(user: *mut c_void, key: *const pny_key, at: *mut c_void, _: usize) -> c_int {
    // SAFETY: the `user` of `ops_of`; the key is readable, as the header says.
    let (device, key) = unsafe { (&*user.cast::<Device>(), *key) };
    assert_eq!((key.rkey, key.handle), (7, at.addr() as u64));
    device.deregistered.fetch_add(1, SeqCst);
    device.deregister_errno.load(SeqCst)
}

unsafe extern "C" fn release(user: *mut c_void) {
    // SAFETY: the `user` of `ops_of`.
    let device = unsafe { &*user.cast::<Device>() };
    device.released.fetch_add(1, SeqCst);
    device.left.store(device.registered.load(SeqCst) - device.deregistered.load(SeqCst), SeqCst);
}

fn ops() -> pny_backend_ops {
    pny_backend_ops {
        size: size_of::<pny_backend_ops>(),
        name: c"bench".as_ptr(),
        register_memory: Some(register),
        deregister_memory: Some(deregister),
        release: Some(release),
        max_region_bytes: 0,
        max_regions: 0,
        locks_memory: 0,
        reserved: 0,
    }
}

fn config(ops: &pny_backend_ops, device: &Device) -> pny_registry_config {
    pny_registry_config {
        size: size_of::<pny_registry_config>(),
        backend: PNY_BACKEND_OPS,
        flags: 0,
        device: null(),
        object: null_mut(),
        ops,
        user: (&raw const *device).cast_mut().cast(),
        budget: 0,
        max_regions: 0,
        coarsen: 0,
        port: 0,
        reserved: 0,
        share_budget_of: null_mut(),
    }
}

/// A refusal with all of `words` in its text, which begins with the function's name.
#[track_caller]
fn refused(status: pny_status, expected: pny_status, words: &[&str]) {
    let said = last_error();
    assert_eq!(status, expected, "{said}");
    assert!(said.starts_with("pny_") && said.contains(": "), "{said}");
    for word in words {
        assert!(said.contains(word), "no {word:?} in: {said}");
    }
}

#[track_caller]
fn done(status: pny_status) {
    assert_eq!((status, last_error().as_str()), (PNY_OK, ""));
}

#[track_caller]
fn create(config: &pny_registry_config) -> pny_registry {
    let mut registry = null_mut();
    // SAFETY: a configuration of its size, and a place for the handle.
    done(unsafe { pny_registry_create(config, &raw mut registry) });
    assert!(!registry.is_null());
    registry
}

/// What a configuration gets that must be refused. No handle is made.
#[track_caller]
fn no_registry(config: &pny_registry_config, expected: pny_status, words: &[&str]) {
    let mut registry = null_mut();
    // SAFETY: as above.
    refused(unsafe { pny_registry_create(config, &raw mut registry) }, expected, words);
    assert!(registry.is_null());
}

#[track_caller]
fn destroy(registry: pny_registry) {
    // SAFETY: the test's only thread.
    done(unsafe { pny_registry_destroy(registry) });
}

fn get(registry: pny_registry, at: *const c_void, length: usize, access: u32) -> (pny_status, pny_lease) {
    let mut lease = pny_lease { ticket: 99, ..pny_lease::default() };
    // SAFETY: a lease of the test's own.
    let status = unsafe { pny_get(registry, at, length, access, &raw mut lease) };
    (status, lease)
}

#[track_caller]
fn held(registry: pny_registry, at: *const c_void, length: usize) -> pny_lease {
    let (status, lease) = get(registry, at, length, PNY_LOCAL_WRITE);
    done(status);
    assert!(lease.ticket != 0 && lease.base as usize <= at.addr());
    lease
}

fn put(lease: &mut pny_lease) -> pny_status {
    // SAFETY: a lease of the test's own.
    unsafe { pny_put(lease) }
}

fn counts(registry: pny_registry) -> pny_registry_counts {
    let mut counts = core::mem::MaybeUninit::<pny_registry_counts>::zeroed();
    let counts = counts.as_mut_ptr();
    // SAFETY: integers of its size.
    unsafe {
        (*counts).size = size_of::<pny_registry_counts>();
        done(pny_registry_stats(registry, counts));
        *counts
    }
}

fn explained(registry: pny_registry, at: *const c_void) -> String {
    let (mut text, mut length) = ([1 as c_char; 2000], 0);
    // SAFETY: the capacity is the array's.
    done(unsafe { pny_explain(registry, at, PAGE, 0, text.as_mut_ptr(), text.len(), &raw mut length) });
    let said = text_of(text.as_ptr());
    assert_eq!(said.len(), length);
    said
}

/// Pages of their own, unmapped when dropped.
struct Pages(*mut c_void, usize);

impl Pages {
    fn new(count: usize) -> Pages {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new pages.
        let at = unsafe { libc::mmap(null_mut(), count * PAGE, protection, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Pages(at, count * PAGE)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: its own pages.
        unsafe { libc::munmap(self.0, self.1) };
    }
}
