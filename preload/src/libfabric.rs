//! libfabric: the monitor goes under its cache before its first caller gets
//! anything from it, and under those of the providers that it loads.

use crate::caller;
use crate::guarded;
use crate::process;
use crate::say::say;
use crate::settings::{Level, settings};
use crate::stubs::Seven;
use core::ffi::{CStr, c_int, c_void};
use pinyard_libfabric::{Holder, ImportError, import_monitor_into, monitor_stats};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard};

/// `-FI_ENOSYS`: there is no libfabric behind us.
const NO_FUNCTION: isize = -(libc::ENOSYS as isize);

/// The objects that have been looked at, by the loader's name for them.
static SEEN: Mutex<Vec<CString>> = Mutex::new(Vec::new());
/// Objects that the loader had loaded, ever, when providers were last looked for.
static LOADED: AtomicU64 = AtomicU64::new(0);

fn seen() -> MutexGuard<'static, Vec<CString>> {
    SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether `object` is seen for the first time.
fn is_new(object: &CStr) -> bool {
    let mut seen = seen();
    let new = !seen.iter().any(|known| known.as_c_str() == object);
    if new {
        seen.push(object.to_owned());
    }
    new
}

macro_rules! intercepted {
    ($($function:ident = $name:literal)*) => {$(
        #[allow(clippy::too_many_arguments)]
        pub(crate) extern "C" fn $function(
            a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, caller: usize,
        ) -> isize {
            let Some(real) = caller::real($name, caller) else { return NO_FUNCTION };
            guarded(|| before(real));
            // SAFETY: the function that the caller would have called without us, which
            // reads of these arguments those that it has.
            let real = unsafe { core::mem::transmute::<usize, Seven>(real) };
            let result = real(a, b, c, d, e, f, g);
            guarded(after);
            result
        }
    )*};
}

intercepted! {
    getinfo = c"fi_getinfo"
    fabric = c"fi_fabric"
    fabric2 = c"fi_fabric2"
    open = c"fi_open"
}

/// libfabric's function at `real` is about to run.
fn before(real: usize) {
    let settings = settings();
    if !settings.on || !settings.libfabric {
        return;
    }
    if let Some(object) = caller::object_name(real)
        && is_new(object)
    {
        import(object, Holder::Core);
    }
}

/// A function of libfabric's has run: it may have loaded providers.
fn after() {
    let settings = settings();
    if settings.on && settings.libfabric {
        for provider in providers_loaded_since() {
            if is_new(&provider) {
                import(&provider, Holder::Provider);
            }
        }
    }
}

/// The names of providers' files that are loaded, if any object has been loaded
/// since the last time. libfabric takes files whose names end in `-fi.so`
/// (`src/fabric.c`, `FI_LIB_SUFFIX`).
fn providers_loaded_since() -> Vec<CString> {
    struct Found {
        loaded: u64,
        providers: Vec<CString>,
    }
    extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader's record and the `Found` below, for the time of the call.
        let (info, found) = unsafe { (&*info, &mut *found.cast::<Found>()) };
        found.loaded = info.dlpi_adds;
        if LOADED.load(Acquire) == info.dlpi_adds {
            return 1;
        }
        if !info.dlpi_name.is_null() {
            // SAFETY: the loader's own string.
            let name = unsafe { CStr::from_ptr(info.dlpi_name) };
            if name.to_bytes().ends_with(b"-fi.so") {
                found.providers.push(name.to_owned());
            }
        }
        0
    }
    let mut found = Found { loaded: 0, providers: Vec::new() };
    // SAFETY: `each` has this signature and uses `found` while the call lasts.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut found).cast()) };
    LOADED.store(found.loaded, Release);
    found.providers
}

fn import(object: &CStr, holder: Holder) {
    let report = process::hooks();
    let hooks = process::in_words(&report);
    let name = OsStr::from_bytes(object.to_bytes());
    let path = name.display();
    match (import_monitor_into(name, holder, &report), holder) {
        (Ok(import), Holder::Core) => {
            let (major, minor) = import.version;
            if report.is_complete() {
                say(
                    Level::Info,
                    format_args!("libfabric {major}.{minor} ({path}): memory monitor imported; {hooks}"),
                );
            } else {
                say(
                    Level::Error,
                    format_args!(
                        "libfabric {major}.{minor} ({path}): memory monitor imported, which answers no: \
                         libfabric caches no registration, because not every change would be seen; {hooks}"
                    ),
                );
            }
            at_exit();
        }
        (Ok(_), Holder::Provider) => {
            say(Level::Info, format_args!("{path}: memory monitor imported into the provider's own cache"));
        }
        (Err(error @ ImportError::MonitorChosen { .. }), Holder::Core) => {
            say(Level::Error, format_args!("{path}: left alone: {error}"));
        }
        (Err(ImportError::MonitorChosen { .. }), Holder::Provider) => {}
        (Err(ImportError::Absent { text }), Holder::Provider) => say(
            Level::Error,
            format_args!(
                "{path} has a cache of its own and exports no way to it ({text}); it keeps its own monitor: \
                 set FI_MR_CACHE_MAX_COUNT=0 to have nothing cached"
            ),
        ),
        (Err(error), _) => say(Level::Error, format_args!("{path}: no memory monitor imported: {error}")),
    }
}

/// Says at the end what the monitors have done, where that is asked for.
fn at_exit() {
    static ONCE: AtomicBool = AtomicBool::new(false);
    extern "C" fn counts() {
        guarded(|| {
            if let Some(stats) = monitor_stats() {
                say(
                    Level::Debug,
                    format_args!(
                        "libfabric: {} lookups, {} stale, {} subscribed, {} refused, {} events, {} delivered",
                        stats.valid_calls,
                        stats.stale_answers,
                        stats.subscriptions,
                        stats.refusals,
                        stats.events,
                        stats.deliveries
                    ),
                );
            }
        });
    }
    if settings().log >= Level::Debug && !ONCE.swap(true, AcqRel) {
        // SAFETY: a plain function; where it is refused, the line is missing.
        unsafe { libc::atexit(counts) };
    }
}
