//! UCX's `ucs_rcache`.
#![allow(unsafe_code)]

use super::{Cache, Peer};
use pinyard_cli::bench::Absence;
use std::ffi::{CStr, c_char, c_ulong, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

unsafe extern "C" {
    fn bench_ucx_headers(major: *mut u32, minor: *mut u32);
    safe fn bench_ucx_load() -> *const c_char;
    fn bench_ucx_create(regions: c_ulong, counter: *mut c_void) -> *mut c_void;
    fn bench_ucx_destroy(cache: *mut c_void);
    fn bench_ucx_get(cache: *mut c_void, address: *mut c_void, length: usize) -> *mut c_void;
    fn bench_ucx_put(cache: *mut c_void, region: *mut c_void);
    fn bench_ucx_unmapped(address: *mut c_void, length: usize);
}

/// Opens UCX's libraries and says which version they are, or why there are none.
pub(crate) fn load() -> Result<String, Absence> {
    let failure = bench_ucx_load();
    if !failure.is_null() {
        // SAFETY: a NUL-terminated text of dlerror's or of the shim's own.
        let why = unsafe { CStr::from_ptr(failure) }.to_string_lossy().into_owned();
        let remedy = if why.starts_with("built without") {
            "install libucx-dev and build pinyard-bench again"
        } else {
            "install UCX (libucx0), or name its folder in LD_LIBRARY_PATH"
        };
        return Err(Absence::new(why, remedy));
    }
    let (mut headers, version) = ([0; 2], version()?);
    let [major, minor] = &mut headers;
    // SAFETY: two numbers of this function's own.
    unsafe { bench_ucx_headers(major, minor) };
    if version[..2] == headers {
        return Ok(format!("{}.{}.{}", version[0], version[1], version[2]));
    }
    let why = format!(
        "UCX is {}.{}, and pinyard-bench was built for {}.{}, whose structures may be others",
        version[0], version[1], headers[0], headers[1]
    );
    Err(Absence::new(why, "build pinyard-bench again with the headers of this UCX"))
}

/// What the library says it is.
fn version() -> Result<[u32; 3], Absence> {
    type GetVersion = unsafe extern "C" fn(*mut u32, *mut u32, *mut u32);
    // SAFETY: names that end in NUL; a function of UCX's own with this signature.
    unsafe {
        let ucp = libc::dlopen(c"libucp.so.0".as_ptr(), libc::RTLD_NOW);
        let function = if ucp.is_null() { ucp } else { libc::dlsym(ucp, c"ucp_get_version".as_ptr()) };
        if function.is_null() {
            return Err(Absence::new("libucp.so.0 has no ucp_get_version", "install UCX (libucx0) whole"));
        }
        let get_version = std::mem::transmute::<*mut c_void, GetVersion>(function);
        let mut version = [0; 3];
        let [major, minor, release] = &mut version;
        get_version(major, minor, release);
        Ok(version)
    }
}

/// UCX's cache with a dummy registration, its hooks installed.
pub(crate) struct Ucx {
    cache: *mut c_void,
    made: Box<AtomicU64>,
}

// SAFETY: ucs_rcache_get and ucs_rcache_region_put may be called from any thread.
unsafe impl Sync for Ucx {}

impl Drop for Ucx {
    fn drop(&mut self) {
        // SAFETY: created in `new`; no region is held.
        unsafe { bench_ucx_destroy(self.cache) };
    }
}

impl Peer for Ucx {
    const NAME: &'static str = "UCX";

    fn new(regions: usize) -> Result<Ucx, String> {
        let made = Box::<AtomicU64>::default();
        let counter = std::ptr::from_ref(&*made).cast_mut().cast();
        // SAFETY: the libraries are loaded; the counter lives as long as the cache.
        let cache = unsafe { bench_ucx_create(regions as c_ulong, counter) };
        if cache.is_null() { Err("ucs_rcache_create failed".to_owned()) } else { Ok(Ucx { cache, made }) }
    }
}

impl Cache for Ucx {
    #[inline]
    fn hit(&self, at: *mut u8, len: usize) {
        // SAFETY: the cache lives; the memory is mapped; the region is put once.
        unsafe {
            let region = bench_ucx_get(self.cache, at.cast(), len);
            if !region.is_null() {
                bench_ucx_put(self.cache, black_box(region));
            }
        }
    }

    #[inline]
    fn event(&self, at: *mut u8, len: usize) {
        // SAFETY: the address is only compared.
        unsafe { bench_ucx_unmapped(at.cast(), len) };
    }

    fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }
}
