//! The caches under comparison behind one interface, and the memory they map.
#![allow(unsafe_code)]

use pinyard_bench_report::Absence;
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, Coarsen, MemoryKey, Registry};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_ulong, c_void};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

thread_local! {
    /// How long the calling thread's registrations take.
    static STALL: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The calling thread's registrations take this long from now on.
pub(crate) fn registrations_take(time: Duration) {
    STALL.set(time);
}

/// The dummy registration of both.
fn register(made: &AtomicU64) {
    made.fetch_add(1, Relaxed);
    if !STALL.get().is_zero() {
        std::thread::sleep(STALL.get());
    }
}

/// Something that finds a registration and lets it go.
pub(crate) trait Peer: Sync + Sized {
    const NAME: &'static str;
    /// A cache of at most `regions`.
    fn new(regions: usize) -> Result<Self, String>;
    /// One get and release of `len` bytes at `at`.
    fn hit(&self, at: *mut u8, len: usize);
    /// The bytes are about to be unmapped.
    fn event(&self, at: *mut u8, len: usize);
    /// Registrations made.
    fn made(&self) -> u64;
}

/// An anonymous mapping, of which nothing is resident.
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

    /// Makes every page resident.
    pub(crate) fn touch(&self) {
        // SAFETY: the whole mapping, which is writable.
        unsafe { self.at(0).write_bytes(1, self.len) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`; the caches that knew it are gone.
        let _ = unsafe { pinyard_hooks::sys::munmap(self.base, self.len) };
    }
}

/// pinyard's registry with a dummy registration, hooks installed.
pub(crate) struct Ours {
    registry: Registry,
    made: Arc<AtomicU64>,
}

impl Ours {
    /// A cache of at most `regions`, whose registrations grow to huge pages.
    pub(crate) fn coarse(regions: usize) -> Result<Ours, String> {
        Ours::over(regions, Coarsen::HugePage)
    }

    fn over(regions: usize, coarsen: Coarsen) -> Result<Ours, String> {
        let made: Arc<AtomicU64> = Arc::default();
        let counter = made.clone();
        let register = move |_, _| {
            register(&counter);
            Ok(MemoryKey::default())
        };
        let backend = Custom::new("dummy", register, |_, _| Ok(()));
        let builder = Registry::builder().backend(backend).budget(usize::MAX).max_regions(regions);
        let registry = builder.coarsen(coarsen).build();
        registry.map(|registry| Ours { registry, made }).map_err(|error| error.to_string())
    }

    pub(crate) fn lookup(&self, at: *mut u8, len: usize) {
        black_box(self.registry.lookup((at, len), Access::LOCAL_WRITE));
    }

    /// Bytes registered now.
    pub(crate) fn pinned(&self) -> u64 {
        self.registry.stats().pinned_bytes
    }
}

impl Peer for Ours {
    const NAME: &'static str = "pinyard";

    fn new(regions: usize) -> Result<Ours, String> {
        Ours::over(regions, Coarsen::Never)
    }

    #[inline]
    fn hit(&self, at: *mut u8, len: usize) {
        drop(black_box(self.registry.get((at, len), Access::LOCAL_WRITE)));
    }

    #[inline]
    fn event(&self, at: *mut u8, len: usize) {
        pinyard_hooks::notify_unmapped(at, len);
    }

    fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }
}

/// Called from the shim's registration.
///
/// # Safety
/// `counter` is the one that the cache was made with, and lives.
#[unsafe(no_mangle)]
unsafe extern "C" fn bench_register(counter: *mut c_void) {
    // SAFETY: the caller's contract.
    register(unsafe { &*counter.cast::<AtomicU64>() });
}

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
pub(crate) fn load_ucx() -> Result<String, Absence> {
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
    let (mut headers, version) = ([0; 2], ucx_version()?);
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
fn ucx_version() -> Result<[u32; 3], Absence> {
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
