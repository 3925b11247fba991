//! Requests that are waited for, whatever happens.
#![allow(unsafe_code)]

use super::Answer;
use super::communicator::{bytes, check};
use super::progress;
use mpi::ffi;
use std::mem::MaybeUninit;

/// A request whose buffers stand until it is done: dropped, it is waited for.
pub(crate) struct Request {
    raw: ffi::MPI_Request,
    call: &'static str,
}

impl Request {
    /// A request that `start` makes: once more where it cannot, as other ranks wait for it in any
    /// case. Started then, nothing is lost.
    pub(super) fn start(call: &'static str, start: impl Fn(&mut ffi::MPI_Request) -> i32) -> Answer<Request> {
        let once = || {
            // SAFETY: a constant of the library's.
            let mut raw = unsafe { ffi::RSMPI_REQUEST_NULL };
            check(start(&mut raw), call).map(|()| Request { raw, call })
        };
        once().or_else(|error| {
            tracing::warn!(%error, "a request of MPI's is started once more");
            once()
        })
    }

    /// Waits for it (`MPI_Wait`).
    pub(crate) fn wait(mut self) -> Answer<()> {
        self.finish()
    }

    /// Asks whether it is done (`MPI_Test`): the bytes of a message, 0 of others.
    pub(crate) fn test(&mut self) -> Answer<Option<usize>> {
        let (mut status, mut done, mut count) = (MaybeUninit::uninit(), 0, 0);
        // SAFETY: a request of ours, or the null request; the status is written when it is
        // done, and read only then.
        check(unsafe { ffi::MPI_Test(&mut self.raw, &mut done, status.as_mut_ptr()) }, self.call)?;
        if done == 0 {
            return Ok(None);
        }
        // SAFETY: as above; stores a number, for a collective's request any.
        check(unsafe { ffi::MPI_Get_count(status.as_ptr(), bytes(), &mut count) }, "MPI_Get_count")?;
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }

    fn finish(&mut self) -> Answer<()> {
        while progress::is_wanted() {
            if self.test()?.is_some() {
                return Ok(());
            }
            progress::of_others();
        }
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
