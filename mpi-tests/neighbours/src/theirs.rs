//! The neighbour's library, behind theirs.c.
#![allow(unsafe_code)]

use crate::Failure;
use crate::changes::Pages;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

type Text = *const c_char;

/// Its handlers stay known to the libraries that it has started: never unloaded.
pub(crate) struct Theirs {
    library: ManuallyDrop<Library>,
}

fn text(pointer: Text) -> Option<String> {
    // SAFETY: theirs.c returns null or constant texts.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

impl Theirs {
    /// Loads and starts it.
    pub(crate) fn start(path: &Path, caches: &str) -> Result<Theirs, Failure> {
        // SAFETY: theirs.c and the libraries that it is linked with; global, as an
        // MPI's own components expect.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let theirs = Theirs { library: ManuallyDrop::new(library) };
        let names = CString::new(caches).map_err(|error| error.to_string())?;
        // SAFETY: as theirs.c declares it.
        let failure = unsafe {
            let start = theirs.library.get::<extern "C" fn(Text) -> Text>(b"theirs_start");
            start.map_err(|error| error.to_string())?(names.as_ptr())
        };
        text(failure).map_or(Ok(theirs), |why| Err(format!("theirs cannot start: {why}")))
    }

    /// Its caches hold `pages`, and forget what they were told.
    pub(crate) fn watch(&self, pages: &Pages) -> Result<(), Failure> {
        // SAFETY: as theirs.c declares it; the pages are mapped.
        let failure = unsafe {
            let watch = self.library.get::<extern "C" fn(*mut c_void, usize) -> Text>(b"theirs_watch");
            watch.map_err(|error| error.to_string())?(pages.at as *mut c_void, pages.len)
        };
        text(failure).map_or(Ok(()), Err)
    }

    /// The caches that know of a change since `watch`.
    pub(crate) fn told(&self) -> Vec<String> {
        // SAFETY: as theirs.c declares them.
        unsafe {
            let (Ok(count), Ok(name), Ok(told)) = (
                self.library.get::<extern "C" fn() -> c_int>(b"theirs_count"),
                self.library.get::<extern "C" fn(c_int) -> Text>(b"theirs_name"),
                self.library.get::<extern "C" fn(c_int) -> c_int>(b"theirs_told"),
            ) else {
                return Vec::new();
            };
            (0..count()).filter(|&cache| told(cache) == 1).filter_map(|cache| text(name(cache))).collect()
        }
    }

    /// Ends it, as its program would; it stays loaded.
    pub(crate) fn stop(&self) {
        // SAFETY: as theirs.c declares it.
        if let Ok(stop) = unsafe { self.library.get::<extern "C" fn()>(b"theirs_stop") } {
            stop();
        }
    }
}
