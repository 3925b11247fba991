//! Putting the monitor under the caches of one copy of libfabric's.
#![allow(unsafe_code)]

use super::abi::{self, Fid, FidMemMonitor, MonitorOps};
use super::copy::Copy;
use super::error::ImportError;
use super::helper;
use super::monitor::{KEYS, Monitor};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};
use std::time::Duration;

/// libfabric prefers what this names to a monitor that was imported before it started; a
/// later import replaces it.
const MONITOR_VARIABLE: &str = "FI_MR_CACHE_MONITOR";

/// What libfabric holds a pointer to: its structure, and ours behind it.
#[repr(C)]
pub(super) struct Imported {
    /// First: libfabric's callbacks give this field's address. Written by
    /// libfabric at the import and when it is closed.
    fid: UnsafeCell<FidMemMonitor>,
    monitor: Monitor,
}

// SAFETY: libfabric writes `fid` under its own locks at the import; after that
// it is only read, by libfabric's threads and the helper. `Monitor` is Sync.
unsafe impl Sync for Imported {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Imported {}

impl Imported {
    pub(super) fn new(monitor: Monitor) -> Box<Imported> {
        let fid = Fid { class: abi::CLASS_MEM_MONITOR, context: null_mut(), ops: null_mut() };
        let fid = UnsafeCell::new(FidMemMonitor { fid, export_ops: &raw const OPS, import_ops: null() });
        Box::new(Imported { fid, monitor })
    }

    pub(super) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    pub(super) fn fid(&self) -> *mut FidMemMonitor {
        self.fid.get()
    }

    /// Tells libfabric's caches to drop what overlaps. Takes `mm_lock`.
    fn notify(&self, base: usize, len: usize) {
        // SAFETY: after a successful import `import_ops` is libfabric's static
        // table of functions and is not written again; `notify` compares the
        // range and reads none of it. The caller holds no lock of libfabric.
        unsafe {
            let ops = (*self.fid()).import_ops;
            if !ops.is_null() {
                ((*ops).notify)(self.fid(), base as *const c_void, len);
            }
        }
    }

