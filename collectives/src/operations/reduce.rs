//! Reduce and Allreduce of device buffers. MPI reduces, on the pinned chunks: there is no
//! kernel of ours.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::{Memory, extent, piece};
use crate::buffers::{Settled, SettledMut};
use crate::calls::Operand;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use crate::paths::{Path, run};
use bytemuck::Pod;
use mpi::datatype::{Equivalence, SystemDatatype};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;

const REDUCE: &str = "MPI_Reduce of device memory";
const ALLREDUCE: &str = "MPI_Allreduce of device memory";
/// Bytes of one call on the direct path: counts are of `int`.
const DIRECT: usize = 1 << 30;

/// How elements become one. Operations of the program's own have no place here: MPI
/// would run them on the host, over device memory on the direct path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// `MPI_SUM`.
    Sum,
    /// `MPI_MIN`.
    Min,
    /// `MPI_MAX`.
    Max,
}

/// Elements that MPI reduces: the integers of 8 to 64 bits, `f32` and `f64`.
pub trait Number: Pod + Equivalence<Out = SystemDatatype> + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl sealed::Sealed for $number {}
        impl Number for $number {}
    )*};
}

numbers! { i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 }

impl DeviceCommunicator {
    /// Every rank's `mine`, element by element, in every rank's `all`. Collective; all
    /// buffers have as many elements. The order of additions is MPI's.
    pub fn all_reduce_into<T: Number>(
        &self,
        mine: &Settled<'_, T>,
        all: &mut SettledMut<'_, T>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.ready(&[])?;
        let own = self.own(mine.place()).and(self.own(all.place()));
        let own = own.and_then(|()| self.same_length::<T>(ALLREDUCE, mine.len(), all.len()));
        let (from, to) = (Memory::of::<T>(mine.place(), mine.len()), Memory::of::<T>(all.place(), all.len()));
        self.reduce::<T>(ALLREDUCE, from, Some(to), reduction, None, own)
    }

    /// The same, in place.
    pub fn all_reduce_in_place<T: Number>(
        &self,
        buffer: &mut SettledMut<'_, T>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.ready(&[])?;
        let memory = Memory::of::<T>(buffer.place(), buffer.len());
        let mut own = self.own(buffer.place());
        // In place MPI wants a constant that rsmpi does not have: through chunks, always.
        if let Err(source) = self.state.borrow_mut().ring.grow(self.plan.chunk_bytes) {
            own = own.and(Err(Error::Staging { rank: self.rank(), source }));
        }
        self.same(ALLREDUCE, memory.bytes, own)?;
        let operand = Operand::new(T::equivalent_datatype(), reduction);
        self.reduce_staged(ALLREDUCE, memory, Some(memory), operand, None, size_of::<T>())
    }

    /// Every rank's `mine`, element by element, in `all` at the root, which alone gives
    /// one. Collective.
    pub fn reduce_into<T: Number>(
        &self,
        root: Rank,
        mine: &Settled<'_, T>,
        all: Option<&mut SettledMut<'_, T>>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.ready(&[root])?;
        let from = Memory::of::<T>(mine.place(), mine.len());
        let mut own = self.own(mine.place());
        let mut to = None;
        if self.rank() == root {
            let (place, length) = match &all {
                Some(all) => (all.place(), all.len()),
                None => (mine.place(), 0),
            };
            own = own.and(self.own(place)).and_then(|()| self.same_length::<T>(REDUCE, mine.len(), length));
            to = Some(Memory::of::<T>(place, length));
        }
        self.reduce::<T>(REDUCE, from, to, reduction, Some(root), own)
    }

    fn same_length<T>(&self, operation: &'static str, mine: usize, all: usize) -> Result<(), Error> {
        if mine == all {
            return Ok(());
        }
        let bytes = |elements: usize| (elements * size_of::<T>()) as u64;
        let rank = self.rank();
        Err(Error::Counts { operation, rank, bytes: bytes(all), other: rank, other_bytes: bytes(mine) })
    }

    fn reduce<T: Number>(
        &self,
        operation: &'static str,
        from: Memory,
        to: Option<Memory>,
        reduction: Reduction,
        root: Option<Rank>,
        own: Result<(), Error>,
    ) -> Result<(), Error> {
        self.same(operation, from.bytes, own)?;
        let operand = Operand::new(T::equivalent_datatype(), reduction);
        let element = size_of::<T>();
        if self.plan.path == Path::Direct {
            for number in 0..from.bytes.div_ceil(DIRECT) {
                let (start, bytes) = extent(from.bytes, DIRECT, number);
                let at = to.map_or(std::ptr::null_mut(), |to| to.host().wrapping_add(start));
                let source = from.host().wrapping_add(start);
                // SAFETY: settled memory, borrowed for the call, of which MPI takes the
                // addresses (the plan); what is written is another buffer than what is read.
                let request = unsafe { self.whole.start_reduce(source, at, bytes / element, operand, root) };
                request.and_then(|request| request.wait()).map_err(|error| self.mpi(error))?;
            }
            return Ok(());
        }
        let receives = to.filter(|_| root.is_none_or(|root| root == self.rank()));
        self.reduce_staged(operation, from, receives, operand, root, element)
    }

    fn reduce_staged(
        &self,
        operation: &'static str,
        from: Memory,
        receives: Option<Memory>,
        operand: Operand,
        root: Option<Rank>,
        element: usize,
    ) -> Result<(), Error> {
        let token = DriverToken::at_entry();
        let ring = &mut self.state.borrow_mut().ring;
        // A slot has what is sent, and behind it what is received.
        let half = ring.slot_bytes().min(self.plan.chunk_bytes) / 2 / 64 * 64;
        let piece = piece(from.bytes, half);
        // SAFETY: settled memory of these bytes, borrowed until the caller returns; two
        // pieces fit a slot. In place, a piece is loaded before it is stored.
        let outcome = unsafe {
            run(
                ring,
                from.bytes.div_ceil(piece),
                &token,
                |number, copy| {
                    let (start, length) = extent(from.bytes, piece, number);
                    copy(from.byte(start), 0, length);
                },
                |number, slot| {
                    let (_, length) = extent(from.bytes, piece, number);
                    let to = slot.wrapping_add(half);
                    Ok([Some(self.whole.start_reduce(slot, to, length / element, operand, root)?), None])
                },
                |number, copy| {
                    let (start, length) = extent(from.bytes, piece, number);
                    if let Some(to) = receives {
                        copy(to.byte(start), half, length);
                    }
                },
            )
        };
        let mine = self.ended(outcome)?;
        self.agree(operation, mine)
    }
}
