//! A fabric whose registrations reach no monitor of ours.
//!
//! No function of libfabric's that registers memory has a symbol: `fi_mr_reg` calls
//! through tables of the provider's. Two things can be seen. A domain attaches its cache
//! to the monitor before it registers anything, and the kernel counts pinned pages
//! (`VmPin`). So where a provider that caches has been opened and pages are pinned, but no
//! cache has been attached, what pins them does not ask the monitor.

use crate::providers;
use crate::say::say;
use crate::settings::Level;
use core::ffi::{CStr, c_char, c_void};
use pinyard_hooks::fork_generation;
use pinyard_libfabric::{every_round, monitor_is_attached, monitor_stats};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

/// Those that use libfabric's cache unless they are told not to.
const CACHING: [&[u8]; 5] = [b"verbs", b"efa", b"cxi", b"opx", b"lpp"];

/// The beginning of `struct fi_fabric_attr` (`rdma/fabric.h`).
#[repr(C)]
struct FabricAttr {
    fabric: *mut c_void,
    name: *const c_char,
    provider: *const c_char,
}

/// Where `struct fi_info` has its `fabric_attr` (`rdma/fabric.h`).
const FABRIC_ATTR: usize = 104;

/// The `fabric_attr` of a `struct fi_info`, the first argument of `fi_fabric2`.
pub(crate) fn attr_of(info: usize) -> usize {
    if info == 0 {
        return 0;
    }
    // SAFETY: libfabric has just read the same field of the same structure, which never moved.
    unsafe { ((info + FABRIC_ATTR) as *const usize).read() }
}

/// KiB that were pinned when the first such fabric was opened.
static BEFORE: AtomicU64 = AtomicU64::new(0);
/// It is known, one way or the other.
static KNOWN: AtomicBool = AtomicBool::new(false);
/// The process that opened the fabric, as a fork generation.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// `fi_fabric(attr, …)` has succeeded.
pub(crate) fn fabric_opened(attr: usize) {
    static ONCE: AtomicBool = AtomicBool::new(false);
    // SAFETY: libfabric has just read the same structure, whose beginning never changed.
    let provider = unsafe { (attr as *const FabricAttr).as_ref() }.map(|attr| attr.provider);
    let Some(provider) = provider.filter(|name| !name.is_null() && !ONCE.load(Acquire)) else { return };
    // SAFETY: the caller's NUL-terminated text.
    let name = unsafe { CStr::from_ptr(provider) };
    let caches = name.to_bytes().split(|&byte| byte == b';').any(|layer| CACHING.contains(&layer));
    if !caches || providers::are_off() || monitor_stats().is_none() || ONCE.swap(true, AcqRel) {
        return;
    }
    BEFORE.store(pinned(), Relaxed);
    OWNER.store(fork_generation(), Release);
    extern "C" fn at_exit() {
        crate::guarded(|| look(true));
    }
    // Where there is no thread, and for a program that is too quick for it.
    // SAFETY: a plain function; where it is refused, the rounds remain.
    unsafe { libc::atexit(at_exit) };
    // Its error: no thread, of which the import has said a line.
    let _ = every_round(look);
}

/// By the helper thread every 50 ms, until it is known.
fn look(_complete: bool) {
    if KNOWN.load(Acquire) || OWNER.load(Acquire) != fork_generation() {
        return;
    }
    if monitor_is_attached() {
        return KNOWN.store(true, Release);
    }
    let (before, now) = (BEFORE.load(Relaxed), pinned());
    if now > before && !KNOWN.swap(true, AcqRel) {
        say(
            Level::Error,
            format_args!(
                "libfabric: {} KiB are pinned since a fabric was opened, and no cache of libfabric's has asked \
                 for the memory monitor: registrations are cached by somebody else, or not at all; if data is \
                 wrong, set FI_MR_CACHE_MAX_COUNT=0",
                now - before
            ),
        );
    }
}

/// KiB that devices have pinned of this process; 0 where the kernel does not say.
fn pinned() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    of_status(&status)
}

fn of_status(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_kibibytes_are_read() {
        assert_eq!(of_status("VmLck:\t       8 kB\nVmPin:\t    1280 kB\nVmHWM:\t 1 kB\n"), 1280);
        assert_eq!(of_status("VmLck:\t       8 kB\n"), 0);
    }
}
