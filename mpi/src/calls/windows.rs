//! MPI's own windows, for targets that take no part.
#![allow(unsafe_code)]

use super::communicator::{bytes, check};
use super::{Answer, Comm};
use crate::error::MpiError;
use crate::operations::Lock;
use mpi::ffi;
use mpi::topology::Rank;
use std::ffi::c_int;

/// Longest single operation: counts are of `int`.
const LONGEST: usize = 1 << 30;

/// Open MPI answers MPI_ERR_WIN where it has no component for the ranks' transport, and says no more.
fn unsupported(mut error: MpiError) -> MpiError {
    error.text +=
        "; has this MPI one-sided operations for the ranks' transport? (Open MPI: `ompi_info | grep osc`)";
    error
}

/// A window over bytes of every rank. Freed with the value, which all ranks do together, unless
/// MPI is finalised by then.
pub(crate) struct Win {
    raw: ffi::MPI_Win,
}

impl Win {
    /// Of `count` bytes at `at`. Collective.
    ///
    /// # Safety
    /// The bytes stand as long as the window, and this process uses them only while it has its
    /// own lock. MPI takes such addresses, where they are a device's.
    pub(crate) unsafe fn create(ranks: &Comm, at: *mut u8, count: usize) -> Answer<Win> {
        // SAFETY: constants; stores the handle; the rest is the caller's contract.
        unsafe {
            let mut raw = ffi::RSMPI_WIN_NULL;
            let (size, info) = (count as ffi::MPI_Aint, ffi::RSMPI_INFO_NULL);
            check(ffi::MPI_Win_create(at.cast(), size, 1, info, ranks.raw(), &mut raw), "MPI_Win_create")
                .map_err(unsupported)?;
            let win = Win { raw };
            check(ffi::MPI_Win_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN), "MPI_Win_set_errhandler")?;
            Ok(win)
        }
    }

    /// `MPI_Win_lock`. Of this process's own part it returns when it has the lock; of others' it may
    /// wait for that as late as in [`flush`](Win::flush).
    pub(crate) fn lock(&self, target: Rank, lock: Lock) -> Answer<()> {
        let kind = match lock {
            Lock::Shared => ffi::MPI_LOCK_SHARED,
            Lock::Exclusive => ffi::MPI_LOCK_EXCLUSIVE,
        };
        // SAFETY: ours stands.
        check(unsafe { ffi::MPI_Win_lock(kind as c_int, target, 0, self.raw) }, "MPI_Win_lock")
    }

    /// `MPI_Win_lock_all`.
    pub(crate) fn lock_all(&self) -> Answer<()> {
        // SAFETY: ours stands.
        check(unsafe { ffi::MPI_Win_lock_all(0, self.raw) }, "MPI_Win_lock_all")
    }

    /// `MPI_Win_unlock`.
    pub(crate) fn unlock(&self, target: Rank) -> Answer<()> {
        // SAFETY: ours stands.
        check(unsafe { ffi::MPI_Win_unlock(target, self.raw) }, "MPI_Win_unlock")
    }

    /// `MPI_Win_unlock_all`.
    pub(crate) fn unlock_all(&self) -> Answer<()> {
        // SAFETY: ours stands.
        check(unsafe { ffi::MPI_Win_unlock_all(self.raw) }, "MPI_Win_unlock_all")
    }

    /// `MPI_Win_flush` of `target`: puts are there, gets are here.
    pub(crate) fn flush(&self, target: Rank) -> Answer<()> {
        // SAFETY: ours stands.
        check(unsafe { ffi::MPI_Win_flush(target, self.raw) }, "MPI_Win_flush")
    }

    /// `MPI_Put` to byte `start` of the target's part.
    ///
    /// # Safety
    /// The target is locked and has the bytes; ours stand unwritten until it is flushed.
    pub(crate) unsafe fn put(&self, from: *const u8, count: usize, target: Rank, start: usize) -> Answer<()> {
        for at in (0..count).step_by(LONGEST) {
            let (from, place) = (from.wrapping_add(at).cast(), (start + at) as ffi::MPI_Aint);
            let (count, kind) = (LONGEST.min(count - at) as c_int, bytes());
            // SAFETY: the caller's contract.
            let code = unsafe { ffi::MPI_Put(from, count, kind, target, place, count, kind, self.raw) };
            check(code, "MPI_Put")?;
        }
        Ok(())
    }

    /// `MPI_Get` from byte `start` of the target's part.
    ///
    /// # Safety
    /// As of `put`, and nobody else uses ours.
    pub(crate) unsafe fn get(&self, into: *mut u8, count: usize, target: Rank, start: usize) -> Answer<()> {
        for at in (0..count).step_by(LONGEST) {
            let (into, place) = (into.wrapping_add(at).cast(), (start + at) as ffi::MPI_Aint);
            let (count, kind) = (LONGEST.min(count - at) as c_int, bytes());
            // SAFETY: the caller's contract.
            let code = unsafe { ffi::MPI_Get(into, count, kind, target, place, count, kind, self.raw) };
            check(code, "MPI_Get")?;
        }
        Ok(())
    }
}

impl Drop for Win {
    fn drop(&mut self) {
        if !mpi::is_finalized() {
            // SAFETY: ours, freed once.
            unsafe { ffi::MPI_Win_free(&mut self.raw) };
        }
    }
}
