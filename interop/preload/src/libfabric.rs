//! libfabric: the monitor goes under its cache before its first caller gets
//! anything from it, and under those of the providers that it loads.

use crate::caller;
use crate::guarded;
use crate::loader;
use crate::object;
use crate::process;
use crate::providers;
use crate::say::say;
use crate::settings::{Level, settings};
use crate::stubs::Seven;
use crate::unattached;
use core::ffi::CStr;
use pinyard_libfabric::{Holder, Import, ImportError, check_environment, import_monitor_into, monitor_stats};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// `-FI_ENOSYS`: there is no libfabric behind us.
const NO_FUNCTION: isize = -(libc::ENOSYS as isize);

/// An object that has a copy of libfabric's cache.
struct Known {
    /// The loader's name for it.
    object: CString,
    /// It has started its providers, and their imports are finished.
    settled: AtomicBool,
}

/// The objects whose own import is finished. A thread whose object is missing here, or not settled, does
/// the whole work itself, even while another thread does it. So no thread waits for another, which may
/// be in the loader, and no thread opens a domain before a monitor is in. Once an object is settled, its
/// calls ask the loader nothing, whose locks a forked child may never get.
static KNOWN: boxcar::Vec<Known> = boxcar::Vec::new();

fn known(object: &CStr) -> Option<&'static Known> {
    KNOWN.iter().map(|(_, known)| known).find(|known| known.object.as_c_str() == object)
}

fn finished(object: &CStr) {
    KNOWN.push(Known { object: object.to_owned(), settled: AtomicBool::new(false) });
}

macro_rules! intercepted {
    ($($function:ident = $name:literal)*) => {$(
        #[allow(clippy::too_many_arguments)]
        pub(crate) extern "C" fn $function(
            a: usize, b: usize, c: usize, d: usize, e: usize, f: usize, g: usize, caller: usize,
        ) -> isize {
            let Some(real_address) = caller::real($name, caller) else { return NO_FUNCTION };
            guarded(|| before(real_address));
            // SAFETY: the function that the caller would have called without us, which
            // reads of these arguments those that it has.
            let real = unsafe { core::mem::transmute::<usize, Seven>(real_address) };
            let result = real(a, b, c, d, e, f, g);
            guarded(|| after(real_address, $name));
            guarded(|| opened($name, a, result));
            result
        }
    )*};
}

// All that start libfabric, or open its cache.
intercepted! {
    getinfo = c"fi_getinfo"
    getparams = c"fi_getparams"
    fabric = c"fi_fabric"
    fabric2 = c"fi_fabric2"
    open = c"fi_open"
}

/// libfabric's function at `real` is about to run.
fn before(real: usize) {
    static LEFT_ALONE: AtomicBool = AtomicBool::new(false);
    let settings = settings();
    if !settings.on || !settings.libfabric {
        return;
    }
    let Some(object) = object::name_at(real).filter(|object| known(object).is_none()) else { return };
    let path = Path::new(OsStr::from_bytes(object.to_bytes()));
    match check_environment() {
        // Before anything is installed: what is left alone finds libc as it was.
        Err(error) if !LEFT_ALONE.swap(true, AcqRel) => {
            say(Level::Error, format_args!("{}: left alone: {error}", path.display()));
        }
        Err(_) => {}
        Ok(()) => {
            import(object, Holder::Core);
            // Of a libfabric that started unseen, by an address from dlsym.
            into_providers();
            providers::switch_off_unreachable(object, is_loaded);
        }
    }
    finished(object);
}

/// Whether the loader has loaded `file`, under whatever name.
fn is_loaded(file: &Path) -> bool {
    let file = file.canonicalize();
    let mut known = KNOWN.iter().map(|(_, known)| Path::new(OsStr::from_bytes(known.object.to_bytes())));
    file.is_ok_and(|file| known.any(|known| known.canonicalize().is_ok_and(|known| known == file)))
}

/// `function` of libfabric's, at `real`, has run: it may have loaded providers. Those that tell of fabrics
/// or open one have (`fi_ini` in `src/fabric.c`).
fn after(real: usize, function: &CStr) {
    let settings = settings();
    if !settings.on || !settings.libfabric {
        return;
    }
    let Some(known) = object::name_at(real).and_then(known) else { return };
    if known.settled.load(Acquire) {
        return;
    }
    if check_environment().is_ok() {
        into_providers();
    }
    let starts = [c"fi_getinfo", c"fi_fabric", c"fi_fabric2"].contains(&function);
    // Not before the imports: a thread that comes meanwhile looks itself.
    known.settled.fetch_or(starts, AcqRel);
}

/// Imports into the providers that are loaded. What has a provider's name, and not what libfabric calls
/// in one, is the program's own.
fn into_providers() {
    for provider in loader::loaded(providers::is_provider).iter() {
        if known(provider).is_none() && loader::has(provider, c"fi_prov_ini") {
            import(provider, Holder::Provider);
            finished(provider);
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
        // Another thread's, which says so.
        (Ok(Import { first: false, .. }), _) => {}
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
