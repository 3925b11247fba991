//! Libraries that are opened at run time: an absent one is an answer, not a link
//! error.
//!
//! A library that was opened stays: libibverbs, UCX and libfabric load drivers,
//! start threads and register exit handlers, and none of them promises to survive
//! dlclose(3). So its functions are plain pointers that live as long as the process.
#![allow(unsafe_code)]

use super::OpenError;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A library that stays open.
pub(super) struct Library {
    handle: libloading::os::unix::Library,
    name: PathBuf,
}

impl Library {
    /// Opens `path`, or `soname` where none is given. A process that has more rights than its
    /// caller (`AT_SECURE`) opens nothing that lies where its caller has led it.
    pub(super) fn open(
        path: Option<&Path>,
        soname: &str,
        package: &'static str,
    ) -> Result<Library, OpenError> {
        let name = path.unwrap_or(Path::new(soname)).to_path_buf();
        if is_relative(&name) && pinyard_hooks::is_privileged() {
            return Err(OpenError::Relative { library: name.display().to_string() });
        }
        // SAFETY: the constructors of these libraries read the environment and sysfs;
        // a file that the caller names instead is the caller's to vouch for, as one in
        // LD_LIBRARY_PATH is.
        match unsafe { libloading::os::unix::Library::open(Some(&name), libc::RTLD_NOW | libc::RTLD_LOCAL) } {
            Ok(handle) => Ok(Library { handle, name }),
            Err(error) => {
                Err(OpenError::Absent { library: name.display().to_string(), loader: words(&error), package })
            }
        }
    }

    /// The function `symbol`. `needs` says since when it is there.
    ///
    /// # Safety
    /// `F` is a function pointer with the function's own signature.
    pub(super) unsafe fn function<F: Copy>(
        &self,
        symbol: &'static str,
        needs: &'static str,
    ) -> Result<F, OpenError> {
        // SAFETY: the caller's promise about `F`.
        unsafe { self.optional(symbol) }.ok_or_else(|| OpenError::Symbol {
            library: self.name.display().to_string(),
            symbol,
            needs,
        })
    }

    /// As [`function`](Library::function), for what only newer versions have.
    ///
    /// # Safety
    /// Likewise.
    pub(super) unsafe fn optional<F: Copy>(&self, symbol: &'static str) -> Option<F> {
        // SAFETY: the caller's promise about `F`; the library is never closed, so
        // the pointer does not dangle.
        unsafe { self.handle.get::<F>(symbol.as_bytes()) }.ok().map(|found| *found)
    }

    /// Keeps the library open for the rest of the process.
    pub(super) fn keep(self) {
        std::mem::forget(self.handle);
    }
}

/// Whether the loader takes it for a file of the working directory's. Without a slash it is
/// a soname, and looked for in the system's folders (dlopen(3)).
fn is_relative(name: &Path) -> bool {
    name.is_relative() && name.as_os_str().as_bytes().contains(&b'/')
}

/// What the loader said, without libloading's own frame.
fn words(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// The process that opened a device. A forked child shares the kernel's object with
/// its parent: closing it there would take it from the parent.
pub(super) struct Birth(u32);

impl Birth {
    pub(super) fn here() -> Birth {
        pinyard_hooks::notice_forks();
        Birth(pinyard_hooks::fork_generation())
    }

    /// Whether this is still that process.
    pub(super) fn is_here(&self) -> bool {
        self.0 == pinyard_hooks::fork_generation()
    }
}
