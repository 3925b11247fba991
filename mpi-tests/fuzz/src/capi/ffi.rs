//! The functions and structures of `src/include/pinyard.h` that the target calls.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use pinyard as _; // whose library has the functions

pub(crate) const OK: c_int = 0;
pub(crate) const INVALID: c_int = 1;
pub(crate) const HOOKS_INCOMPLETE: c_int = 2;
pub(crate) const BUSY: c_int = 4;
pub(crate) const REFUSED: c_int = 5;
pub(crate) const NOT_READY: c_int = 7;
pub(crate) const INTERNAL: c_int = 8;
pub(crate) const STALE: c_int = 9;
pub(crate) const NOT_FOUND: c_int = 16;

/// `pny_registry`: a number.
pub(crate) type Registry = usize;

/// `pny_lease`; the key in it.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct Lease {
    pub(crate) ticket: u64,
    pub(crate) key: [u64; 3],
    pub(crate) base: u64,
    pub(crate) length: u64,
}

/// `pny_registry_config`, and two words that this library does not know.
#[repr(C)]
pub(crate) struct Config {
    pub(crate) size: usize,
    pub(crate) backend: u32,
    pub(crate) flags: u32,
    pub(crate) device: *const c_char,
    pub(crate) object: *mut c_void,
    pub(crate) ops: *const Ops,
    pub(crate) user: *mut c_void,
    pub(crate) budget: usize,
    pub(crate) max_regions: usize,
    pub(crate) coarsen: usize,
    pub(crate) port: u32,
    pub(crate) reserved: u32,
    pub(crate) share_budget_of: Registry,
    pub(crate) unknown: [u64; 2],
}

/// `pny_backend_ops`, likewise.
#[repr(C)]
pub(crate) struct Ops {
    pub(crate) size: usize,
    pub(crate) name: *const c_char,
    pub(crate) register: Option<extern "C" fn(*mut c_void, usize, usize, u32, &mut [u64; 3]) -> c_int>,
    pub(crate) deregister: Option<extern "C" fn(*mut c_void, &[u64; 3], usize, usize) -> c_int>,
    pub(crate) release: Option<extern "C" fn(*mut c_void)>,
    pub(crate) max_region_bytes: usize,
    pub(crate) max_regions: usize,
    pub(crate) locks_memory: u32,
    pub(crate) reserved: u32,
    pub(crate) unknown: [u64; 2],
}

impl Config {
    pub(crate) const ZERO: Config = Config {
        size: 0,
        backend: 0,
        flags: 0,
        device: std::ptr::null(),
        object: std::ptr::null_mut(),
        ops: std::ptr::null(),
        user: std::ptr::null_mut(),
        budget: 0,
        max_regions: 0,
        coarsen: 0,
        port: 0,
        reserved: 0,
        share_budget_of: 0,
        unknown: [0; 2],
    };
}

type Register = extern "C" fn(*mut c_void, usize, usize, u32, &mut [u64; 3]) -> c_int;
type Deregister = extern "C" fn(*mut c_void, &[u64; 3], usize, usize) -> c_int;

impl Ops {
    pub(crate) fn of(
        name: &'static CStr,
        register: Register,
        deregister: Deregister,
        release: extern "C" fn(*mut c_void),
    ) -> Ops {
        Ops {
            size: 64,
            name: name.as_ptr(),
            register: Some(register),
            deregister: Some(deregister),
            release: Some(release),
            max_region_bytes: 0,
            max_regions: 0,
            locks_memory: 0,
            reserved: 0,
            unknown: [0; 2],
        }
    }
}

/// `pny_pool_config`, and two words that this library does not know.
#[repr(C)]
pub(crate) struct PoolConfig {
    pub(crate) size: usize,
    pub(crate) memory: u32,
    pub(crate) driver: u32,
    pub(crate) device: u32,
    pub(crate) access: u32,
    pub(crate) registry: Registry,
    pub(crate) slab_bytes: usize,
    pub(crate) limit: usize,
    pub(crate) patience_ns: u64,
    pub(crate) simulated_bytes: usize,
    pub(crate) unknown: [u64; 2],
}

