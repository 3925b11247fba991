//! The caches under comparison behind one interface, and the memory they map.
#![allow(unsafe_code)]

use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MemoryKey, Registry};
use std::ffi::{c_uint, c_void};
use std::hint::black_box;

/// Something that finds a registration and lets it go.
pub(crate) trait Peer: Sync {
    /// One get and release of `len` bytes at `at`.
    fn hit(&self, at: *mut u8, len: usize);
}

/// An anonymous mapping.
pub(crate) struct Memory {
    base: usize,
    len: usize,
}

impl Memory {
    pub(crate) fn map(len: usize) -> Result<Memory, String> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping.
        let base = unsafe { pinyard_hooks::sys::mmap(0, len, libc::PROT_READ | libc::PROT_WRITE, flags) };
        base.map(|base| Memory { base, len })
            .map_err(|errno| format!("mmap({len} bytes) failed: errno {errno}"))
    }

    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        (self.base + offset) as *mut u8
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`; the caches that knew it are gone.
        let _ = unsafe { pinyard_hooks::sys::munmap(self.base, self.len) };
    }
}

/// pinyard's registry with a dummy registration, hooks installed.
pub(crate) struct Ours(Registry);

impl Ours {
    pub(crate) fn new(regions: usize) -> Result<Ours, String> {
        let backend = Custom::new("dummy", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let registry = Registry::builder().backend(backend).max_regions(regions + 64).build();
        registry.map(Ours).map_err(|error| error.to_string())
    }

    pub(crate) fn lookup(&self) -> Lookup<'_> {
        Lookup(&self.0)
    }
}

impl Peer for Ours {
    #[inline]
    fn hit(&self, at: *mut u8, len: usize) {
        drop(black_box(self.0.get((at, len), Access::LOCAL_WRITE)));
    }
}

/// The same registry, without taking a reference.
pub(crate) struct Lookup<'r>(&'r Registry);

impl Peer for Lookup<'_> {
    #[inline]
    fn hit(&self, at: *mut u8, len: usize) {
        black_box(self.0.lookup((at, len), Access::LOCAL_WRITE));
    }
}

unsafe extern "C" {
    fn bench_ucx_create() -> *mut c_void;
    fn bench_ucx_destroy(cache: *mut c_void);
    fn bench_ucx_get(cache: *mut c_void, address: *mut c_void, length: usize) -> *mut c_void;
    fn bench_ucx_put(cache: *mut c_void, region: *mut c_void);
    safe fn bench_ucx_major() -> c_uint;
    safe fn bench_ucx_minor() -> c_uint;
}

/// UCX's cache with a dummy registration, its hooks installed.
pub(crate) struct Ucx(*mut c_void);

// SAFETY: ucs_rcache_get and ucs_rcache_region_put may be called from any thread.
unsafe impl Sync for Ucx {}

impl Ucx {
    pub(crate) fn new() -> Option<Ucx> {
        // SAFETY: no preconditions.
        let cache = unsafe { bench_ucx_create() };
        (!cache.is_null()).then_some(Ucx(cache))
    }
}

impl Drop for Ucx {
    fn drop(&mut self) {
        // SAFETY: created in `new`; no region is held.
        unsafe { bench_ucx_destroy(self.0) };
    }
}

impl Peer for Ucx {
    #[inline]
    fn hit(&self, at: *mut u8, len: usize) {
        // SAFETY: the cache lives; the memory is mapped; the region is put once.
        unsafe {
            let region = bench_ucx_get(self.0, at.cast(), len);
            if !region.is_null() {
                bench_ucx_put(self.0, black_box(region));
            }
        }
    }
}

/// The library's version, such as `1.13`.
pub(crate) fn ucx_version() -> String {
    format!("{}.{}", bench_ucx_major(), bench_ucx_minor())
}
