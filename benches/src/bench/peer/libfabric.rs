//! libfabric's `ofi_mr_cache`, over the stand-in device of `mpi-tests/incidents`.
//!
//! A hit is what its users call: `fi_mr_reg` and `fi_close`, with the verbs provider's handle
//! and the lock round the cache.
#![allow(unsafe_code)]

use super::{Cache, Peer};
use pinyard_cli::bench::Absence;
use std::ffi::{CStr, c_char, c_ulong, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

unsafe extern "C" {
    fn bench_libfabric_load(regions: c_ulong, imported: bool, made: *const AtomicU64) -> *const c_char;
    safe fn bench_libfabric_version() -> *const c_char;
    safe fn bench_libfabric_create() -> *mut c_void;
    fn bench_libfabric_destroy(domain: *mut c_void);
    fn bench_libfabric_hit(domain: *mut c_void, address: *const c_void, length: usize) -> bool;
    safe fn bench_libfabric_unmapped(address: *const c_void, length: usize);
}

/// Registrations of this process: the device is one for all domains.
static MADE: AtomicU64 = AtomicU64::new(0);

/// Who tells libfabric's caches of changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Monitor {
    /// Its own default, which patches libc: for a process without another patcher.
    Memhooks,
    /// [`Libfabric::event`].
    Imported,
}

/// Opens the library, whose caches hold at most `regions` in this process, and says which
/// version it is, or why there is none. Once in a process, before there are threads.
pub(crate) fn load(regions: usize, monitor: Monitor) -> Result<String, Absence> {
    // SAFETY: the counter lives for ever; nobody else reads the environment meanwhile.
    let failure = unsafe { bench_libfabric_load(regions as c_ulong, monitor == Monitor::Imported, &MADE) };
    if failure.is_null() {
        // SAFETY: a NUL-terminated text of libfabric's own, which its next call replaces.
        return Ok(unsafe { CStr::from_ptr(bench_libfabric_version()) }.to_string_lossy().into_owned());
    }
    // SAFETY: a NUL-terminated text of dlerror's or of the shim's own.
    let why = unsafe { CStr::from_ptr(failure) }.to_string_lossy().into_owned();
    let remedy = if why.starts_with("built without") {
        "install libfabric-dev, libibverbs-dev and librdmacm-dev, and build pinyard-bench again"
    } else {
        "install libfabric with its verbs provider (libfabric1), or name its folder in LD_LIBRARY_PATH"
    };
    Err(Absence::new(why, remedy))
}

/// A domain, with a cache of its own.
pub(crate) struct Libfabric {
    domain: *mut c_void,
    made_before: u64,
}

// SAFETY: fi_mr_reg and fi_close of a region may be called from any thread (FI_THREAD_SAFE).
unsafe impl Sync for Libfabric {}

impl Drop for Libfabric {
    fn drop(&mut self) {
        // SAFETY: opened in `new`; no region is held.
        unsafe { bench_libfabric_destroy(self.domain) };
    }
}

impl Peer for Libfabric {
    const NAME: &'static str = "libfabric";

    /// The limit is [`load`]'s, for all caches of the process.
    fn new(_regions: usize) -> Result<Libfabric, String> {
        let (domain, made_before) = (bench_libfabric_create(), MADE.load(Relaxed));
        if domain.is_null() {
            Err("fi_domain(verbs) failed".to_owned())
        } else {
            Ok(Libfabric { domain, made_before })
        }
    }
}

impl Cache for Libfabric {
    #[inline]
    fn hit(&self, at: *mut u8, len: usize) {
        // SAFETY: the domain is open; the memory is mapped.
        black_box(unsafe { bench_libfabric_hit(self.domain, at.cast(), len) });
    }

    #[inline]
    fn event(&self, at: *mut u8, len: usize) {
        bench_libfabric_unmapped(at.cast(), len);
    }

    fn made(&self) -> u64 {
        MADE.load(Relaxed) - self.made_before
    }
}
