//! The text of a thread's last error, and what a failure of the Rust side is in C.
#![allow(unsafe_code)]

pub(super) use super::codes::pny_status;
use core::ffi::{CStr, c_char};
use pinyard_mpi::{BufferError, CommunicatorError, Error, OpenError};
use pny_status::*;
use std::cell::RefCell;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A status other than `PNY_OK`, with the exact cause.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: pny_status,
    pub(super) cause: String,
}

impl Failure {
    pub(super) fn new(status: pny_status, cause: impl Into<String>) -> Failure {
        Failure { status, cause: cause.into() }
    }

    /// An argument that cannot be used.
    pub(super) fn invalid(cause: impl Into<String>) -> Failure {
        Failure::new(PNY_ERR_INVALID, cause)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::Finalized { .. } => PNY_ERR_NOT_READY,
            Error::Mpi { .. } | Error::Driver { .. } | Error::Peer { .. } => PNY_ERR_BACKEND,
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

thread_local! {
    /// `None` where the last call succeeded.
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

fn remember(cause: Option<String>) {
    let text = cause.map(|cause| {
        let mut bytes = cause.into_bytes();
        bytes.retain(|&byte| byte != 0);
        CString::new(bytes).unwrap_or_default()
    });
    // Fails only in a thread's destructors that run after this variable's own.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

/// Runs the body of the function `name`.
pub(super) fn at_boundary(name: &str, body: impl FnOnce() -> Result<(), Failure>) -> pny_status {
    // Nothing of the body's state is used after a panic but a communicator, whose next
    // call fails at the other ranks' answers.
    let (status, cause) = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => (PNY_OK, None),
        Ok(Err(Failure { status, cause })) => (status, Some(format!("{name}: {cause}"))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            (PNY_ERR_INTERNAL, Some(format!("{name}: panic inside pinyard: {text}")))
        }
    };
    remember(cause);
    status
}

/// Why the calling thread's last call of a function of this header failed: the function,
/// the rank, MPI's or the driver's call and its words; "" where that call succeeded. Never
/// null; valid until the thread's next call of a function of this header that returns a
/// status. pny_last_error knows nothing of these.
#[unsafe(no_mangle)]
pub extern "C" fn pny_mpi_last_error() -> *const c_char {
    let text = LAST_ERROR.try_with(|last| {
        // SAFETY: the variable is this thread's own and only replaced by `remember`, which
        // this function does not call.
        let last = unsafe { &*last.as_ptr() };
        last.as_ref().map(|text| text.as_ptr())
    });
    text.ok().flatten().unwrap_or(CStr::as_ptr(c""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_error() -> String {
        // SAFETY: terminated, and not replaced meanwhile.
        unsafe { CStr::from_ptr(pny_mpi_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_text() {
        let status = at_boundary("pny_mpi_x", || -> Result<(), Failure> { panic!("slot {}", 3) });
        assert_eq!(
            (status, last_error().as_str()),
            (PNY_ERR_INTERNAL, "pny_mpi_x: panic inside pinyard: slot 3")
        );
        assert_eq!((at_boundary("pny_mpi_x", || Ok(())), last_error().as_str()), (PNY_OK, ""));
    }

    #[test]
    fn the_text_belongs_to_the_thread() {
        assert_eq!(at_boundary("pny_mpi_x", || Err(Failure::invalid("no"))), PNY_ERR_INVALID);
        assert_eq!(last_error(), "pny_mpi_x: no");
        assert_eq!(std::thread::spawn(last_error).join().unwrap(), "");
    }
}
