//! The caches under comparison behind one interface, and the memory they map.
#![allow(unsafe_code)]

pub(crate) mod libfabric;
mod ours;
pub(crate) mod ucx;

pub(crate) use libfabric::Libfabric;
pub(crate) use ours::Ours;
pub(crate) use ucx::Ucx;

use std::cell::Cell;
use std::ffi::c_void;
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

/// The dummy registration of all.
fn register(made: &AtomicU64) {
    made.fetch_add(1, Relaxed);
    if !STALL.get().is_zero() {
        std::thread::sleep(STALL.get());
    }
}

/// Something that finds a registration and lets it go.
pub(crate) trait Cache: Sync {
    /// One get and release of `len` bytes at `at`.
    fn hit(&self, at: *mut u8, len: usize);
    /// The bytes are about to be unmapped.
    fn event(&self, at: *mut u8, len: usize);
    /// Registrations made.
    fn made(&self) -> u64;
}

/// A cache that is made by its name.
pub(crate) trait Peer: Cache + Sized {
    const NAME: &'static str;
    /// A cache of at most `regions`.
    fn new(regions: usize) -> Result<Self, String>;
}

/// In steps of so many bytes the hooks note where anything but private anonymous memory is.
const GRANULE: usize = 2 << 20;

/// An anonymous mapping, of which nothing is resident.
///
/// It shares no granule with another mapping: where a file is mapped so near, as libraries
/// are beside what the kernel places first, each of our misses asks the kernel what is there.
pub(crate) struct Memory {
    base: usize,
    len: usize,
    /// From the mapping's start to `base`.
    before: usize,
}

impl Memory {
    pub(crate) fn map(len: usize) -> Result<Memory, String> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (both, whole) = (libc::PROT_READ | libc::PROT_WRITE, Memory::with_margins(len));
        // SAFETY: a fresh anonymous mapping.
        let start = unsafe { pinyard_hooks::sys::mmap(0, whole, both, flags) }
            .map_err(|errno| format!("mmap({whole} bytes) failed: errno {errno}"))?;
        let base = start.next_multiple_of(GRANULE);
        Ok(Memory { base, len, before: base - start })
    }

    fn with_margins(len: usize) -> usize {
        len.next_multiple_of(GRANULE) + GRANULE
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
        let _ =
            unsafe { pinyard_hooks::sys::munmap(self.base - self.before, Memory::with_margins(self.len)) };
    }
}

/// Called from the shims' registrations.
///
/// # Safety
/// `counter` is the one that the shim was given, and lives.
#[unsafe(no_mangle)]
unsafe extern "C" fn bench_register(counter: *mut c_void) {
    // SAFETY: the caller's contract.
    register(unsafe { &*counter.cast::<AtomicU64>() });
}
