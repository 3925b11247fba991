//! Gather, Scatter, Allgather and Alltoall.
#![allow(unsafe_code)]

use super::communicator::{Ranks, pny_mpi_comm, within};
use super::status::{Failure, at_boundary, failed, pny_status};
use super::types::{Span, in_place};
use core::ffi::{c_int, c_void};
use mpi::ffi::{self, MPI_Datatype};

impl Ranks {
    /// Where this rank's share of `all` lies: what MPI_IN_PLACE names.
    fn share_of(&self, all: *const c_void, share: &Span) -> *mut c_void {
        let at = self.device.rank() as usize * share.bytes();
        all.cast_mut().wrapping_byte_add(at)
    }

    fn size(&self) -> usize {
        self.device.size() as usize
    }

    /// This rank's share, and all of them where it `has_all`. MPI_IN_PLACE as the share of
    /// such a rank: it lies among the others already.
    ///
    /// # Safety
    /// The datatypes that MPI looks at are datatypes of MPI's, or the null one.
    unsafe fn share(&self, has_all: bool, all: Row, mine: Row) -> Result<(Span, Option<Span>), Failure> {
        // SAFETY: the caller's contract.
        let span = |Row { at, count, datatype }| unsafe { Span::new(at, count, datatype) };
        if !has_all {
            return Ok((span(mine)?, None));
        }
        let share = span(all)?;
        let mine = match in_place(mine.at) {
            true => share.moved(self.share_of(all.at, &share), 1)?,
            false => span(mine)?,
        };
        Ok((mine, Some(share.moved(all.at.cast_mut(), self.size())?)))
    }
}

/// Elements as a call names them.
#[derive(Clone, Copy)]
struct Row {
    at: *const c_void,
    count: c_int,
    datatype: MPI_Datatype,
}

/// MPI_Gather: every rank's `sendbuf`, one after the other, in `root`'s `recvbuf`, of
/// `recvcount` elements for each rank; the other ranks' is not looked at. MPI_IN_PLACE at
/// the root: its share is in its place already. Collective. Device memory: the bytes of
/// `sendcount` and of `recvcount` elements are equal.
///
/// Errors: as pny_mpi_bcast.
///
/// # Safety
/// As pny_mpi_bcast, of both buffers, which do not overlap.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // MPI_Gather's
pub unsafe extern "C" fn pny_mpi_gather(
    sendbuf: *const c_void,
    sendcount: c_int,
    sendtype: MPI_Datatype,
    recvbuf: *mut c_void,
    recvcount: c_int,
    recvtype: MPI_Datatype,
    root: c_int,
    comm: pny_mpi_comm,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_gather", || {
        within(comm, |ranks| {
            ranks.root(root)?;
            let all = Row { at: recvbuf, count: recvcount, datatype: recvtype };
            let mine = Row { at: sendbuf, count: sendcount, datatype: sendtype };
            // SAFETY: the caller's contract.
            let (from, all) = unsafe { ranks.share(ranks.device.rank() == root, all, mine) }?;
            let spans: Vec<Span> = [from].into_iter().chain(all).collect();
            // SAFETY: as above. In place a share's piece is loaded before it is stored, where
            // it was.
            let device = || unsafe {
                let (copy, mut all) = (ranks.copied(&from), all.map(|all| ranks.settled_mut(&all)));
                ranks
                    .device
                    .gather_into(root, &ranks.settled_copy(&from, &copy), all.as_mut())
                    .map_err(failed)
            };
            // SAFETY: as above.
            let straight = |raw| unsafe {
                ffi::MPI_Gather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, raw)
            };
            // SAFETY: as above.
            unsafe { ranks.carry("MPI_Gather", &spans, stream, device, straight) }
        })
    })
}

/// MPI_Scatter: of `root`'s `sendbuf`, which has `sendcount` elements for each rank, every
/// rank's share in its `recvbuf`; the other ranks' `sendbuf` is not looked at. MPI_IN_PLACE
/// as the root's `recvbuf`: its share stays where it is. Collective. Otherwise as
/// pny_mpi_gather.
///
/// Errors: as pny_mpi_bcast.
///
/// # Safety
/// As pny_mpi_gather.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // MPI_Scatter's
pub unsafe extern "C" fn pny_mpi_scatter(
    sendbuf: *const c_void,
    sendcount: c_int,
    sendtype: MPI_Datatype,
    recvbuf: *mut c_void,
    recvcount: c_int,
    recvtype: MPI_Datatype,
    root: c_int,
    comm: pny_mpi_comm,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_scatter", || {
        within(comm, |ranks| {
            ranks.root(root)?;
            let all = Row { at: sendbuf, count: sendcount, datatype: sendtype };
            let mine = Row { at: recvbuf, count: recvcount, datatype: recvtype };
            // SAFETY: the caller's contract.
            let (to, all) = unsafe { ranks.share(ranks.device.rank() == root, all, mine) }?;
            let spans: Vec<Span> = [to].into_iter().chain(all).collect();
            // SAFETY: as above; in place as of pny_mpi_gather.
            let device = || unsafe {
                let copy = all.as_ref().and_then(|all| ranks.copied(all));
                let all = all.as_ref().map(|all| ranks.settled_copy(all, &copy));
                ranks.device.scatter_into(root, all.as_ref(), &mut ranks.settled_mut(&to)).map_err(failed)
            };
            // SAFETY: as above.
            let straight = |raw| unsafe {
                ffi::MPI_Scatter(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, raw)
            };
            // SAFETY: as above.
            unsafe { ranks.carry("MPI_Scatter", &spans, stream, device, straight) }
        })
    })
}

