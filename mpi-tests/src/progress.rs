//! How far a rank is, in a file that the launcher reads and that survives
//! whatever happens to the rank.
#![allow(unsafe_code)]

use crate::cache::Failure;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// The words of the progress file, in its order. The launcher reads the first.
#[repr(C)]
pub struct Progress {
    /// Rounds completed.
    pub rounds: AtomicU64,
    /// Of those, rounds whose bytes on the wire were not those of the program.
    pub stale: AtomicU64,
    /// Anything that moves: the watchdog looks at this one.
    pub beat: AtomicU64,
}

impl Progress {
    /// Creates `path` and maps it for the life of the process.
    pub fn create(path: &Path) -> Result<&'static Progress, Failure> {
        let len = size_of::<Progress>();
        let failed = |call: &str, error| Failure::new(format!("{call}({}): {error}", path.display()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(|error| failed("open", error))?;
        file.set_len(len as u64).map_err(|error| failed("ftruncate", error))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        #[allow(clippy::disallowed_methods)] // a new mapping: hooks have nothing to see
        // SAFETY: a fresh shared mapping of the file just made long enough.
        let words = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if words == libc::MAP_FAILED {
            return Err(failed("mmap", std::io::Error::last_os_error()));
        }
        // SAFETY: page-aligned, zeroed, long enough, never unmapped; all access
        // is atomic on both sides.
        Ok(unsafe { &*words.cast::<Progress>() })
    }
}
