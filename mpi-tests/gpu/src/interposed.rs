//! MPI functions that fail when they are told to, in the place that MPI has for tools: what an MPI
//! calls MPI_Isend is PMPI_Isend as well.
#![allow(unsafe_code)]

use mpi::ffi;
use std::cell::Cell;
use std::ffi::{c_int, c_void};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fails {
    Send,
    Receive,
    /// `MPI_Allreduce`, of so many elements.
    Reduce,
}

thread_local! {
    /// The next one of so many bytes or elements.
    static NEXT: Cell<Option<(Fails, c_int)>> = const { Cell::new(None) };
}

/// The next message of so many bytes that is sent, or received, cannot be started, or the next reduction
/// of so many elements fails.
pub(crate) fn fail_next(what: Fails, bytes: c_int) {
    NEXT.set(Some((what, bytes)));
}

/// None does any more. Whether one has.
pub(crate) fn fail_none() -> bool {
    NEXT.take().is_none()
}

fn fails(what: Fails, bytes: c_int) -> bool {
    let is_it = NEXT.get() == Some((what, bytes));
    if is_it {
        NEXT.set(None);
    }
    is_it
}

/// # Safety
/// As MPI's.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_Isend(
    from: *const c_void,
    count: c_int,
    datatype: ffi::MPI_Datatype,
    to: c_int,
    tag: c_int,
    ranks: ffi::MPI_Comm,
    request: *mut ffi::MPI_Request,
) -> c_int {
    if fails(Fails::Send, count) {
        return ffi::MPI_ERR_OTHER as c_int;
    }
    // SAFETY: the caller's contract.
    unsafe { ffi::PMPI_Isend(from, count, datatype, to, tag, ranks, request) }
}

/// # Safety
/// As MPI's.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_Irecv(
    into: *mut c_void,
    count: c_int,
    datatype: ffi::MPI_Datatype,
    from: c_int,
    tag: c_int,
    ranks: ffi::MPI_Comm,
    request: *mut ffi::MPI_Request,
) -> c_int {
    if fails(Fails::Receive, count) {
        return ffi::MPI_ERR_OTHER as c_int;
    }
    // SAFETY: the caller's contract.
    unsafe { ffi::PMPI_Irecv(into, count, datatype, from, tag, ranks, request) }
}

/// # Safety
/// As MPI's.
#[unsafe(no_mangle)]
unsafe extern "C" fn MPI_Allreduce(
    from: *const c_void,
    to: *mut c_void,
    count: c_int,
    datatype: ffi::MPI_Datatype,
    operation: ffi::MPI_Op,
    ranks: ffi::MPI_Comm,
) -> c_int {
    if fails(Fails::Reduce, count) {
        return ffi::MPI_ERR_OTHER as c_int;
    }
    // SAFETY: the caller's contract.
    unsafe { ffi::PMPI_Allreduce(from, to, count, datatype, operation, ranks) }
}
