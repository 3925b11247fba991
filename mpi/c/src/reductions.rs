//! Reduce and Allreduce.
#![allow(unsafe_code)]

use super::communicator::{Ranks, pny_mpi_comm, within};
use super::status::{Failure, at_boundary, failed, pny_status};
use super::transfers::{FEW, PIECE, device_ptr};
use super::types::{Span, in_place, reduction};
use core::ffi::{c_int, c_void};
use half::f16;
use mpi::ffi::{self, MPI_Datatype, MPI_Op};
use pinyard_driver::DevicePtr;
use pinyard_mpi::{DeviceBuf, Number, Reduction, Settled, SettledMut};

/// Runs `$body` with `$kind` as the type that a number of shim.c's means.
macro_rules! of_number {
    ($number:expr, $kind:ident => $body:expr) => {
        of_number!(@ $number, $kind, $body, 1 i8 2 i16 3 i32 4 i64 5 u8 6 u16 7 u32 8 u64 9 f32 11 f16)
    };
    (@ $number:expr, $kind:ident, $body:expr, $($value:literal $name:ident)*) => {
        match $number {
            $($value => { type $kind = $name; $body })*
            _ => { type $kind = f64; $body }
        }
    };
}

/// Where a reduction's elements come from and go to.
#[derive(Clone, Copy)]
struct Places {
    from: DevicePtr,
    /// None where nothing is received; the same in place.
    to: Option<DevicePtr>,
}

impl Places {
    fn skip(self, bytes: usize) -> Places {
        let skip = |at: DevicePtr| DevicePtr(at.0 + bytes as u64);
        Places { from: skip(self.from), to: self.to.map(skip) }
    }
}

/// Blocks of the communicator's own, which other ranks open in place of the caller's memory.
struct Blocks<T: Number> {
    from: DeviceBuf<T>,
    to: DeviceBuf<T>,
}

impl Ranks {
    /// Reduces `count` elements, of `root` or of all. Where kernels read other ranks' memory,
    /// piece by piece through blocks; a rank without memory for them names its own, which
    /// nobody can open, and all go through MPI.
    ///
    /// # Safety
    /// Of this and what follows: the memory of `places` is there, and the device's; nobody
    /// uses it meanwhile.
    unsafe fn reduce<T: Number>(
        &self,
        root: Option<c_int>,
        places: Places,
        count: usize,
        by: Reduction,
    ) -> Result<(), Failure> {
        let bytes = count * size_of::<T>();
        if !self.device.reduces_on_device() || bytes <= FEW {
            // SAFETY: the caller's contract.
            return unsafe { self.reduce_piece::<T>(root, places, count, by) };
        }
        let most = (PIECE / size_of::<T>()).min(count);
        let block = || self.opened.gpu.alloc::<T>(most, &self.stream).ok();
        let mut blocks = block().and_then(|from| Some(Blocks { from, to: block()? }));
        let mut mine = Ok(());
        for start in (0..count).step_by(most) {
            let (piece, length) = (places.skip(start * size_of::<T>()), most.min(count - start));
            // SAFETY: the caller's contract. A rank that has failed goes on with the others.
            let done = unsafe { self.reduce_through(root, blocks.as_mut(), piece, length, by) };
            mine = mine.and(done);
            if start == 0 && bytes >= PIECE {
                self.same_everywhere(bytes)?;
            }
        }
        mine
    }

    /// A piece through the blocks, if there are any and it can be copied to them.
    unsafe fn reduce_through<T: Number>(
        &self,
        root: Option<c_int>,
        blocks: Option<&mut Blocks<T>>,
        places: Places,
        count: usize,
        by: Reduction,
    ) -> Result<(), Failure> {
        let bytes = count * size_of::<T>();
        // SAFETY: the caller's contract; the blocks have as many elements.
        let ready =
            blocks.filter(|blocks| unsafe { self.copy(blocks.from.ptr(), places.from, bytes) }.is_ok());
        let Some(Blocks { from, to }) = ready else {
            // SAFETY: the caller's contract.
            return unsafe { self.reduce_piece::<T>(root, places, count, by) };
        };
        let at = to.ptr();
        let (Ok(from), Ok(mut to)) = (from.settle(), to.settle_mut()) else {
            // SAFETY: as above.
            return unsafe { self.reduce_piece::<T>(root, places, count, by) };
        };
        let (from, mut to) = (from.slice(..count), to.slice_mut(..count));
        match root {
            None => self.device.all_reduce_into(&from, &mut to, by).map_err(failed)?,
            Some(root) => {
                self.device.reduce_into(root, &from, places.to.map(|_| &mut to), by).map_err(failed)?
            }
        }
        match places.to {
            // SAFETY: as above.
            Some(wanted) => unsafe { self.copy(wanted, at, bytes) },
            None => Ok(()),
        }
    }

    /// A piece where it lies.
    unsafe fn reduce_piece<T: Number>(
        &self,
        root: Option<c_int>,
        places: Places,
        count: usize,
        by: Reduction,
    ) -> Result<(), Failure> {
        let gpu = &self.opened.gpu;
        // SAFETY: the caller's contract. In place both are one: what is reduced is loaded
        // before it is stored there.
        let from = unsafe { Settled::<T>::from_raw(gpu, places.from, count) };
        // SAFETY: as above.
        let mut to = places.to.map(|to| unsafe { SettledMut::<T>::from_raw(gpu, to, count) });
        match (root, &mut to) {
            (Some(root), to) => self.device.reduce_into(root, &from, to.as_mut(), by).map_err(failed)?,
            (None, Some(all)) if places.to == Some(places.from) => {
                self.device.all_reduce_in_place(all, by).map_err(failed)?
            }
            (None, Some(all)) => self.device.all_reduce_into(&from, all, by).map_err(failed)?,
            (None, None) => {}
        }
        Ok(())
    }
}

/// MPI_Allreduce: every rank's `sendbuf`, or with MPI_IN_PLACE its `recvbuf`, element by
/// element, in every rank's `recvbuf`. Collective. Device memory: the operation is MPI_SUM,
/// MPI_MIN or MPI_MAX, of integers of 8 to 64 bits, float or double, C's or Fortran's, or of half
/// precision where MPI has a datatype for it (MPIX_C_FLOAT16); on a node the devices reduce, and
/// elsewhere MPI does, on pinned chunks.
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
                let (by, number, all) = (reduction(op)?, to.number()?, device_ptr(to.at));
                let from = from.as_ref().map_or(all, |from| device_ptr(from.at));
                let (places, count) = (Places { from, to: Some(all) }, to.count as usize);
                // SAFETY: as above.
                of_number!(number, T => unsafe { ranks.reduce::<T>(None, places, count, by) })
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
                let (by, number, count) = (reduction(op)?, from.number()?, from.count as usize);
                let places = Places { from: device_ptr(from.at), to: to.map(|to| device_ptr(to.at)) };
                // SAFETY: as above.
                of_number!(number, T => unsafe { ranks.reduce::<T>(Some(root), places, count, by) })
            };
            // SAFETY: as above.
            let straight = |raw| unsafe { ffi::MPI_Reduce(sendbuf, recvbuf, count, datatype, op, root, raw) };
            // SAFETY: as above.
            unsafe { ranks.carry("MPI_Reduce", &spans, stream, device, straight) }
        })
    })
}
