//! Requests that are waited for, whatever happens.
#![allow(unsafe_code)]

use super::Answer;
use super::communicator::{bytes, check};
use mpi::ffi;
use std::mem::MaybeUninit;

/// A request whose buffers stand until it is done: dropped, it is waited for.
pub(crate) struct Request {
    raw: ffi::MPI_Request,
    call: &'static str,
}

impl Request {
    /// A request that `start` makes.
    pub(super) fn start(
        call: &'static str,
        start: impl FnOnce(&mut ffi::MPI_Request) -> i32,
    ) -> Answer<Request> {
        // SAFETY: a constant of the library's.
        let mut raw = unsafe { ffi::RSMPI_REQUEST_NULL };
        check(start(&mut raw), call)?;
        Ok(Request { raw, call })
    }

    /// Waits for it (`MPI_Wait`).
    pub(crate) fn wait(mut self) -> Answer<()> {
        self.finish()
    }

    /// Waits for a message: how many bytes it had.
    pub(crate) fn wait_for_bytes(mut self) -> Answer<usize> {
        let (mut status, mut count) = (MaybeUninit::uninit(), 0);
        // SAFETY: a request of ours; the status is written before it is read.
        check(unsafe { ffi::MPI_Wait(&mut self.raw, status.as_mut_ptr()) }, self.call)?;
        // SAFETY: as above; stores a number.
        check(unsafe { ffi::MPI_Get_count(status.as_ptr(), bytes(), &mut count) }, "MPI_Get_count")?;
        Ok(count as usize)
    }

    fn finish(&mut self) -> Answer<()> {
        // SAFETY: a request of ours, or the null request, which is done at once.
        let code = unsafe { ffi::MPI_Wait(&mut self.raw, ffi::RSMPI_STATUS_IGNORE) };
        check(code, self.call)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // SAFETY: a constant of the library's.
        if self.raw != unsafe { ffi::RSMPI_REQUEST_NULL } {
            // Whoever cares has waited; what uses the buffers must end in any case.
            let _ = self.finish();
        }
    }
}
