//! UCX and libfabric as movers of bytes: an endpoint of the process to itself, by way of
//! the device.
#![allow(unsafe_code)]

use pinyard_registry::backend::{Libfabric, MemoryKey, Ucx};
use std::ffi::{c_int, c_void};
use std::io::{Error, Result};
use std::sync::Arc;

unsafe extern "C" {
    fn ucx_open(context: *mut c_void, failed: *mut c_int) -> *mut c_void;
    fn ucx_close(ucx: *mut c_void);
    fn ucx_move(
        ucx: *mut c_void,
        write: c_int,
        local: *mut c_void,
        len: usize,
        at: u64,
        packed: *const c_void,
    ) -> c_int;
    fn fabric_open(domain: *mut c_void, info: *mut c_void, failed: *mut c_int) -> *mut c_void;
    fn fabric_close(fabric: *mut c_void);
    fn fabric_move(
        fabric: *mut c_void,
        write: c_int,
        local: *mut c_void,
        len: usize,
        descriptor: *mut c_void,
        at: u64,
        key: u64,
    ) -> c_int;
}

/// One that moves bytes with a backend's keys.
pub(crate) trait Mover {
    /// Writes `local` to the memory at `at`, or reads it from there; `own` and `key` are
    /// those of leases that are held.
    fn go(&mut self, write: bool, local: &mut [u8], own: MemoryKey, at: usize, key: MemoryKey) -> Result<()>;
}

pub(crate) struct OverUcx {
    backend: Arc<Ucx>,
    ucx: *mut c_void,
}

impl OverUcx {
    pub(crate) fn open(backend: Arc<Ucx>) -> Result<OverUcx> {
        let mut status = 0;
        // SAFETY: an open context, which the backend keeps; it is this thread's.
        let ucx = unsafe { ucx_open(backend.context().as_ptr(), &raw mut status) };
        if ucx.is_null() {
            return Err(Error::other(format!("a UCX endpoint to itself: status {status}")));
        }
        Ok(OverUcx { backend, ucx })
    }
}

impl Mover for OverUcx {
    fn go(&mut self, write: bool, local: &mut [u8], _: MemoryKey, at: usize, key: MemoryKey) -> Result<()> {
        // SAFETY: the lease of `key` is held.
        let packed = unsafe { self.backend.packed_rkey(key) };
        let (start, len) = (local.as_mut_ptr().cast(), local.len());
        // SAFETY: an open endpoint; the device checks `at` against the key.
        match unsafe { ucx_move(self.ucx, write.into(), start, len, at as u64, packed.as_ptr().cast()) } {
            0 => Ok(()),
            status => Err(Error::other(format!("UCX status {status}"))),
        }
    }
}

impl Drop for OverUcx {
    fn drop(&mut self) {
        // SAFETY: opened once; the context is still there.
        unsafe { ucx_close(self.ucx) };
    }
}

pub(crate) struct OverLibfabric {
    fabric: *mut c_void,
    _backend: Arc<Libfabric>,
}

impl OverLibfabric {
    pub(crate) fn open(backend: Arc<Libfabric>) -> Result<OverLibfabric> {
        let info = backend.info().ok_or_else(|| Error::other("a borrowed domain"))?;
        let mut error = 0;
        // SAFETY: an open domain and the entry that it was opened with, which the backend
        // keeps.
        let fabric = unsafe { fabric_open(backend.domain().as_ptr(), info.as_ptr(), &raw mut error) };
        if fabric.is_null() {
            return Err(Error::from_raw_os_error(-error));
        }
        Ok(OverLibfabric { fabric, _backend: backend })
    }
}

impl Mover for OverLibfabric {
    fn go(&mut self, write: bool, local: &mut [u8], own: MemoryKey, at: usize, key: MemoryKey) -> Result<()> {
        let (start, len, own) = (local.as_mut_ptr().cast(), local.len(), own.lkey as *mut c_void);
        // SAFETY: an open endpoint; `own` describes `local`, whose lease is held; the device
        // checks `at` against the key.
        match unsafe { fabric_move(self.fabric, write.into(), start, len, own, at as u64, key.rkey) } {
            0 => Ok(()),
            error => Err(Error::from_raw_os_error(-error)),
        }
    }
}

impl Drop for OverLibfabric {
    fn drop(&mut self) {
        // SAFETY: opened once; the domain is still there.
        unsafe { fabric_close(self.fabric) };
    }
}
