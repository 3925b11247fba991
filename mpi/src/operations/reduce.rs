//! Reduce and Allreduce of device buffers: by kernels where ranks open each other's memory, of one
//! node or of each first (`node_first.rs`); elsewhere MPI reduces, on the pinned chunks.
#![allow(unsafe_code)] // names device memory to copies that have ended when it returns

use super::node_first::reduces_nodes_first;
use super::on_device::Work;
use super::{Memory, extent, piece};
use crate::buffers::{Settled, SettledMut};
use crate::called::Called;
use crate::calls::{Comm, Operand};
use crate::communicator::{DeviceCommunicator, State};
use crate::error::Error;
use crate::paths::run;
use bytemuck::Pod;
use half::{bf16, f16};
use mpi::topology::Rank;
use pinyard_allocator::DriverToken;
use pinyard_driver::reduction::{Element, Join};

const REDUCE: &str = "MPI_Reduce of device memory";
const ALLREDUCE: &str = "MPI_Allreduce of device memory";

/// How elements become one. Operations of the program's own have no place here: MPI would
/// run them on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// `MPI_SUM`.
    Sum,
    /// `MPI_MIN`.
    Min,
    /// `MPI_MAX`.
    Max,
}

/// Elements that are reduced: the integers of 8 to 64 bits, `f32`, `f64`, and `f16` and
/// `bf16` of the crate `half`.
pub trait Number: Pod + sealed::Sealed {}

mod sealed {
    use pinyard_driver::reduction::Element;

    pub trait Sealed {
        const ELEMENT: Element;
    }
}

macro_rules! numbers {
    ($($number:ty = $element:ident;)*) => {$(
        impl sealed::Sealed for $number {
            const ELEMENT: Element = Element::$element;
        }
        impl Number for $number {}
    )*};
}

numbers! {
    i8 = I8; i16 = I16; i32 = I32; i64 = I64;
    u8 = U8; u16 = U16; u32 = U32; u64 = U64;
    f32 = F32; f64 = F64;
    f16 = F16; bf16 = Bf16;
}

impl Reduction {
    fn join(self) -> Join {
        match self {
            Reduction::Sum => Join::Sum,
            Reduction::Min => Join::Min,
            Reduction::Max => Join::Max,
        }
    }
}

pub(crate) fn work<T: Number>(
    from: Memory,
    to: Option<Memory>,
    reduction: Reduction,
    root: Option<Rank>,
) -> Work {
    Work { from, to, kernel: (reduction.join(), T::ELEMENT), element_bytes: size_of::<T>(), root }
}

fn called<T: Number>(operation: &'static str, root: Option<Rank>, reduction: Reduction) -> Called {
    Called::of(operation, root).reducing((reduction.join(), T::ELEMENT))
}

impl DeviceCommunicator {
    /// Every rank's `mine`, element by element, in every rank's `all`. Collective; all
    /// buffers have as many elements.
    ///
    /// On `ipc` at most eight ranks reduce by kernels, in the order of the ranks, so that all
    /// have the same bits; of a NaN and a number the minimum and maximum are the number, and
    /// sums of half precision are rounded once. Elsewhere order and NaNs are MPI's, and sums
    /// of half precision are rounded after each addition.
    pub fn all_reduce_into<T: Number>(
        &self,
        mine: &Settled<'_, T>,
        all: &mut SettledMut<'_, T>,
        reduction: Reduction,
    ) -> Result<(), Error> {
        self.ready(&[])?;
        let _call = self.traced(ALLREDUCE, mine.len() * size_of::<T>());
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
        let _call = self.traced(ALLREDUCE, memory.bytes);
        self.reduce::<T>(ALLREDUCE, memory, Some(memory), reduction, None, self.own(buffer.place()))
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
        let _call = self.traced(REDUCE, from.bytes);
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

    /// MPI reduces on chunks, on the direct path as well: one that takes device pointers in
    /// messages may all the same load from them in a reduction (Open MPI 5 on UCX for CUDA
    /// does, and ends with a segmentation fault).
    fn chunks_for_reductions(&self) -> Result<(), Error> {
        let grown = self.state.borrow_mut().ring.grow(self.plan.chunk_bytes);
        grown.map_err(|source| self.report.staging(source))
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
        let token = DriverToken::at_entry();
        let work = work::<T>(from, to, reduction, root);
        let own = own.and(self.chunks_for_reductions());
        let nodes_first = reduces_nodes_first(self.plan.path, &self.nodes, from.bytes);
        let (share, is_closed) = self.node_first().offer(own.is_ok() && nodes_first, &work);
        let called = called::<T>(operation, root, reduction);
        let ((), wants) = self.same_and_wants(called, from.bytes, is_closed, own)?;
        let (operand, idle) = (Operand::new(T::ELEMENT, &self.desk.operations, reduction), !wants.is_busy);
        if let Some(kernels) = self.kernels(from.bytes, &token)? {
            if let Some(share) = share.filter(|_| !wants.is_closed) {
                return self.reduce_nodes_first(operation, (&kernels, operand), work, share, idle);
            }
            if self.reduces_on_device() && self.reduce_on_device(operation, &kernels, work, &token)? {
                return Ok(());
            }
        }
        let receives = to.filter(|_| root.is_none_or(|root| root == self.rank()));
        let way = if idle { "MPI, on chunks" } else { "MPI, on chunks, beside others" };
        tracing::debug!(rank = self.rank(), operation, bytes = from.bytes, way);
        let state = &mut *self.state.borrow_mut();
        let mine = self.reduce_through(state, &self.whole, (from, receives), operand, root, idle);
        self.agree(operation, mine)
    }

    /// Where all ranks are `idle` MPI's call blocks: its algorithms are better than those of the one
    /// that does not, and what it takes is so much more than the copies beside it that nothing is
    /// gained by a second one under way. Whatever fails, MPI as well, the ranks then agree: others
    /// may read this one's memory until they have.
    pub(super) fn reduce_through(
        &self,
        State { ring, .. }: &mut State,
        ranks: &Comm,
        (from, receives): (Memory, Option<Memory>),
        operand: Operand,
        root: Option<Rank>,
        idle: bool,
    ) -> Result<(), Error> {
        let token = DriverToken::at_entry();
        // A slot has what is sent, and behind it what is received.
        let half = ring.slot_bytes().min(self.plan.chunk_bytes) / 2 / 64 * 64;
        let piece = if idle { long_piece(from.bytes, half) } else { piece(from.bytes, half) };
        let element = operand.element_bytes();
        let mut refused = Ok(());
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
                    let (to, count) = (slot.wrapping_add(half), length / element);
                    if idle {
                        if let Err(error) = ranks.reduce(slot, to, count, operand, root) {
                            // The others are in it, and wait. What comes of it now is not trusted.
                            refused = Err(self.report.mpi(error));
                            ranks.reduce(slot, to, count, operand, root)?;
                        }
                        return Ok([None, None]);
                    }
                    Ok([Some(ranks.start_reduce(slot, to, count, operand, root)?), None])
                },
                |number, copy| {
                    let (start, length) = extent(from.bytes, piece, number);
                    if let Some(to) = receives {
                        copy(to.byte(start), half, length);
                    }
                },
            )
        };
        self.report.ended(outcome).and_then(|ended| refused.and(ended))
    }
}

/// Bytes of a piece that MPI reduces in a call that blocks: one where that is no longer than
/// `LEAST`, as a second call costs more than the copies beside it take.
fn long_piece(bytes: usize, half: usize) -> usize {
    const LEAST: usize = 512 << 10;
    bytes.div_ceil(2).next_multiple_of(4096).clamp(LEAST.min(half), half)
}
