//! Providers that libfabric loads from files of their own.
//!
//! Each is built with a copy of libfabric's cache, its lock and its monitors, whether
//! it uses them or not. Most export `ofi_open_mr_cache`, and with it the way in. What
//! is built with hidden symbols has no way in: its cache is switched off before
//! libfabric starts it, by the one setting that every copy reads then.

use crate::say::say;
use crate::settings::Level;
use core::ffi::{CStr, c_int, c_void};
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// What libfabric takes for a provider's file (`src/fabric.c`, `FI_LIB_SUFFIX`).
const SUFFIX: &str = "-fi.so";
/// Those whose source uses it in libfabric 1.17 to 2.6: `ofi_mr_cache_init`, and in opx
/// `ofi_monitors_add_cache`.
const CACHING: [&str; 5] = ["verbs", "efa", "cxi", "opx", "lpp"];
/// How many registrations a cache may hold; 0 is none.
const MAX_COUNT: &CStr = c"FI_MR_CACHE_MAX_COUNT";

/// Objects that the loader had loaded, ever, when providers were last looked for.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// Whether the provider in this file uses libfabric's cache.
pub(crate) fn caches(file: &Path) -> bool {
    let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    CACHING.iter().any(|provider| name == format!("lib{provider}{SUFFIX}"))
}

/// The names of providers' files that are loaded, if any object has been loaded
/// since the last time.
pub(crate) fn loaded_since() -> Vec<CString> {
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
            if name.to_bytes().ends_with(SUFFIX.as_bytes()) {
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

/// Where libfabric will look for providers' files: what `FI_PROVIDER_PATH` says, or
/// beside itself (`PROVDLDIR` is `$libdir/libfabric`). A program that runs with more rights
/// than its caller opens nothing that the environment names, and nobody opens what lies
/// somewhere below the working directory.
fn files(libfabric: &Path) -> Vec<PathBuf> {
    let heeded = |path: &OsString| !path.is_empty() && !pinyard_hooks::is_privileged();
    let said = std::env::var_os("FI_PROVIDER_PATH").filter(heeded);
    let said = said.as_deref().map(|path| path.as_bytes().strip_prefix(b"@").unwrap_or(path.as_bytes()));
    let mut files = Vec::new();
    let mut folders = Vec::new();
    match said {
        Some(path) if !path.is_empty() => {
            for part in path.split(|&byte| byte == b':') {
                match part.strip_prefix(b"+") {
                    Some(file) => files.push(PathBuf::from(OsStr::from_bytes(file))),
                    None => folders.push(PathBuf::from(OsStr::from_bytes(part))),
                }
            }
        }
        _ => folders.extend(libfabric.parent().map(|folder| folder.join("libfabric"))),
    }
    for folder in folders {
        // A folder that is not there has no providers.
        files.extend(std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()));
    }
    files.retain(|file| file.is_absolute());
    files
}

/// Before libfabric starts its providers: where one that caches has no way to its
/// cache, has nothing cached in this process.
pub(crate) fn switch_off_unreachable(libfabric: &Path) {
    // SAFETY: a NUL-terminated name.
    if !unsafe { libc::getenv(MAX_COUNT.as_ptr()) }.is_null() {
        return;
    }
    let Some(closed) = files(libfabric).into_iter().find(|file| caches(file) && !has_way_in(file)) else {
        return;
    };
    // SAFETY: NUL-terminated texts. Another thread that reads the environment at this
    // moment may read a table that is being replaced, as beside any setenv; libfabric's
    // first caller is the thread that starts MPI.
    unsafe { libc::setenv(MAX_COUNT.as_ptr(), c"0".as_ptr(), 0) };
    say(
        Level::Error,
        format_args!(
            "{}: its cache cannot be reached, because its symbols are hidden: FI_MR_CACHE_MAX_COUNT set to 0, \
             so libfabric caches no registration in this process; set it yourself to keep that provider's \
             own monitor",
            closed.display()
        ),
    );
}

/// Whether the provider exports the way to its cache. One that cannot be loaded has no
/// cache to reach.
fn has_way_in(file: &Path) -> bool {
    let Ok(name) = CString::new(file.as_os_str().as_bytes()) else { return true };
    // SAFETY: a provider's file, which libfabric is about to load in the same way; its
    // constructors do nothing before `fi_prov_ini`.
    unsafe {
        let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        handle.is_null() || !libc::dlsym(handle, c"ofi_open_mr_cache".as_ptr()).is_null()
    }
}
