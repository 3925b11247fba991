//! Opening libfabric and putting the monitor under its caches.
#![allow(unsafe_code)]

use super::abi::{self, Fid, FidMemMonitor, MonitorOps};
use super::error::ImportError;
use super::helper::Helper;
use super::monitor::{KEYS, Monitor};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::{NonNull, null, null_mut};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

const LIBRARY: &str = "libfabric.so.1";
/// Its cache accepts a monitor since 1.13, which had deadlocks of its own in
/// that place; Open MPI asks for 1.14 as well.
const OLDEST: (u32, u32) = (1, 14);
/// libfabric prefers what this names to an imported monitor.
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
    let complete = pinyard_hooks::verify();
    of(fid).trust(complete);
    if complete { abi::SUCCESS } else { -abi::ENOSYS }
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

/// The functions of libfabric that are used here.
struct Libfabric {
    library: Library,
    open: abi::Open,
    strerror: abi::StrError,
    version: (u32, u32),
}

impl Libfabric {
    fn load() -> Result<Libfabric, ImportError> {
        let absent = |error: libloading::Error| {
            // The loader's own words are the source of libloading's error.
            let words = std::error::Error::source(&error).map_or(String::new(), |words| format!(": {words}"));
            ImportError::Absent { text: format!("{error}{words}") }
        };
        // SAFETY: libfabric's initialisers touch nothing of ours; the library
        // stays loaded for ever once the import has succeeded.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_LOCAL) }.map_err(absent)?;
        // SAFETY: the types are those of `rdma/fabric.h` and `rdma/fi_errno.h`.
        let (open, strerror, version) = unsafe {
            (
                *library.get::<abi::Open>(b"fi_open\0").map_err(absent)?,
                *library.get::<abi::StrError>(b"fi_strerror\0").map_err(absent)?,
                *library.get::<abi::Version>(b"fi_version\0").map_err(absent)?,
            )
        };
        // SAFETY: no arguments, no preconditions.
        let version = unsafe { version() };
        let version = (version >> 16, version & 0xffff);
        if version < OLDEST {
            return Err(ImportError::TooOld { version, oldest: OLDEST });
        }
        Ok(Libfabric { library, open, strerror, version })
    }

    /// `code` is what a function of libfabric returned: 0 or a negative errno.
    fn check(&self, call: &'static str, code: c_int) -> Result<(), ImportError> {
        if code == abi::SUCCESS {
            return Ok(());
        }
        // SAFETY: `fi_strerror` takes any number and returns a static text.
        let text: *const c_char = unsafe { (self.strerror)(-code) };
        let text = if text.is_null() {
            String::new()
        } else {
            // SAFETY: not null: NUL-terminated, and it outlives the library's use.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(ImportError::Call { call, code, text })
    }

    /// The object that stands for all caches of the process.
    fn open_cache(&self) -> Result<NonNull<Fid>, ImportError> {
        let mut cache: *mut Fid = null_mut();
        // SAFETY: the arguments that `fi_ext.h` asks for; `cache` is written on success.
        let code = unsafe {
            (self.open)(abi::API_VERSION, c"mr_cache".as_ptr(), null_mut(), 0, 0, &raw mut cache, null_mut())
        };
        self.check("fi_open(1.13, mr_cache)", code)?;
        NonNull::new(cache).ok_or(ImportError::Call {
            call: "fi_open(1.13, mr_cache): no object",
            code: 0,
            text: String::new(),
        })
    }
}

/// # Safety
/// `fid` is an open object of libfabric, not used afterwards.
unsafe fn close(fid: *mut Fid) {
    // SAFETY: an open object has its operations; the caller gives it up.
    unsafe { ((*(*fid).ops).close)(fid) };
}

/// Everything that one import consists of, kept for the rest of the process.
pub(super) fn import() -> Result<&'static Imported, ImportError> {
    if let Some(value) = std::env::var_os(MONITOR_VARIABLE).filter(|value| !value.is_empty()) {
        return Err(ImportError::MonitorChosen { value: value.to_string_lossy().into_owned() });
    }
    let libfabric = Libfabric::load()?;
    let report = pinyard_hooks::install();
    if !report.is_complete() {
        return Err(ImportError::HooksIncomplete { report: Box::new(report) });
    }
    let sink = pinyard_hooks::subscribe().ok_or(ImportError::NoSink)?;
    let imported = Imported::new(Monitor::new(sink, KEYS));
    let cache = libfabric.open_cache()?.as_ptr();
    // From here libfabric may know the pointer: no Box that moves or frees it.
    let imported = Box::into_raw(imported);
    // SAFETY: both are open objects; libfabric writes into `*imported`'s first
    // field only. `FidMemMonitor` starts with its `Fid`.
    let code = unsafe { ((*(*cache).ops).bind)(cache, (*imported).fid().cast::<Fid>(), 0) };
    // SAFETY: the cache object was only the way in; libfabric frees it and keeps
    // the monitor.
    unsafe { close(cache) };
    let bound = if code == -abi::EBUSY {
        Err(ImportError::Busy { version: libfabric.version })
    } else {
        libfabric.check("fi_import_fid(mr_cache, memory monitor)", code)
    };
    if let Err(error) = bound {
        // SAFETY: from `Box::into_raw` above; libfabric refused the pointer and
        // kept none (every check in its import comes before the first store).
        drop(unsafe { Box::from_raw(imported) });
        return Err(error);
    }
    // SAFETY: never freed from here on, and only shared.
    let imported: &'static Imported = unsafe { &*imported };
    if let Err(error) = Helper::spawn(imported) {
        // SAFETY: an import that succeeded made `fid` an open object; closing it
        // makes libfabric forget the pointer. The memory stays, and is not used.
        unsafe { close(imported.fid().cast::<Fid>()) };
        return Err(ImportError::Thread(error));
    }
    // Callbacks come from it until the process ends.
    core::mem::forget(libfabric.library);
    Ok(imported)
}
