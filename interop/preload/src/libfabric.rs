//! libfabric: the monitor goes under its cache before its first caller gets
//! anything from it, and under those of the providers that it loads.

use crate::caller;
use crate::guarded;
use crate::process;
use crate::providers;
use crate::say::say;
use crate::settings::{Level, settings};
use crate::stubs::Seven;
use crate::unattached;
use core::ffi::CStr;
use pinyard_libfabric::{Holder, ImportError, check_environment, import_monitor_into, monitor_stats};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::{Mutex, MutexGuard};

/// `-FI_ENOSYS`: there is no libfabric behind us.
const NO_FUNCTION: isize = -(libc::ENOSYS as isize);

/// The objects that have been looked at, by the loader's name for them. Held while a
/// monitor goes in: no thread opens a domain in between.
static SEEN: Mutex<Vec<CString>> = Mutex::new(Vec::new());

/// Who looks at objects.
struct AtWork(MutexGuard<'static, Vec<CString>>);

fn at_work() -> AtWork {
    AtWork(SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

impl AtWork {
    /// Whether `object` is seen for the first time.
    fn is_new(&mut self, object: &CStr) -> bool {
        let new = !self.0.iter().any(|known| known.as_c_str() == object);
        if new {
            self.0.push(object.to_owned());
        }
        new
    }
}

macro_rules! intercepted {
    ($($function:ident = $name:literal)*) => {$(
        #[allow(clippy::too_many_arguments)]
        pub(crate) extern "C" fn $function(
            a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, caller: usize,
        ) -> isize {
            let Some(real) = caller::real($name, caller) else { return NO_FUNCTION };
            guarded(|| before(real, at_work()));
            // SAFETY: the function that the caller would have called without us, which
            // reads of these arguments those that it has.
            let real = unsafe { core::mem::transmute::<usize, Seven>(real) };
            let result = real(a, b, c, d, e, f, g);
            guarded(|| after(at_work()));
            guarded(|| opened($name, a, result));
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
fn before(real: usize, mut work: AtWork) {
    let settings = settings();
    if !settings.on || !settings.libfabric {
        return;
    }
    if let Some(object) = caller::object_name(real)
        && work.is_new(object)
    {
        let path = Path::new(OsStr::from_bytes(object.to_bytes()));
        // Before anything is installed: what is left alone finds libc as it was.
        if let Err(error) = check_environment() {
            return say(Level::Error, format_args!("{}: left alone: {error}", path.display()));
        }
        import(object, Holder::Core);
        providers::switch_off_unreachable(path);
    }
}

/// A function of libfabric's has run: it may have loaded providers.
fn after(mut work: AtWork) {
    let settings = settings();
    if settings.on && settings.libfabric && check_environment().is_ok() {
        for provider in providers::loaded_since() {
            if work.is_new(&provider) {
                import(&provider, Holder::Provider);
            }
        }
    }
}

/// `function` has returned `result`; `first` is its first argument.
fn opened(function: &CStr, first: usize, result: isize) {
    let settings = settings();
    // An int.
    if result as i32 != 0 || !settings.on || !settings.libfabric {
        return;
    }
    if function == c"fi_fabric" {
        unattached::fabric_opened(first);
    } else if function == c"fi_fabric2" {
        unattached::fabric_opened(unattached::attr_of(first));
    }
}

fn import(object: &CStr, holder: Holder) {
    let report = pinyard_hooks::install();
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
        (Err(ImportError::Absent { .. }), Holder::Provider)
            if providers::are_off() || !providers::may_cache(Path::new(name)) => {}
        (Err(ImportError::Absent { text }), Holder::Provider) => say(
            Level::Error,
            format_args!(
                "{path}: its cache keeps its own monitor, because it exports no way in ({text}); with \
                 FI_MR_CACHE_MAX_COUNT=0 it caches nothing"
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
