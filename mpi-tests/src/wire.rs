//! Where a round's bytes go: a memfd that stands for the peer's side of the
//! wire, and a view of what arrived in it.
#![allow(unsafe_code)]

use crate::cache::Failure;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};

/// An in-memory file of a fixed length, mapped to be read.
pub struct Wire {
    file: File,
    view: *const u8,
    len: usize,
}

impl Wire {
    /// A wire for messages of `len` bytes.
    pub fn new(len: usize) -> Result<Wire, Failure> {
        let failed = |call: &str| Failure::new(format!("{call}: {}", io::Error::last_os_error()));
        // SAFETY: a NUL-terminated name.
        let fd = unsafe { libc::memfd_create(c"pinyard-wire".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed("memfd_create(pinyard-wire)"));
        }
        // SAFETY: opened just now and owned by nobody else.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len as u64)
            .map_err(|error| Failure::new(format!("ftruncate(memfd, {len}): {error}")))?;
        let view = map(&file, len).ok_or_else(|| failed("mmap(memfd)"))?;
        Ok(Wire { file, view, len })
    }

    /// Makes the next write start at the first byte; returns the descriptor.
    pub fn rewind(&self) -> Result<BorrowedFd<'_>, Failure> {
        (&self.file)
            .seek(SeekFrom::Start(0))
            .map_err(|error| Failure::new(format!("lseek(memfd, 0): {error}")))?;
        Ok(self.file.as_fd())
    }

    /// What has arrived.
    pub fn arrived(&mut self) -> &[u8] {
        // SAFETY: a mapping of `len` bytes that lives as long as self. Only
        // writes to the descriptor change it; those are made by this thread and
        // are over before `rewind`'s caller looks (`&mut self` keeps them apart).
        unsafe { std::slice::from_raw_parts(self.view, self.len) }
    }
}

/// Whether a write of `len` bytes to the wire moved them all.
pub fn all_written(written: io::Result<usize>, len: usize) -> Result<(), Failure> {
    match written {
        Ok(written) if written == len => Ok(()),
        Ok(written) => Err(Failure::new(format!("write of {len} bytes to the wire: {written} written"))),
        Err(error) => Err(Failure::new(format!("write of {len} bytes to the wire: {error}"))),
    }
}

/// A shared read-only mapping of the file's first `len` bytes.
fn map(file: &File, len: usize) -> Option<*const u8> {
    #[allow(clippy::disallowed_methods)] // a new mapping: hooks have nothing to see
    // SAFETY: a fresh mapping of a file of ours that is `len` bytes long and never shrinks.
    let view = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    (view != libc::MAP_FAILED).then_some(view.cast_const().cast())
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and views borrow self. A failure would only keep it mapped.
        let _ = unsafe { pinyard_hooks::sys::munmap(self.view.addr(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_written_is_seen() {
        let mut wire = Wire::new(8).unwrap();
        for bytes in [b"abcdefgh", b"ABCDEFGH"] {
            wire.rewind().unwrap();
            (&wire.file).write_all(bytes).unwrap();
            assert_eq!(wire.arrived(), bytes);
        }
    }
}