    pub(super) fn deliver(&self) {
        self.monitor.deliver(|base, len| self.notify(base, len));
    }
}

static OPS: MonitorOps =
    MonitorOps { size: size_of::<MonitorOps>(), start, stop, subscribe, unsubscribe, valid };

/// The monitor that libfabric means.
fn of<'a>(fid: *mut FidMemMonitor) -> &'a Monitor {
    // SAFETY: libfabric passes back the pointer that it was given at the import,
    // which is the first field of an `Imported` (repr(C)) that is never freed
    // once the import has succeeded.
    &unsafe { &*fid.cast::<Imported>() }.monitor
}

/// The first cache is attached: under `mm_state_lock` only, so this is where the
/// hooks can be looked at once more; Open MPI has put its own in by now. A
/// refusal makes libfabric run without a cache.
extern "C" fn start(fid: *mut FidMemMonitor) -> c_int {
    let complete = once_repaired(pinyard_hooks::verify, pinyard_hooks::untouched);
    of(fid).trust(complete);
    of(fid).attach();
    if complete { abi::SUCCESS } else { -abi::ENOSYS }
}

/// What `verify` says when no other thread is repairing the entries at this moment:
/// libfabric asks once, and Open MPI patches just before it opens its domain. Waits a
/// second at most: whoever repairs may wait for the loader, whose lock the caller may
/// have.
fn once_repaired(mut verify: impl FnMut() -> bool, untouched: impl Fn() -> bool) -> bool {
    const TRIES: u32 = 1000;
    (0..TRIES)
        .find_map(|_| {
            let complete = verify();
            if complete || untouched() {
                return Some(complete);
            }
            std::thread::sleep(Duration::from_millis(1));
            None
        })
        .unwrap_or(false)
}

extern "C" fn stop(fid: *mut FidMemMonitor) {
    of(fid).stop();
}

/// Under `mm_lock`. On anything but success libfabric uses the registration once
/// and does not cache it.
extern "C" fn subscribe(fid: *mut FidMemMonitor, addr: *const c_void, len: usize) -> c_int {
    of(fid).subscribe(addr.addr(), len).map_or(-abi::EAGAIN, |()| abi::SUCCESS)
}

/// Under `mm_lock`. Never called before libfabric 2.1, and from then on also for
/// a subscription that was refused, without saying so: of no use, see `table.rs`.
extern "C" fn unsubscribe(_fid: *mut FidMemMonitor, _addr: *const c_void, _len: usize) {}

/// Under `mm_lock`.
extern "C" fn valid(fid: *mut FidMemMonitor, addr: *const c_void, len: usize) -> bool {
    of(fid).valid(addr.addr(), len)
}

/// # Safety
/// `fid` is an open object of libfabric, not used afterwards.
unsafe fn close(fid: *mut Fid) {
    // SAFETY: an open object has its operations; the caller gives it up.
    unsafe { ((*(*fid).ops).close)(fid) };
}

/// Whether an import would be heeded. Installs nothing.
///
/// # Errors
/// [`ImportError::MonitorChosen`]: `FI_MR_CACHE_MONITOR` names a monitor, which libfabric
/// takes over an imported one.
pub fn check_environment() -> Result<(), ImportError> {
    match std::env::var_os(MONITOR_VARIABLE).filter(|value| !value.is_empty()) {
        Some(value) => Err(ImportError::MonitorChosen { value: value.to_string_lossy().into_owned() }),
        None => Ok(()),
    }
}

/// Puts a monitor under the caches of `copy`, for the rest of the process. What
/// escapes the hooks is up to the caller: `trusted` is what the monitor starts with.
pub(super) fn import(copy: Copy, trusted: bool) -> Result<&'static Imported, ImportError> {
    let sink = pinyard_hooks::subscribe().ok_or(ImportError::NoSink)?;
    let imported = Imported::new(Monitor::new(sink, KEYS)?);
    imported.monitor().trust(trusted);
    let cache = copy.open_cache()?.as_ptr();
    // From here libfabric may know the pointer: no Box that moves or frees it.
    let imported = Box::into_raw(imported);
    // SAFETY: both are open objects; libfabric writes into `*imported`'s first
    // field only. `FidMemMonitor` starts with its `Fid`.
    let code = unsafe { ((*(*cache).ops).bind)(cache, (*imported).fid().cast::<Fid>(), 0) };
    // SAFETY: the cache object was only the way in; libfabric frees it and keeps
    // the monitor.
    unsafe { close(cache) };
    let bound = if code == -abi::EBUSY {
        Err(ImportError::Busy { version: copy.version })
    } else {
        copy.check("fi_import_fid(mr_cache, memory monitor)", code)
    };
    if let Err(error) = bound {
        // SAFETY: from `Box::into_raw` above; libfabric refused the pointer and
        // kept none (every check in its import comes before the first store).
        drop(unsafe { Box::from_raw(imported) });
        return Err(error);
    }
    // SAFETY: never freed from here on, and only shared.
    let imported: &'static Imported = unsafe { &*imported };
    if let Err(error) = helper::every_round(crate::round) {
        // SAFETY: an import that succeeded made `fid` an open object; closing it
        // makes libfabric forget the pointer. The memory stays, and is not used.
        unsafe { close(imported.fid().cast::<Fid>()) };
        return Err(ImportError::Thread(error));
    }
    copy.keep();
    Ok(imported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// What the first domain found while the helper was taking entries back: no cache
    /// for the rest of the process.
    #[test]
    fn the_first_domain_waits_for_a_repair_that_is_under_way() {
        let left = Cell::new(3);
        let verify = || {
            left.set(left.get() - 1);
            left.get() == 0
        };
        assert!(once_repaired(verify, || false));
        assert_eq!(left.get(), 0);
        assert!(!once_repaired(|| false, || true), "what is incomplete for good is not waited for");
    }
}
