//! The text of a thread's last error, and what a failure of the Rust side is in C.
#![allow(unsafe_code)] // names that C links to

use super::boundary::last_error;
pub(super) use super::boundary::{Failure, at_boundary};
pub(super) use super::codes::pny_status;
use core::ffi::c_char;
use pinyard_mpi::{BufferError, CommunicatorError, Error, OpenError};
use pny_status::*;

impl Failure {
    /// An argument that cannot be used.
    pub(super) fn invalid(cause: impl Into<String>) -> Failure {
        Failure::new(PNY_ERR_INVALID, cause)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Finalized { .. } => PNY_ERR_NOT_READY,
            Error::Mpi { .. } | Error::Driver { .. } | Error::Context { .. } | Error::Peer { .. } => {
                PNY_ERR_BACKEND
            }
            Error::Staging { .. } => PNY_ERR_RESOURCES,
            _ => PNY_ERR_INVALID,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<CommunicatorError> for Failure {
    fn from(error: CommunicatorError) -> Failure {
        let status = match &error {
            CommunicatorError::NoMpi => PNY_ERR_NOT_READY,
            CommunicatorError::Staging { .. } => PNY_ERR_RESOURCES,
            CommunicatorError::Environment { .. } | CommunicatorError::Path { .. } => PNY_ERR_REFUSED,
            _ => PNY_ERR_BACKEND,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Failure {
        let status = match &error {
            OpenError::Absent(_) => PNY_ERR_ABSENT,
            _ => PNY_ERR_RESOURCES,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<BufferError> for Failure {
    fn from(error: BufferError) -> Failure {
        let status =
            if matches!(error, BufferError::Driver(_)) { PNY_ERR_BACKEND } else { PNY_ERR_RESOURCES };
        Failure::new(status, error.to_string())
    }
}

impl From<pinyard_driver::DriverError> for Failure {
    fn from(error: pinyard_driver::DriverError) -> Failure {
        Failure::new(PNY_ERR_BACKEND, error.to_string())
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
