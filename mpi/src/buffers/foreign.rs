//! Device memory that no [`Gpu`] allocated: a pointer that a caller in another language
//! brings.
//!
//! It is in no slab, so no other rank opens it: transfers that copy from a sender's device
//! take the staged path. Who wants the other one copies to a [`DeviceBuf`](crate::DeviceBuf)
//! first.
#![allow(unsafe_code)]

use super::gpu::Gpu;
use super::settled::{Place, Settled, SettledMut};
use bytemuck::Pod;
use pinyard_driver::DevicePtr;

fn place(gpu: &Gpu, at: DevicePtr) -> Place<'_> {
    Place { gpu, ptr: at, slab: None }
}

impl<'b, T: Pod> Settled<'b, T> {
    /// `elements` at `at`, to read from.
    ///
    /// # Safety
    /// The driver of `gpu` reaches the memory, which is there and which nobody writes as
    /// long as the value is used, by work on a stream either.
    pub unsafe fn from_raw(gpu: &'b Gpu, at: DevicePtr, elements: usize) -> Settled<'b, T> {
        Settled::new(place(gpu, at), elements)
    }
}

impl<'b, T: Pod> SettledMut<'b, T> {
    /// `elements` at `at`, to write to.
    ///
    /// # Safety
    /// As [`Settled::from_raw`], and nobody else uses the memory. A
    /// [`Settled`] of the same elements may stand beside it in the operations that MPI has
    /// an `MPI_IN_PLACE` for.
    pub unsafe fn from_raw(gpu: &'b Gpu, at: DevicePtr, elements: usize) -> SettledMut<'b, T> {
        SettledMut::new(place(gpu, at), elements)
    }
}
