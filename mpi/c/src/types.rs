//! Datatypes and operations as mpi.h knows them (shim.c).
#![allow(unsafe_code)]

use super::status::Failure;
use core::ffi::{c_int, c_longlong, c_void};
use mpi::ffi::{MPI_Datatype, MPI_Op, MPI_SUCCESS, MPI_Status};
use pinyard_mpi::Reduction;

/// `struct shim_type`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ShimType {
    named: c_int,
    size: c_int,
    lower: c_longlong,
    extent: c_longlong,
    number: c_int,
}

unsafe extern "C" {
    fn pny_mpi_shim_type(of: MPI_Datatype, told: *mut ShimType) -> c_int;
    fn pny_mpi_shim_is_null(of: MPI_Datatype) -> c_int;
    fn pny_mpi_shim_operation(operation: MPI_Op) -> c_int;
    fn pny_mpi_shim_in_place() -> *mut c_void;
    fn pny_mpi_shim_status(
        status: *mut MPI_Status,
        source: c_int,
        tag: c_int,
        of: MPI_Datatype,
        count: c_int,
    ) -> c_int;
}

/// Memory of a call: where, how much, and of what.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) at: *mut c_void,
    pub(super) count: c_int,
    pub(super) datatype: MPI_Datatype,
    told: ShimType,
}

impl Span {
    /// # Safety
    /// `datatype` is a datatype of MPI's, or the null one. MPI is initialised.
    pub(super) unsafe fn new(
        at: *const c_void,
        count: c_int,
        datatype: MPI_Datatype,
    ) -> Result<Span, Failure> {
        // SAFETY: compares handles.
        if unsafe { pny_mpi_shim_is_null(datatype) } != 0 {
            return Err(Failure::invalid("the datatype is MPI_DATATYPE_NULL"));
        }
        if count < 0 {
            return Err(Failure::invalid(format!("count is {count}")));
        }
        let mut told = ShimType::default();
        // SAFETY: the caller's contract; stores what it says.
        let code = unsafe { pny_mpi_shim_type(datatype, &mut told) };
        if code != MPI_SUCCESS as c_int {
            return Err(Failure::invalid(format!("MPI_Type_get_envelope says {code}: not a datatype")));
        }
        Ok(Span { at: at.cast_mut(), count, datatype, told })
    }

    /// The same elsewhere, `shares` times as long.
    pub(super) fn moved(self, at: *mut c_void, shares: usize) -> Result<Span, Failure> {
        let count = (self.count as usize).checked_mul(shares).and_then(|count| c_int::try_from(count).ok());
        let long = || Failure::invalid(format!("{} elements of {shares} ranks exceed an int", self.count));
        Ok(Span { at, count: count.ok_or_else(long)?, ..self })
    }

    /// Bytes that MPI would send.
    pub(super) fn bytes(&self) -> usize {
        self.count as usize * self.told.size as usize
    }

    /// Whether the datatype is MPI's own.
    pub(super) fn is_predefined(&self) -> bool {
        self.told.named != 0
    }

    /// Refuses what is no row of bytes: on a device nobody packs.
    pub(super) fn plain(&self) -> Result<(), Failure> {
        if !self.is_predefined() {
            let cause = "device memory of a derived datatype: only predefined ones are possible, so send the \
                         elements or pack them on the device";
            return Err(Failure::invalid(cause));
        }
        if self.told.lower != 0 || self.told.extent != c_longlong::from(self.told.size) {
            let ShimType { size, extent, .. } = self.told;
            return Err(Failure::invalid(format!(
                "device memory of a datatype of {size} bytes that lie {extent} apart: only those without gaps are possible"
            )));
        }
        Ok(())
    }

    /// What a reduction is of: a number of `shim.c`'s.
    pub(super) fn number(&self) -> Result<c_int, Failure> {
        match self.told.number {
            0 => Err(Failure::invalid(
                "device memory is reduced of integers of 8 to 64 bits, float and double, and of half precision where MPI \
                 has a datatype for it: this one is none",
            )),
            number => Ok(number),
        }
    }

    pub(super) fn size(&self) -> usize {
        self.told.size as usize
    }
}

/// The operation, where it is one that device memory is reduced by.
pub(super) fn reduction(operation: MPI_Op) -> Result<Reduction, Failure> {
    // SAFETY: compares handles.
    match unsafe { pny_mpi_shim_operation(operation) } {
        1 => Ok(Reduction::Sum),
        2 => Ok(Reduction::Min),
        3 => Ok(Reduction::Max),
        _ => Err(Failure::invalid("device memory is reduced by MPI_SUM, MPI_MIN and MPI_MAX")),
    }
}

/// Whether it is MPI_IN_PLACE.
pub(super) fn in_place(at: *const c_void) -> bool {
    // SAFETY: a constant.
    at == unsafe { pny_mpi_shim_in_place() }.cast_const()
}

/// Tells a receiver what came.
///
/// # Safety
/// `status` is writable, or MPI_STATUS_IGNORE.
pub(super) unsafe fn tell(status: *mut MPI_Status, source: c_int, tag: c_int, span: &Span, bytes: usize) {
    let count = bytes / span.size().max(1);
    // SAFETY: the caller's contract. It fails only for what is no status.
    let _ = unsafe { pny_mpi_shim_status(status, source, tag, span.datatype, count as c_int) };
}
