//! The text of a thread's last error, and what a failure of the Rust side is in C.
#![allow(unsafe_code)] // names that C links to

use core::ffi::c_char;
use pinyard_boundary::last_error;
pub(super) use pinyard_boundary::{Failure, at_boundary, pny_status};
use pinyard_mpi::{BufferError, CommunicatorError, Error, OpenError};
use pny_status::*;

/// An error of a layer below, as C has it.
pub(super) trait IntoFailure {
    fn into_failure(self) -> Failure;
}

/// For `map_err`.
#[cold]
pub(super) fn failed(error: impl IntoFailure) -> Failure {
    error.into_failure()
}

impl IntoFailure for Error {
    fn into_failure(self) -> Failure {
        let status = match &self {
            Error::Finalized { .. } => PNY_ERR_NOT_READY,
            Error::Mpi { .. } | Error::Driver { .. } | Error::Context { .. } | Error::Peer { .. } => {
                PNY_ERR_BACKEND
            }
            Error::Staging { .. } => PNY_ERR_RESOURCES,
            _ => PNY_ERR_INVALID,
        };
        Failure::new(status, self.to_string())
    }
}

impl IntoFailure for CommunicatorError {
    fn into_failure(self) -> Failure {
        let status = match &self {
            CommunicatorError::NoMpi => PNY_ERR_NOT_READY,
            CommunicatorError::Staging { .. } => PNY_ERR_RESOURCES,
            CommunicatorError::Environment { .. } | CommunicatorError::Path { .. } => PNY_ERR_REFUSED,
            _ => PNY_ERR_BACKEND,
        };
        Failure::new(status, self.to_string())
    }
}

impl IntoFailure for OpenError {
    fn into_failure(self) -> Failure {
        let status = match &self {
            OpenError::Absent(_) => PNY_ERR_ABSENT,
            _ => PNY_ERR_RESOURCES,
        };
        Failure::new(status, self.to_string())
    }
}

impl IntoFailure for BufferError {
    fn into_failure(self) -> Failure {
        let status = if matches!(self, BufferError::Driver(_)) { PNY_ERR_BACKEND } else { PNY_ERR_RESOURCES };
        Failure::new(status, self.to_string())
    }
}

impl IntoFailure for pinyard_driver::DriverError {
    fn into_failure(self) -> Failure {
        Failure::new(PNY_ERR_BACKEND, self.to_string())
    }
}

/// Why the calling thread's last call of a function of this header failed: the function,
/// the rank, MPI's or the driver's call and its words; "" where that call succeeded. Never
/// null; valid until the thread's next call of a function of this header that returns a
/// status. pny_last_error knows nothing of these.
#[unsafe(no_mangle)]
pub extern "C" fn pny_mpi_last_error() -> *const c_char {
    last_error()
}
