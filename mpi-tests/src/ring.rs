//! The naive cache's own use of io_uring's fixed buffers: a table of slots that
//! pin pages, and a write through a slot. pinyard's backends can only be called
//! by its registry, which proves that no lock is held.
#![allow(unsafe_code)]

use crate::cache::Failure;
use io_uring::{IoUring, opcode, types};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

/// A ring with a table of fixed buffers.
pub struct Ring {
    inner: Mutex<Inner>,
}

struct Inner {
    uring: IoUring,
    free: Vec<u16>,
}

impl Ring {
    /// A ring that can pin `slots` ranges at a time.
    pub fn new(slots: u16) -> Result<Ring, Failure> {
        let failed = |call: &str, error: io::Error| Failure::new(format!("{call}: {error}"));
        let uring = IoUring::new(8).map_err(|error| failed("io_uring_setup(8)", error))?;
        let empty = vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; usize::from(slots)];
        // SAFETY: the buffers are of no bytes; the kernel copies the arrays.
        unsafe { uring.submitter().register_buffers2(&empty, &vec![0; usize::from(slots)]) }
            .map_err(|error| failed("io_uring_register(empty buffers)", error))?;
        Ok(Ring { inner: Mutex::new(Inner { uring, free: (0..slots).rev().collect() }) })
    }

    fn with<R>(&self, work: impl FnOnce(&mut Inner) -> R) -> R {
        work(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pins the pages of `start..start + len` and returns their slot.
    pub fn register(&self, start: usize, len: usize) -> io::Result<u16> {
        self.with(|inner| {
            let slot = inner.free.pop().ok_or_else(|| io::Error::other("no free slot"))?;
            let start = std::ptr::with_exposed_provenance_mut(start);
            inner.update(slot, libc::iovec { iov_base: start, iov_len: len })?;
            Ok(slot)
        })
    }

    /// Lets go of the pages of `slot`.
    pub fn deregister(&self, slot: u16) -> io::Result<()> {
        self.with(|inner| {
            inner.update(slot, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 })?;
            inner.free.push(slot);
            Ok(())
        })
    }

    /// Writes `bytes` to `to` through the pages that `slot` pinned.
    pub fn write(&self, to: BorrowedFd<'_>, slot: u16, bytes: &[u8]) -> io::Result<usize> {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let at_position = u64::MAX;
        let entry = opcode::WriteFixed::new(types::Fd(to.as_raw_fd()), bytes.as_ptr(), len, slot)
            .offset(at_position)
            .build();
        self.with(|inner| {
            // SAFETY: the kernel reads the pages that the slot keeps pinned; the
            // write is over before this function returns.
            unsafe { inner.uring.submission().push(&entry) }.map_err(io::Error::other)?;
            inner.uring.submit_and_wait(1)?;
            let done = inner.uring.completion().next().ok_or_else(|| io::Error::other("no completion"))?;
            usize::try_from(done.result()).map_err(|_| io::Error::from_raw_os_error(-done.result()))
        })
    }
}

impl Inner {
    fn update(&mut self, slot: u16, pages: libc::iovec) -> io::Result<()> {
        // SAFETY: the kernel pins the pages itself and checks the address; the
        // caller answers for what is written through them.
        unsafe { self.uring.submitter().register_buffers_update(u32::from(slot), &[pages], None) }.map(drop)
    }
}
