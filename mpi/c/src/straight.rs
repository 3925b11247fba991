//! Calls that go to MPI as they are: of host memory, and of device memory where MPI takes
//! that.
#![allow(unsafe_code)]

use super::status::{Failure, pny_status::*};
use core::ffi::{c_char, c_int};
use mpi::ffi;

/// The failure of an MPI function, with MPI's words.
pub(super) fn check(code: c_int, call: &'static str) -> Result<(), Failure> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0 as c_char; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the buffer has the length that the standard asks for.
    let told = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &mut length) };
    let text: String = if told == ffi::MPI_SUCCESS as c_int {
        text[..length as usize].iter().map(|&byte| byte as u8 as char).collect()
    } else {
        "unknown".to_owned()
    };
    Err(Failure::new(PNY_ERR_BACKEND, format!("{call} failed: {text} (code {code})")))
}

/// A communicator of our own, which returns errors.
pub(super) struct Own(ffi::MPI_Comm);

impl Own {
    /// A duplicate. Collective.
    ///
    /// # Safety
    /// `ranks` is a communicator. MPI is initialised.
    pub(super) unsafe fn of(ranks: ffi::MPI_Comm) -> Result<Own, Failure> {
        let (mut inter, mut new) = (0, ranks);
        // SAFETY: the caller's contract; stores a number.
        check(unsafe { ffi::MPI_Comm_test_inter(ranks, &mut inter) }, "MPI_Comm_test_inter")?;
        if inter != 0 {
            return Err(Failure::invalid("the communicator is an inter-communicator: merge it first"));
        }
        // SAFETY: as above; stores the handle.
        check(unsafe { ffi::MPI_Comm_dup(ranks, &mut new) }, "MPI_Comm_dup")?;
        let own = Own(new);
        // SAFETY: ours; a constant.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(new, ffi::RSMPI_ERRORS_RETURN) };
        check(code, "MPI_Comm_set_errhandler")?;
        Ok(own)
    }

    pub(super) fn raw(&self) -> ffi::MPI_Comm {
        self.0
    }

    /// The largest of all ranks' words, each. Collective.
    pub(super) fn largest<const N: usize>(&self, mine: [u64; N]) -> Result<[u64; N], Failure> {
        let mut all = [0; N];
        let (from, to) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        // SAFETY: both arrays have N words.
        let code =
            unsafe { ffi::MPI_Allreduce(from, to, N as c_int, ffi::RSMPI_UINT64_T, ffi::RSMPI_MAX, self.0) };
        check(code, "MPI_Allreduce").map(|()| all)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if !mpi::is_finalized() {
            // SAFETY: ours, freed once.
            unsafe { ffi::MPI_Comm_free(&mut self.0) };
        }
    }
}
