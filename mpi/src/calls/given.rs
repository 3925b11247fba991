//! Requests of the program's own, which it has given away.
#![allow(unsafe_code)]

use super::Answer;
use super::communicator::check;
use mpi::ffi;

/// A request whose buffers somebody else vouches for. Dropped, it stays as it is: to free an active
/// one would take away the only way to learn when its buffers are free.
#[derive(Debug)]
pub(crate) struct Given(ffi::MPI_Request);

impl Given {
    /// # Safety
    /// `raw` is a request, or the null request, that nobody else asks, waits for or frees.
    pub(crate) unsafe fn new(raw: ffi::MPI_Request) -> Given {
        Given(raw)
    }

    /// The null request.
    #[cfg(test)]
    pub(crate) fn null() -> Given {
        // SAFETY: a constant of the library's.
        Given(unsafe { ffi::RSMPI_REQUEST_NULL })
    }

    /// Whether MPI says that the operation has ended (`MPI_Test`), and what it says beside that. One
    /// that has ended, well or not, uses its buffers no more, and is gone. After an error of the call
    /// alone nothing is known.
    ///
    /// # Safety
    /// This thread may call MPI now, and MPI is not finalised.
    pub(crate) unsafe fn test(&mut self) -> (bool, Answer<()>) {
        let mut done = 0;
        // SAFETY: ours alone; the rest is the caller's contract.
        let code = unsafe { ffi::MPI_Test(&mut self.0, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        let answer = check(code, "MPI_Test");
        // SAFETY: a constant of the library's.
        let is_null = self.0 == unsafe { ffi::RSMPI_REQUEST_NULL };
        if done == 0 && !is_null {
            return (false, answer);
        }
        if is_null {
            return (true, answer);
        }
        // A persistent one, which is inactive now.
        // SAFETY: ours alone, and used no more.
        let freed = check(unsafe { ffi::MPI_Request_free(&mut self.0) }, "MPI_Request_free");
        (true, answer.and(freed))
    }
}