unsafe extern "C" {
    pub(crate) fn pny_pool_create(config: *const PoolConfig, pool: *mut usize) -> c_int;
    pub(crate) fn pny_pool_destroy(pool: usize) -> c_int;
    pub(crate) fn pny_pool_trim(pool: usize, released: *mut usize) -> c_int;
    pub(crate) fn pny_pool_stats(pool: usize, counts: *mut u64) -> c_int;
    pub(crate) fn pny_pool_warmup(pool: usize, bytes: usize, count: usize, stream: usize) -> c_int;
    pub(crate) fn pny_stream_create(pool: usize, native: usize, made: *mut usize) -> c_int;
    pub(crate) fn pny_stream_destroy(stream: usize) -> c_int;
    pub(crate) fn pny_pool_alloc(pool: usize, bytes: usize, stream: usize, block: *mut usize) -> c_int;
    pub(crate) fn pny_pool_alloc_aligned(
        pool: usize,
        bytes: usize,
        align: usize,
        stream: usize,
        block: *mut usize,
    ) -> c_int;
    pub(crate) fn pny_pool_alloc_batch(
        pool: usize,
        sizes: *const usize,
        count: usize,
        stream: usize,
        blocks: *mut usize,
    ) -> c_int;
    pub(crate) fn pny_pool_free(pool: usize, block: usize) -> c_int;
    pub(crate) fn pny_pool_free_after(pool: usize, block: usize, stream: usize) -> c_int;
    pub(crate) fn pny_pool_defer_until(
        pool: usize,
        block: usize,
        passed: Option<extern "C" fn(*mut c_void) -> c_int>,
        user: *mut c_void,
    ) -> c_int;
    pub(crate) fn pny_pool_record_use(pool: usize, block: usize, stream: usize) -> c_int;
    pub(crate) fn pny_pool_find(pool: usize, address: usize, place: *mut u64) -> c_int;
    pub(crate) fn pny_torch_malloc(bytes: usize, device: c_int, stream: *mut c_void) -> usize;
    pub(crate) fn pny_torch_free(block: usize, bytes: usize, device: c_int, stream: *mut c_void);
    pub(crate) fn pny_torch_record_stream(block: usize, stream: *mut c_void);
    pub(crate) fn pny_cupy_malloc(param: *mut c_void, bytes: usize, device: c_int) -> usize;
    pub(crate) fn pny_cupy_free(param: *mut c_void, block: usize, device: c_int);
    pub(crate) fn pny_plug_stats(device: c_int, counts: *mut u64) -> c_int;
    pub(crate) fn pny_plug_trim(device: c_int, released: *mut usize) -> c_int;
    pub(crate) fn pny_plug_retire(device: c_int, stream: *mut c_void) -> c_int;
    pub(crate) fn pny_device_find(address: usize, place: *mut u64) -> c_int;
    pub(crate) safe fn pny_strerror(status: c_int) -> *const c_char;
    pub(crate) safe fn pny_last_error() -> *const c_char;
    pub(crate) safe fn pny_init() -> c_int;
    pub(crate) safe fn pny_finalize() -> c_int;
    pub(crate) safe fn pny_version() -> *const c_char;
    pub(crate) safe fn pny_hooks_install() -> c_int;
    pub(crate) safe fn pny_hooks_verify() -> c_int;
    pub(crate) safe fn pny_libfabric_import_monitor() -> c_int;
    pub(crate) safe fn pny_notify_unmapped(address: usize, length: usize);
    pub(crate) fn pny_hooks_report(text: *mut c_char, capacity: usize, length: *mut usize) -> c_int;
    pub(crate) fn pny_registry_create(config: *const Config, registry: *mut Registry) -> c_int;
    pub(crate) fn pny_registry_destroy(registry: Registry) -> c_int;
    pub(crate) fn pny_get(
        registry: Registry,
        at: usize,
        length: usize,
        access: u32,
        lease: *mut Lease,
    ) -> c_int;
    pub(crate) fn pny_put(lease: *mut Lease) -> c_int;
    pub(crate) fn pny_lookup(
        registry: Registry,
        at: usize,
        length: usize,
        access: u32,
        key: *mut [u64; 3],
    ) -> c_int;
    pub(crate) fn pny_invalidate(registry: Registry, at: usize, length: usize) -> c_int;
    pub(crate) fn pny_flush(registry: Registry) -> c_int;
    pub(crate) fn pny_registry_stats(registry: Registry, counts: *mut [u64; 32]) -> c_int;
    pub(crate) fn pny_explain(
        registry: Registry,
        at: usize,
        size: usize,
        access: u32,
        text: *mut c_char,
        capacity: usize,
        length: *mut usize,
    ) -> c_int;
    pub(crate) fn pny_libfabric_monitor_stats(counts: *mut [u64; 32]) -> c_int;
}

/// A text that the interface returned.
pub(crate) fn text(of: *const c_char) -> &'static str {
    // SAFETY: NUL-terminated, valid until this thread's next call; used before that.
    unsafe { CStr::from_ptr(of) }.to_str().unwrap_or_else(|_| std::process::abort())
}
