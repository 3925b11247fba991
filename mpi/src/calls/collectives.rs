//! Collectives that go on while others copy: on chunks, or on device pointers.
#![allow(unsafe_code)]

use super::communicator::{bytes, check};
use super::own::OwnOperations;
use super::{Answer, Comm, Request};
use crate::operations::Reduction;
use mpi::ffi;
use mpi::topology::Rank;
use pinyard_driver::reduction::Element;
use std::ffi::{c_int, c_void};

/// What a reduction is of.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    datatype: ffi::MPI_Datatype,
    operation: ffi::MPI_Op,
    element_bytes: usize,
}

impl Operand {
    pub(crate) fn element_bytes(&self) -> usize {
        self.element_bytes
    }

    /// `reduction` of such elements, as long as `own` stands: in MPI's own type, but for those of
    /// half precision.
    pub(crate) fn new(element: Element, own: &OwnOperations, reduction: Reduction) -> Operand {
        // SAFETY: constants of the library's.
        let (datatype, operation) = unsafe {
            let datatype = match element {
                Element::I8 => ffi::RSMPI_INT8_T,
                Element::I16 => ffi::RSMPI_INT16_T,
                Element::I32 => ffi::RSMPI_INT32_T,
                Element::I64 => ffi::RSMPI_INT64_T,
                Element::U8 => ffi::RSMPI_UINT8_T,
                Element::U16 | Element::F16 | Element::Bf16 => ffi::RSMPI_UINT16_T,
                Element::U32 => ffi::RSMPI_UINT32_T,
                Element::U64 => ffi::RSMPI_UINT64_T,
                Element::F32 => ffi::RSMPI_FLOAT,
                Element::F64 => ffi::RSMPI_DOUBLE,
            };
            let operation = match reduction {
                Reduction::Sum => ffi::RSMPI_SUM,
                Reduction::Min => ffi::RSMPI_MIN,
                Reduction::Max => ffi::RSMPI_MAX,
            };
            (datatype, own.find(element, reduction).unwrap_or(operation))
        };
        Operand { datatype, operation, element_bytes: element.bytes() }
    }
}

/// The collectives that move every rank's share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rooted {
    Gather(Rank),
    Scatter(Rank),
    AllGather,
    AllToAll,
}

/// # Safety
/// Of all: the addresses have the counts that MPI asks of them, stand until the request
/// is done, nobody else writes what is sent or uses what is received; and MPI takes such
/// addresses, where they are a device's.
impl Comm {
    /// `MPI_Ibcast` of bytes.
    pub(crate) unsafe fn start_broadcast(&self, at: *mut u8, count: usize, root: Rank) -> Answer<Request> {
        // SAFETY: the caller's contract.
        Request::start("MPI_Ibcast", |request| unsafe {
            ffi::MPI_Ibcast(at.cast(), count as c_int, bytes(), root, self.raw(), request)
        })
    }

    /// `MPI_Iallreduce`, or with a root `MPI_Ireduce`.
    pub(crate) unsafe fn start_reduce(
        &self,
        from: *const u8,
        to: *mut u8,
        elements: usize,
        operand: Operand,
        root: Option<Rank>,
    ) -> Answer<Request> {
        let Operand { datatype, operation, .. } = operand;
        let (from, to, count) = (from.cast::<c_void>(), to.cast::<c_void>(), elements as c_int);
        match root {
            // SAFETY: the caller's contract.
            None => Request::start("MPI_Iallreduce", |request| unsafe {
                ffi::MPI_Iallreduce(from, to, count, datatype, operation, self.raw(), request)
            }),
            // SAFETY: as above.
            Some(root) => Request::start("MPI_Ireduce", |request| unsafe {
                ffi::MPI_Ireduce(from, to, count, datatype, operation, root, self.raw(), request)
            }),
        }
    }

