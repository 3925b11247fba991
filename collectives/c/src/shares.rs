//! Gather, Scatter, Allgather and Alltoall.
#![allow(unsafe_code)]

use super::communicator::{Ranks, Way, pny_mpi_comm, within};
use super::status::{Failure, at_boundary, pny_status};
use super::straight::check;
use super::transfers::device_ptr;
use super::types::{Span, in_place};
use core::ffi::{c_int, c_void};
use mpi::ffi::{self, MPI_Datatype};
use pinyard_mpi::{Settled, SettledMut};

impl Ranks {
    /// Where this rank's share of `all` lies: what MPI_IN_PLACE names.
    fn share_of(&self, all: *const c_void, share: &Span) -> *mut c_void {
        let at = self.device.rank() as usize * share.bytes();
        all.cast_mut().wrapping_byte_add(at)
    }

    fn size(&self) -> usize {
        self.device.size() as usize
    }

    /// # Safety
    /// Of both: the memory is there, and the device's; nobody uses it while the value is.
    unsafe fn read(&self, span: &Span) -> Settled<'_, u8> {
        // SAFETY: the caller's contract.
        unsafe { Settled::from_raw(&self.opened.gpu, device_ptr(span.at), span.bytes()) }
    }

    unsafe fn write(&self, span: &Span) -> SettledMut<'_, u8> {
        // SAFETY: the caller's contract.
        unsafe { SettledMut::from_raw(&self.opened.gpu, device_ptr(span.at), span.bytes()) }
    }
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
            let receives = ranks.device.rank() == root;
            // SAFETY: the caller's contract; of the arguments that MPI looks at.
            let share = unsafe {
                match receives {
                    true => Some(Span::new(recvbuf, recvcount, recvtype)?),
                    false => None,
                }
            };
            let from = match &share {
                Some(share) if in_place(sendbuf) => share.moved(ranks.share_of(recvbuf, share), 1)?,
                // SAFETY: as above.
                _ => unsafe { Span::new(sendbuf, sendcount, sendtype) }?,
            };
            let all = share.map(|share| share.moved(recvbuf, ranks.size())).transpose()?;
            if from.bytes() == 0 && all.is_none_or(|all| all.bytes() == 0) {
                return Ok(());
            }
            let spans: Vec<Span> = [from].into_iter().chain(all).collect();
            // SAFETY: as above.
            match unsafe { ranks.way(&spans, stream) }? {
                Way::Device(_loan) => {
                    // SAFETY: as above. In place a share's piece is loaded before it is stored,
                    // where it was.
                    let (mine, mut all) = unsafe { (ranks.read(&from), all.map(|all| ranks.write(&all))) };
                    Ok(ranks.device.gather_into(root, &mine, all.as_mut())?)
                }
                Way::Straight => {
                    let raw = ranks.own.raw();
                    // SAFETY: as above.
                    let code = unsafe {
                        ffi::MPI_Gather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, raw)
                    };
                    check(code, "MPI_Gather")
                }
            }
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
            let sends = ranks.device.rank() == root;
            // SAFETY: the caller's contract; of the arguments that MPI looks at.
            let share = unsafe {
                match sends {
                    true => Some(Span::new(sendbuf, sendcount, sendtype)?),
                    false => None,
                }
            };
            let to = match &share {
                Some(share) if in_place(recvbuf) => share.moved(ranks.share_of(sendbuf, share), 1)?,
                // SAFETY: as above.
                _ => unsafe { Span::new(recvbuf, recvcount, recvtype) }?,
            };
            let all = share.map(|share| share.moved(sendbuf.cast_mut(), ranks.size())).transpose()?;
            if to.bytes() == 0 && all.is_none_or(|all| all.bytes() == 0) {
                return Ok(());
            }
            let spans: Vec<Span> = [to].into_iter().chain(all).collect();
            // SAFETY: as above.
            match unsafe { ranks.way(&spans, stream) }? {
                Way::Device(_loan) => {
                    // SAFETY: as above.
                    let (mut mine, all) = unsafe { (ranks.write(&to), all.map(|all| ranks.read(&all))) };
                    Ok(ranks.device.scatter_into(root, all.as_ref(), &mut mine)?)
                }
                Way::Straight => {
                    let raw = ranks.own.raw();
                    // SAFETY: as above.
                    let code = unsafe {
                        ffi::MPI_Scatter(
                            sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, raw,
                        )
                    };
                    check(code, "MPI_Scatter")
                }
            }
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
            // SAFETY: the caller's contract.
            let share = unsafe { Span::new(recvbuf, recvcount, recvtype) }?;
            let from = match in_place(sendbuf) {
                true => share.moved(ranks.share_of(recvbuf, &share), 1)?,
                // SAFETY: as above.
                false => unsafe { Span::new(sendbuf, sendcount, sendtype) }?,
            };
            let all = share.moved(recvbuf, ranks.size())?;
            if from.bytes() == 0 && all.bytes() == 0 {
                return Ok(());
            }
            // SAFETY: as above.
            match unsafe { ranks.way(&[from, all], stream) }? {
                Way::Device(_loan) => {
                    // SAFETY: as above; in place as of pny_mpi_gather.
                    let (mine, mut all) = unsafe { (ranks.read(&from), ranks.write(&all)) };
                    Ok(ranks.device.all_gather_into(&mine, &mut all)?)
                }
                Way::Straight => {
                    let raw = ranks.own.raw();
                    // SAFETY: as above.
                    let code = unsafe {
                        ffi::MPI_Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, raw)
                    };
                    check(code, "MPI_Allgather")
                }
            }
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
            if from.bytes() == 0 && to.bytes() == 0 {
                return Ok(());
            }
            // SAFETY: as above.
            match unsafe { ranks.way(&[from, to], stream) }? {
                Way::Device(_) if here => {
                    Err(Failure::invalid("MPI_IN_PLACE of device memory: send from another buffer"))
                }
                Way::Device(_loan) => {
                    // SAFETY: as above.
                    let (mine, mut theirs) = unsafe { (ranks.read(&from), ranks.write(&to)) };
                    Ok(ranks.device.all_to_all_into(&mine, &mut theirs)?)
                }
                Way::Straight => {
                    let raw = ranks.own.raw();
                    // SAFETY: as above.
                    let code = unsafe {
                        ffi::MPI_Alltoall(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, raw)
                    };
                    check(code, "MPI_Alltoall")
                }
            }
        })
    })
}
