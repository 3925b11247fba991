//! Reduce and Allreduce.
#![allow(unsafe_code)]

use super::communicator::{Ranks, pny_mpi_comm, within};
use super::status::{Failure, at_boundary, pny_status};
use super::transfers::device_ptr;
use super::types::{Span, in_place, reduction};
use core::ffi::{c_int, c_void};
use mpi::ffi::{self, MPI_Datatype, MPI_Op};
use pinyard_mpi::{Number, Reduction, Settled, SettledMut};

/// Runs `$body` with `$kind` as the type that a number of shim.c's means.
macro_rules! of_number {
    ($number:expr, $kind:ident => $body:expr) => {
        of_number!(@ $number, $kind, $body, 1 i8 2 i16 3 i32 4 i64 5 u8 6 u16 7 u32 8 u64 9 f32)
    };
    (@ $number:expr, $kind:ident, $body:expr, $($value:literal $name:ident)*) => {
        match $number {
            $($value => { type $kind = $name; $body })*
            _ => { type $kind = f64; $body }
        }
    };
}

impl Ranks {
    /// # Safety
    /// Of both: the spans' memory is there, and the device's; nobody uses it meanwhile.
    unsafe fn all_reduce<T: Number>(
        &self,
        from: Option<&Span>,
        to: &Span,
        by: Reduction,
    ) -> Result<(), Failure> {
        let (gpu, count) = (&self.opened.gpu, to.count as usize);
        // SAFETY: the caller's contract.
        let mut all = unsafe { SettledMut::<T>::from_raw(gpu, device_ptr(to.at), count) };
        match from {
            None => self.device.all_reduce_in_place(&mut all, by)?,
            Some(from) => {
                // SAFETY: as above.
                let mine = unsafe { Settled::<T>::from_raw(gpu, device_ptr(from.at), count) };
                self.device.all_reduce_into(&mine, &mut all, by)?;
            }
        }
        Ok(())
    }

    unsafe fn reduce<T: Number>(
        &self,
        root: c_int,
        from: &Span,
        to: Option<&Span>,
        by: Reduction,
    ) -> Result<(), Failure> {
        let (gpu, count) = (&self.opened.gpu, from.count as usize);
        // SAFETY: the caller's contract. At the root both may be one: a piece is loaded from
        // it before it is stored there.
        let mine = unsafe { Settled::<T>::from_raw(gpu, device_ptr(from.at), count) };
        // SAFETY: as above.
        let mut all = to.map(|to| unsafe { SettledMut::<T>::from_raw(gpu, device_ptr(to.at), count) });
        Ok(self.device.reduce_into(root, &mine, all.as_mut(), by)?)
    }
}

/// MPI_Allreduce: every rank's `sendbuf`, or with MPI_IN_PLACE its `recvbuf`, element by
/// element, in every rank's `recvbuf`. Collective. Device memory: the operation is MPI_SUM,
/// MPI_MIN or MPI_MAX, of integers of 8 to 64 bits, float or double, C's or Fortran's; MPI
/// reduces, on pinned chunks.
///
/// Errors: as pny_mpi_bcast.
///
/// # Safety
/// As pny_mpi_bcast, of both buffers, which do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_mpi_allreduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: c_int,
    datatype: MPI_Datatype,
    op: MPI_Op,
    comm: pny_mpi_comm,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_allreduce", || {
        within(comm, |ranks| {
            // SAFETY: the caller's contract.
            let to = unsafe { Span::new(recvbuf, count, datatype) }?;
            let from = (!in_place(sendbuf)).then(|| to.moved(sendbuf.cast_mut(), 1)).transpose()?;
            let spans: Vec<Span> = from.into_iter().chain([to]).collect();
            let device = || {
                let (by, number) = (reduction(op)?, to.number()?);
                // SAFETY: as above.
                of_number!(number, T => unsafe { ranks.all_reduce::<T>(from.as_ref(), &to, by) })
            };
            // SAFETY: as above.
            let straight = |raw| unsafe { ffi::MPI_Allreduce(sendbuf, recvbuf, count, datatype, op, raw) };
            // SAFETY: as above.
            unsafe { ranks.carry("MPI_Allreduce", &spans, stream, device, straight) }
        })
    })
}

/// MPI_Reduce: as pny_mpi_allreduce, in `root`'s `recvbuf` alone; the other ranks' is not
/// looked at. MPI_IN_PLACE at the root is its `recvbuf`. Collective.
///
/// Errors: as pny_mpi_bcast.
///
/// # Safety
/// As pny_mpi_allreduce.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)] // MPI_Reduce's
pub unsafe extern "C" fn pny_mpi_reduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: c_int,
    datatype: MPI_Datatype,
    op: MPI_Op,
    root: c_int,
    comm: pny_mpi_comm,
    stream: *mut c_void,
) -> pny_status {
    at_boundary("pny_mpi_reduce", || {
        within(comm, |ranks| {
            ranks.root(root)?;
            let receives = ranks.device.rank() == root;
            let at = if receives && in_place(sendbuf) { recvbuf.cast_const() } else { sendbuf };
            // SAFETY: the caller's contract.
            let from = unsafe { Span::new(at, count, datatype) }?;
            let to = if receives { Some(from.moved(recvbuf, 1)?) } else { None };
            let spans: Vec<Span> = [from].into_iter().chain(to).collect();
            let device = || {
                let (by, number) = (reduction(op)?, from.number()?);
                // SAFETY: as above.
                of_number!(number, T => unsafe { ranks.reduce::<T>(root, &from, to.as_ref(), by) })
            };
            // SAFETY: as above.
            let straight = |raw| unsafe { ffi::MPI_Reduce(sendbuf, recvbuf, count, datatype, op, root, raw) };
            // SAFETY: as above.
            unsafe { ranks.carry("MPI_Reduce", &spans, stream, device, straight) }
        })
    })
}
