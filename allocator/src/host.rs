//! Host memory: anonymous mappings of its own, on huge pages where the system
//! has them.
//!
//! The mappings are aligned to 2 MiB and never handed to malloc, so no page of
//! theirs is ever registered or released by somebody else. Calls go past the
//! hooks: the pool itself tells the registry.
#![allow(unsafe_code)]

use crate::pressure::{HostLimits, Room};
use crate::source::{DriverToken, HostMemory, Segment, Source, SourceError};
use pinyard_hooks::sys;

/// The size of a huge page on x86-64.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Maps host memory with `MADV_HUGEPAGE`.
#[derive(Clone, Debug)]
pub struct HostSource {
    limits: HostLimits,
}

impl HostSource {
    /// One that is limited as this process is.
    pub fn new() -> HostSource {
        HostSource::limited(HostLimits::of_process())
    }

    /// One that is limited otherwise, for what is said of memory that is left.
    pub fn limited(limits: HostLimits) -> HostSource {
        HostSource { limits }
    }
}

impl Default for HostSource {
    fn default() -> HostSource {
        HostSource::new()
    }
}

fn refused(bytes: usize, errno: i32) -> SourceError {
    const HINT: &str = "; see `ulimit -v`, vm.overcommit_memory and vm.max_map_count";
    failed(format!("mmap of {bytes} bytes"), errno, HINT)
}

/// `bytes`, a multiple of a page's, of zeroed pages.
pub(crate) fn map_pages(bytes: usize) -> Result<Segment, SourceError> {
    let start = pinyard_hooks::map_to_register(0, bytes).map_err(|errno| refused(bytes, errno))?;
    Ok(Segment { start, bytes })
}

/// At least `bytes` of zeroed pages, from a multiple of 2 MiB on.
pub(crate) fn map(bytes: usize) -> Result<Segment, SourceError> {
    let too_many = || refused(bytes, libc::ENOMEM);
    let bytes = bytes.checked_next_multiple_of(HUGE_PAGE).ok_or_else(too_many)?;
    let mapped = bytes.checked_add(HUGE_PAGE).ok_or_else(too_many)?;
    let at = map_pages(mapped)?.start;
    let start = at.next_multiple_of(HUGE_PAGE);
    let (head, tail) = (start - at, at + mapped - (start + bytes));
    for (from, length) in [(at, head), (start + bytes, tail)] {
        if length > 0 {
            // SAFETY: an end of the new mapping, which nobody has seen. A refusal
            // leaves untouched address space behind, no memory.
            let _ = unsafe { sys::munmap(from, length) };
        }
    }
    // EINVAL: a kernel without transparent huge pages; small ones serve.
    // SAFETY: our new mapping; the advice keeps its contents.
    let _ = unsafe { sys::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    Ok(Segment { start, bytes })
}

/// # Safety
/// The segment came from [`map`] or [`map_pages`], and nobody uses it.
pub(crate) unsafe fn unmap(Segment { start, bytes }: Segment) -> Result<(), SourceError> {
    // SAFETY: the caller's contract.
    unsafe { sys::munmap(start, bytes) }
        .map_err(|errno| failed(format!("munmap({start:#x}, {bytes})"), errno, ""))
}

pub(crate) fn failed(call: String, errno: i32, hint: &str) -> SourceError {
    SourceError { call, reason: std::io::Error::from_raw_os_error(errno).to_string(), hint: hint.to_owned() }
}

// SAFETY: `grow` returns a fresh private anonymous mapping, zeroed by the kernel,
// trimmed to multiples of 2 MiB.
unsafe impl Source for HostSource {
    fn name(&self) -> &'static str {
        "host"
    }

    fn granularity(&self) -> usize {
        HUGE_PAGE
    }

    fn room(&self, _: &DriverToken) -> Option<Room> {
        self.limits.memory()
    }

    fn grow(&self, bytes: usize, _: &DriverToken) -> Result<Segment, SourceError> {
        map(bytes)
    }

    unsafe fn shrink(&self, segment: Segment, _: &DriverToken) -> Result<(), SourceError> {
        // SAFETY: our own mapping, which nobody uses (the caller's contract).
        unsafe { unmap(segment) }
    }
}

// SAFETY: private anonymous mappings, readable and writable, zeroed by the kernel.
unsafe impl HostMemory for HostSource {}