    /// `MPI_Allreduce`, or with a root `MPI_Reduce`: all ranks take this form.
    pub(crate) unsafe fn reduce(
        &self,
        from: *const u8,
        to: *mut u8,
        elements: usize,
        operand: Operand,
        root: Option<Rank>,
    ) -> Answer<()> {
        let Operand { datatype, operation, .. } = operand;
        let (from, to, count) = (from.cast::<c_void>(), to.cast::<c_void>(), elements as c_int);
        match root {
            None => {
                // SAFETY: the caller's contract.
                let code = unsafe { ffi::MPI_Allreduce(from, to, count, datatype, operation, self.raw()) };
                check(code, "MPI_Allreduce")
            }
            Some(root) => {
                // SAFETY: as above.
                let code = unsafe { ffi::MPI_Reduce(from, to, count, datatype, operation, root, self.raw()) };
                check(code, "MPI_Reduce")
            }
        }
    }

    /// One of those in [`Rooted`], of `count` bytes from or for each rank.
    pub(crate) unsafe fn start_shares(
        &self,
        what: Rooted,
        from: *const u8,
        to: *mut u8,
        count: usize,
    ) -> Answer<Request> {
        let (from, to, count) = (from.cast::<c_void>(), to.cast::<c_void>(), count as c_int);
        let (raw, kind) = (self.raw(), bytes());
        match what {
            // SAFETY: the caller's contract.
            Rooted::Gather(root) => Request::start("MPI_Igather", |request| unsafe {
                ffi::MPI_Igather(from, count, kind, to, count, kind, root, raw, request)
            }),
            // SAFETY: as above.
            Rooted::Scatter(root) => Request::start("MPI_Iscatter", |request| unsafe {
                ffi::MPI_Iscatter(from, count, kind, to, count, kind, root, raw, request)
            }),
            // SAFETY: as above.
            Rooted::AllGather => Request::start("MPI_Iallgather", |request| unsafe {
                ffi::MPI_Iallgather(from, count, kind, to, count, kind, raw, request)
            }),
            // SAFETY: as above.
            Rooted::AllToAll => Request::start("MPI_Ialltoall", |request| unsafe {
                ffi::MPI_Ialltoall(from, count, kind, to, count, kind, raw, request)
            }),
        }
    }

    /// `MPI_Ialltoallv` of bytes: counts and places of what goes to and comes from each rank.
    /// The lists stand as long as the memory.
    pub(crate) unsafe fn start_parts(
        &self,
        from: *const u8,
        sent: &Listed,
        to: *mut u8,
        received: &Listed,
    ) -> Answer<Request> {
        let (from, to, kind) = (from.cast::<c_void>(), to.cast::<c_void>(), bytes());
        let (sends, at) = (sent.counts.as_ptr(), sent.places.as_ptr());
        let (receives, into) = (received.counts.as_ptr(), received.places.as_ptr());
        // SAFETY: the caller's contract; the lists have a number for each rank (`Listed`).
        Request::start("MPI_Ialltoallv", |request| unsafe {
            ffi::MPI_Ialltoallv(from, sends, at, kind, to, receives, into, kind, self.raw(), request)
        })
    }

    /// `MPI_Alltoall` of as many bytes to each rank: what each has for this one.
    pub(crate) fn swap(&self, theirs: &[u8]) -> Answer<Vec<u8>> {
        let mut mine = vec![0; theirs.len()];
        let count = theirs.len() / self.size() as usize;
        // SAFETY: both have the bytes for all ranks, and stand until the wait is over.
        unsafe { self.start_shares(Rooted::AllToAll, theirs.as_ptr(), mine.as_mut_ptr(), count) }?.wait()?;
        Ok(mine)
    }
}

/// Bytes and places for each rank, where MPI finds them while a request is under way.
pub(crate) struct Listed {
    counts: Vec<c_int>,
    places: Vec<c_int>,
}

impl Listed {
    /// Nothing for any of `ranks`.
    pub(crate) fn new(ranks: Rank) -> Listed {
        Listed { counts: vec![0; ranks as usize], places: vec![0; ranks as usize] }
    }

    /// No request uses it. `None` if a number is beyond an MPI count.
    pub(crate) fn set(&mut self, rank: usize, bytes: usize, place: usize) -> Option<()> {
        self.counts[rank] = c_int::try_from(bytes).ok()?;
        self.places[rank] = c_int::try_from(place).ok()?;
        Some(())
    }
}
