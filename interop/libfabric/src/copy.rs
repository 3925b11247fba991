//! A copy of libfabric's registration cache: libfabric's own, or the one of a
//! provider that is loaded as a file of its own.
//!
//! Such a provider (`libverbs-fi.so` in Open MPI's wheel on PyPI) is built with all
//! of `prov/util`, so it has a lock, a default monitor and a cache of its own, which
//! `fi_open(mr_cache)` does not reach. It exports what that calls, though:
//! `ofi_open_mr_cache` (`prov/util/src/util_mr_cache.c`), unless it was built with
//! hidden symbols.
#![allow(unsafe_code)]

use super::abi::{self, Fid};
use super::error::ImportError;
use core::ffi::{CStr, c_char, c_int};
use core::ptr::{NonNull, null_mut};
use libc::RTLD_NOLOAD;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::OsStr;

/// Its cache accepts a monitor since 1.13, which had deadlocks of its own in
/// that place; Open MPI asks for 1.14 as well.
const OLDEST: (u32, u32) = (1, 14);

enum Way {
    /// `fi_open`.
    Core(abi::Open),
    /// `ofi_open_mr_cache`.
    Provider(abi::OpenCache),
}

/// The functions of one copy that are used here.
pub(super) struct Copy {
    library: Library,
    way: Way,
    strerror: abi::StrError,
    /// Of libfabric, major and minor number.
    pub(super) version: (u32, u32),
}

fn absent(error: libloading::Error) -> ImportError {
    // The loader's own words are the source of libloading's error.
    let words = std::error::Error::source(&error).map_or(String::new(), |words| format!(": {words}"));
    ImportError::Absent { text: format!("{error}{words}") }
}

/// Whether the loader may load what it has not.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    Wanted,
    /// What the program has closed meanwhile stays closed.
    Never,
}

fn open_library(name: &OsStr, load: Load) -> Result<Library, ImportError> {
    let load = if load == Load::Never { RTLD_NOLOAD } else { 0 };
    // SAFETY: libfabric's initialisers touch nothing of ours; the library stays
    // loaded for ever once the import has succeeded.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL | load) }.map_err(absent)
}

impl Copy {
    /// libfabric's own copy; `name` is what the loader knows the library by.
    pub(super) fn core(name: &OsStr, load: Load) -> Result<Copy, ImportError> {
        let library = open_library(name, load)?;
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
        Ok(Copy { library, way: Way::Core(open), strerror, version })
    }

    /// That of the provider which is loaded from `name`, after its own start.
    pub(super) fn provider(name: &OsStr) -> Result<Copy, ImportError> {
        let library = open_library(name, Load::Never)?;
        // SAFETY: the type is that of `include/ofi_mr.h`, the same since 1.13; the
        // others come from libfabric, on which every provider depends.
        let (open, strerror, version) = unsafe {
            (
                *library.get::<abi::OpenCache>(b"ofi_open_mr_cache\0").map_err(absent)?,
                *library.get::<abi::StrError>(b"fi_strerror\0").map_err(absent)?,
                *library.get::<abi::Version>(b"fi_version\0").map_err(absent)?,
            )
        };
        // SAFETY: no arguments, no preconditions.
        let version = unsafe { version() };
        let version = (version >> 16, version & 0xffff);
        Ok(Copy { library, way: Way::Provider(open), strerror, version })
    }

    /// What tells one copy from another.
    pub(super) fn identity(&self) -> usize {
        match self.way {
            Way::Core(open) => open as *const () as usize,
            Way::Provider(open) => open as *const () as usize,
        }
    }

    /// `code` is what a function of libfabric returned: 0 or a negative errno.
    pub(super) fn check(&self, call: &'static str, code: c_int) -> Result<(), ImportError> {
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

    /// The object that stands for all caches of this copy.
    pub(super) fn open_cache(&self) -> Result<NonNull<Fid>, ImportError> {
        let mut cache: *mut Fid = null_mut();
        let version = abi::API_VERSION;
        // SAFETY: the arguments that `fi_ext.h` asks for; `cache` is written on success.
        let code = unsafe {
            match self.way {
                Way::Core(open) => {
                    open(version, c"mr_cache".as_ptr(), null_mut(), 0, 0, &raw mut cache, null_mut())
                }
                Way::Provider(open) => open(version, null_mut(), 0, 0, &raw mut cache, null_mut()),
            }
        };
        self.check("fi_open(1.13, mr_cache)", code)?;
        NonNull::new(cache).ok_or(ImportError::Call {
            call: "fi_open(1.13, mr_cache): no object",
            code: 0,
            text: String::new(),
        })
    }

    /// Callbacks come from it until the process ends.
    pub(super) fn keep(self) {
        core::mem::forget(self.library);
    }
}