/// MPI_Allgather: every rank's `sendbuf`, one after the other, in every rank's `recvbuf`, of
/// `recvcount` elements for each rank. MPI_IN_PLACE: each rank's share is in its place
/// already. Collective. Otherwise as pny_mpi_gather.
///
/// Errors: as pny_mpi_bcast.
///
/// # Safety
/// As pny_mpi_gather.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // MPI_Allgather's
pub unsafe extern "C" fn pny_mpi_allgather(
    sendbuf: *const c_void,
    sendcount: c_int,
    sendtype: MPI_Datatype,
    recvbuf: *mut c_void,
    recvcount: c_int,
    recvtype: MPI_Datatype,
    comm: pny_mpi_comm,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_allgather", || {
        within(comm, |ranks| {
            let all = Row { at: recvbuf, count: recvcount, datatype: recvtype };
            let mine = Row { at: sendbuf, count: sendcount, datatype: sendtype };
            // SAFETY: the caller's contract.
            let (from, all) = unsafe { ranks.share(true, all, mine) }?;
            let spans: Vec<Span> = [from].into_iter().chain(all).collect();
            // SAFETY: as above; in place as of pny_mpi_gather.
            let device = || unsafe {
                let Some(all) = all else { return Ok(()) };
                let copy = ranks.copied(&from);
                let mine = ranks.settled_copy(&from, &copy);
                ranks.device.all_gather_into(&mine, &mut ranks.settled_mut(&all)).map_err(failed)
            };
            // SAFETY: as above.
            let straight = |raw| unsafe {
                ffi::MPI_Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, raw)
            };
            // SAFETY: as above.
            unsafe { ranks.carry("MPI_Allgather", &spans, stream, device, straight) }
        })
    })
}

/// MPI_Alltoall: share n of `sendbuf`, of `sendcount` elements, to rank n, which has it in
/// its `recvbuf` at this rank's place. Collective. Device memory: MPI_IN_PLACE is refused.
/// Otherwise as pny_mpi_gather.
///
/// Errors: as pny_mpi_bcast.
///
/// # Safety
/// As pny_mpi_gather.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // MPI_Alltoall's
pub unsafe extern "C" fn pny_mpi_alltoall(
    sendbuf: *const c_void,
    sendcount: c_int,
    sendtype: MPI_Datatype,
    recvbuf: *mut c_void,
    recvcount: c_int,
    recvtype: MPI_Datatype,
    comm: pny_mpi_comm,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_alltoall", || {
        within(comm, |ranks| {
            let here = in_place(sendbuf);
            // SAFETY: the caller's contract.
            let to = unsafe { Span::new(recvbuf, recvcount, recvtype) }?.moved(recvbuf, ranks.size())?;
            let from = match here {
                true => to,
                false => {
                    // SAFETY: as above.
                    let share = unsafe { Span::new(sendbuf, sendcount, sendtype) }?;
                    share.moved(sendbuf.cast_mut(), ranks.size())?
                }
            };
            let device = || {
                if here {
                    let cause = "MPI_IN_PLACE of device memory: send from another buffer";
                    return Err(Failure::invalid(cause));
                }
                // SAFETY: as above.
                let (copy, mut theirs) = unsafe { (ranks.copied(&from), ranks.settled_mut(&to)) };
                // SAFETY: as above.
                let mine = unsafe { ranks.settled_copy(&from, &copy) };
                ranks.device.all_to_all_into(&mine, &mut theirs).map_err(failed)
            };
            // SAFETY: as above.
            let straight = |raw| unsafe {
                ffi::MPI_Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, raw)
            };
            // SAFETY: as above.
            unsafe { ranks.carry("MPI_Alltoall", &[from, to], stream, device, straight) }
        })
    })
}
