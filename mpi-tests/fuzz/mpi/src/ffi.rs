//! The functions of `src/include/pinyard_mpi.h`, and those of `src/include/pinyard.h` that give
//! memory of a simulated device.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use mpi::ffi::{MPI_Comm, MPI_Datatype, MPI_Op, MPI_Status};
// Whose library has the functions.
use pinyard as _;
use pinyard_mpi_c as _;

pub(crate) const OK: c_int = 0;
pub(crate) const INVALID: c_int = 1;
pub(crate) const INTERNAL: c_int = 8;
pub(crate) const STALE: c_int = 9;

/// `pny_mpi_comm`: a number.
pub(crate) type Comm = usize;

unsafe extern "C" {
    /// MPI_IN_PLACE, which rsmpi does not have.
    pub(crate) fn pny_mpi_shim_in_place() -> *mut c_void;
    pub(crate) safe fn pny_mpi_last_error() -> *const c_char;
    pub(crate) fn pny_torch_malloc(bytes: usize, device: c_int, stream: *mut c_void) -> *mut u8;
    pub(crate) fn pny_mpi_comm_create(ranks: MPI_Comm, device: c_int, made: *mut Comm) -> c_int;
    pub(crate) fn pny_mpi_comm_destroy(comm: Comm) -> c_int;
    pub(crate) fn pny_mpi_plan(comm: Comm, text: *mut c_char, capacity: usize, length: *mut usize) -> c_int;
    pub(crate) fn pny_mpi_bcast(
        buffer: *mut u8,
        count: c_int,
        of: MPI_Datatype,
        root: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_send(
        buffer: *const u8,
        count: c_int,
        of: MPI_Datatype,
        to: c_int,
        tag: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_recv(
        buffer: *mut u8,
        count: c_int,
        of: MPI_Datatype,
        from: c_int,
        tag: c_int,
        comm: Comm,
        status: *mut MPI_Status,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_sendrecv(
        sendbuf: *const u8,
        sendcount: c_int,
        sendtype: MPI_Datatype,
        to: c_int,
        sendtag: c_int,
        recvbuf: *mut u8,
        recvcount: c_int,
        recvtype: MPI_Datatype,
        from: c_int,
        recvtag: c_int,
        comm: Comm,
        status: *mut MPI_Status,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_allreduce(
        sendbuf: *const u8,
        recvbuf: *mut u8,
        count: c_int,
        of: MPI_Datatype,
        operation: MPI_Op,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_reduce(
        sendbuf: *const u8,
        recvbuf: *mut u8,
        count: c_int,
        of: MPI_Datatype,
        operation: MPI_Op,
        root: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_gather(
        sendbuf: *const u8,
        sendcount: c_int,
        sendtype: MPI_Datatype,
        recvbuf: *mut u8,
        recvcount: c_int,
        recvtype: MPI_Datatype,
        root: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_scatter(
        sendbuf: *const u8,
        sendcount: c_int,
        sendtype: MPI_Datatype,
        recvbuf: *mut u8,
        recvcount: c_int,
        recvtype: MPI_Datatype,
        root: c_int,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_allgather(
        sendbuf: *const u8,
        sendcount: c_int,
        sendtype: MPI_Datatype,
        recvbuf: *mut u8,
        recvcount: c_int,
        recvtype: MPI_Datatype,
        comm: Comm,
        stream: usize,
    ) -> c_int;
    pub(crate) fn pny_mpi_alltoall(
        sendbuf: *const u8,
        sendcount: c_int,
        sendtype: MPI_Datatype,
        recvbuf: *mut u8,
        recvcount: c_int,
        recvtype: MPI_Datatype,
        comm: Comm,
        stream: usize,
    ) -> c_int;
}

/// Why this thread's last call failed; empty where it did not.
pub(crate) fn said() -> &'static str {
    // SAFETY: NUL-terminated, valid until this thread's next call; used before that.
    unsafe { CStr::from_ptr(pny_mpi_last_error()) }.to_str().unwrap_or_else(|_| std::process::abort())
}
