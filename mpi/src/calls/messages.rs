//! Messages between two ranks.
#![allow(unsafe_code)]

use super::communicator::bytes;
use super::{Answer, Comm, Request};
use mpi::ffi;
use mpi::topology::Rank;
use std::ffi::c_int;

/// As `Comm::start_send`, in a communicator of ours.
unsafe fn send(within: ffi::MPI_Comm, from: *const u8, count: usize, to: Rank, tag: i32) -> Answer<Request> {
    // SAFETY: the caller's contract.
    Request::start("MPI_Isend", |request| unsafe {
        ffi::MPI_Isend(from.cast(), count as c_int, bytes(), to, tag, within, request)
    })
}

/// As `Comm::start_receive`, in a communicator of ours.
unsafe fn receive(
    within: ffi::MPI_Comm,
    into: *mut u8,
    count: usize,
    from: Rank,
    tag: i32,
) -> Answer<Request> {
    // SAFETY: the caller's contract.
    Request::start("MPI_Irecv", |request| unsafe {
        ffi::MPI_Irecv(into.cast(), count as c_int, bytes(), from, tag, within, request)
    })
}

impl Comm {
    /// `MPI_Isend` of bytes.
    ///
    /// # Safety
    /// The bytes stand, and nobody writes them, until the request is done.
    pub(crate) unsafe fn start_send(
        &self,
        from: *const u8,
        count: usize,
        to: Rank,
        tag: i32,
    ) -> Answer<Request> {
        // SAFETY: the caller's contract.
        unsafe { send(self.raw(), from, count, to, tag) }
    }

    /// `MPI_Irecv` of bytes.
    ///
    /// # Safety
    /// The bytes stand, and nobody else uses them, until the request is done.
    pub(crate) unsafe fn start_receive(
        &self,
        into: *mut u8,
        count: usize,
        from: Rank,
        tag: i32,
    ) -> Answer<Request> {
        // SAFETY: the caller's contract.
        unsafe { receive(self.raw(), into, count, from, tag) }
    }

    /// `MPI_Isend` of a small collective's bytes.
    ///
    /// # Safety
    /// As of `start_send`.
    pub(super) unsafe fn start_small_send(
        &self,
        from: *const u8,
        count: usize,
        to: Rank,
        tag: i32,
    ) -> Answer<Request> {
        // SAFETY: the caller's contract.
        unsafe { send(self.raw_of_small(), from, count, to, tag) }
    }

    /// `MPI_Irecv` of a small collective's bytes.
    ///
    /// # Safety
    /// As of `start_receive`.
    pub(super) unsafe fn start_small_receive(
        &self,
        into: *mut u8,
        count: usize,
        from: Rank,
        tag: i32,
    ) -> Answer<Request> {
        // SAFETY: the caller's contract.
        unsafe { receive(self.raw_of_small(), into, count, from, tag) }
    }

    /// `MPI_Send` of a word.
    pub(crate) fn send_word(&self, word: u64, to: Rank, tag: i32) -> Answer<()> {
        let bytes = word.to_le_bytes();
        // SAFETY: waited for here.
        unsafe { self.start_send(bytes.as_ptr(), bytes.len(), to, tag) }?.wait()
    }

    /// `MPI_Recv` of a word.
    pub(crate) fn receive_word(&self, from: Rank, tag: i32) -> Answer<u64> {
        let mut bytes = [0; 8];
        // SAFETY: waited for here.
        unsafe { self.start_receive(bytes.as_mut_ptr(), bytes.len(), from, tag) }?.wait()?;
        Ok(u64::from_le_bytes(bytes))
    }
}
