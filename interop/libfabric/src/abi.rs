//! The structures of libfabric's import interface, written out.
//!
//! From `rdma/fabric.h` (`struct fid`, `struct fi_ops`, the class numbers) and
//! `rdma/fi_ext.h` (the memory monitor), which are the same in every libfabric
//! from 1.13, which brought them, to 2.6. Nothing is linked: `libfabric.so.1` is
//! opened at run time.

use core::ffi::{c_char, c_int, c_void};

/// `FI_CLASS_MEM_MONITOR`.
pub(super) const CLASS_MEM_MONITOR: usize = 23;
/// `FI_VERSION(1, 13)`: what the caller was written for.
pub(super) const API_VERSION: u32 = 1 << 16 | 13;
/// `FI_SUCCESS`.
pub(super) const SUCCESS: c_int = 0;
/// `FI_EBUSY`, `FI_ENOSYS`, `FI_EAGAIN`: libfabric returns their negative.
pub(super) const EBUSY: c_int = libc::EBUSY;
pub(super) const ENOSYS: c_int = libc::ENOSYS;
pub(super) const EAGAIN: c_int = libc::EAGAIN;

/// `struct fid`: what every libfabric object starts with.
#[repr(C)]
pub(super) struct Fid {
    pub(super) class: usize,
    pub(super) context: *mut c_void,
    pub(super) ops: *mut FidOps,
}

/// `struct fi_ops`, as far as it is called here; the rest is never touched.
#[repr(C)]
pub(super) struct FidOps {
    pub(super) size: usize,
    pub(super) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    /// `fi_import_fid(fid, imported, flags)` is an inline function that calls this.
    pub(super) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
}

/// `struct fid_mem_monitor`. libfabric keeps the pointer that it is given and
/// writes `fid.context`, `fid.ops` and `import_ops`.
#[repr(C)]
pub(super) struct FidMemMonitor {
    pub(super) fid: Fid,
    pub(super) export_ops: *const MonitorOps,
    pub(super) import_ops: *const NotifyOps,
}

/// `struct fi_ops_mem_monitor`: what libfabric calls. It checks none of them for
/// null.
#[repr(C)]
pub(super) struct MonitorOps {
    pub(super) size: usize,
    pub(super) start: extern "C" fn(*mut FidMemMonitor) -> c_int,
    pub(super) stop: extern "C" fn(*mut FidMemMonitor),
    pub(super) subscribe: extern "C" fn(*mut FidMemMonitor, *const c_void, usize) -> c_int,
    pub(super) unsubscribe: extern "C" fn(*mut FidMemMonitor, *const c_void, usize),
    pub(super) valid: extern "C" fn(*mut FidMemMonitor, *const c_void, usize) -> bool,
}

/// `struct fi_ops_mem_notify`: what libfabric offers in return.
#[repr(C)]
pub(super) struct NotifyOps {
    pub(super) size: usize,
    pub(super) notify: unsafe extern "C" fn(*mut FidMemMonitor, *const c_void, usize),
}

/// `fi_open(version, name, attr, attr_len, flags, fid, context)`.
pub(super) type Open =
    unsafe extern "C" fn(u32, *const c_char, *mut c_void, usize, u64, *mut *mut Fid, *mut c_void) -> c_int;
/// `ofi_open_mr_cache(version, attr, attr_len, flags, fid, context)`, what
/// `fi_open(mr_cache)` calls.
pub(super) type OpenCache =
    unsafe extern "C" fn(u32, *mut c_void, usize, u64, *mut *mut Fid, *mut c_void) -> c_int;
/// `fi_version()`.
pub(super) type Version = unsafe extern "C" fn() -> u32;
/// `fi_strerror(errnum)`: a static text.
pub(super) type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
