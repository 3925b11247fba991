//! Elements in pinned host memory, which streams copy from and to.
#![allow(unsafe_code)]

use super::device::{BufferStream, DeviceBuf};
use super::gpu::Gpu;
use super::settled::count;
use crate::error::BufferError;
use bytemuck::Pod;
use mpi::Count;
use mpi::datatype::{AsDatatype, Buffer, BufferMut, Collection, Equivalence, Pointer, PointerMut};
use pinyard_allocator::device::PoolStream;
use pinyard_allocator::{DriverToken, Fence, PoolBuf};
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};

/// Pinned host memory for elements of `T`.
///
/// A copy that was queued may still read or write it. So the host and MPI see it only
/// through [`settle`](PinnedBuf::settle) and [`settle_mut`](PinnedBuf::settle_mut), which
/// wait for the copies, and its memory is not reused before they have passed.
pub struct PinnedBuf<T: Pod> {
    gpu: Gpu,
    /// None where there are no elements.
    block: Option<PoolBuf<T>>,
    /// Streams that copies were queued on, each once, and the ends of their last ones.
    copies: Vec<(PoolStream, Fence)>,
}

impl<T: Pod> PinnedBuf<T> {
    pub(super) fn new(gpu: Gpu, block: Option<PoolBuf<T>>) -> PinnedBuf<T> {
        PinnedBuf { gpu, block, copies: Vec::new() }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.len())
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.block.is_none()
    }

    /// Queues a copy of `from`, which has its length, on that buffer's stream.
    pub fn copy_from<S: BufferStream>(&mut self, from: &DeviceBuf<T, S>) -> Result<(), BufferError> {
        from.same_length(self.len())?;
        let Some(block) = &mut self.block else { return Ok(()) };
        let (at, bytes) = (block.as_mut_ptr().cast(), size_of_val::<[T]>(block));
        let stream = from.home();
        let token = DriverToken::at_entry();
        // SAFETY: both have these bytes. Ours stands until the copy has passed (`copied`),
        // and the host does not see it before; theirs is reused in the stream's order.
        let queued =
            unsafe { self.gpu.driver().copy_to_host(at, from.ptr(), bytes, stream.stream(), &token) };
        self.copied(stream, &token)?;
        Ok(queued?)
    }

    /// Queues a copy to `to`, which has its length, on that buffer's stream. The elements
    /// stay as they are until it has passed.
    pub fn copy_to<S: BufferStream>(&mut self, to: &mut DeviceBuf<T, S>) -> Result<(), BufferError> {
        to.same_length(self.len())?;
        let Some(block) = &self.block else { return Ok(()) };
        let (at, bytes) = (block.as_ptr().cast(), size_of_val::<[T]>(block));
        let token = DriverToken::at_entry();
        let stream = to.home().clone();
        // SAFETY: as in `copy_from`; theirs is used in its stream's order.
        let queued =
            unsafe { self.gpu.driver().copy_to_device(to.ptr(), at, bytes, stream.stream(), &token) };
        self.copied(&stream, &token)?;
        Ok(queued?)
    }

    /// Remembers where the stream was. Where it cannot be told, waits for it.
    fn copied(&mut self, stream: &PoolStream, token: &DriverToken) -> Result<(), BufferError> {
        match stream.fence() {
            // What the stream has been given before ends before.
            Ok(fence) => match self.copies.iter_mut().find(|(known, _)| known.id() == stream.id()) {
                Some((_, last)) => *last = fence,
                None => self.copies.push((stream.clone(), fence)),
            },
            Err(_) => self.gpu.driver().stream_synchronize(stream.stream(), token)?,
        }
        Ok(())
    }

    /// Waits for the copies that were queued so far.
    pub(super) fn copies_passed(&self) -> Result<(), BufferError> {
        let token = DriverToken::at_entry();
        for (stream, _) in &self.copies {
            self.gpu.driver().stream_synchronize(stream.stream(), &token)?;
        }
        Ok(())
    }

    /// Gives it up: its memory is reused only after its copies and `fence` have passed, such as a
    /// [`RequestFence`](crate::RequestFence). Without elements there is no memory, and the fence is
    /// dropped.
    pub fn defer_until(mut self, fence: Fence) {
        let mut fences: Vec<Fence> = self.copies.drain(..).map(|(_, fence)| fence).collect();
        if let Some(block) = self.block.take() {
            fences.push(fence);
            block.defer_until(Fence::poll(fences));
        }
    }

    fn wait(&mut self) -> Result<(), BufferError> {
        self.copies_passed()?;
        self.copies.clear();
        Ok(())
    }

    /// All of it: a copy may still use it.
    pub(super) fn elements(&self) -> &[T] {
        self.block.as_deref().unwrap_or(&[])
    }

    pub(super) fn elements_mut(&mut self) -> &mut [T] {
        self.block.as_deref_mut().unwrap_or(&mut [])
    }

    /// Waits for the copies, and lends it for reading.
    pub fn settle(&mut self) -> Result<Pinned<'_, T>, BufferError> {
        self.wait()?;
        Ok(Pinned(self.elements()))
    }

    /// Waits for the copies, and lends it for writing.
    pub fn settle_mut(&mut self) -> Result<PinnedMut<'_, T>, BufferError> {
        self.wait()?;
        Ok(PinnedMut(self.elements_mut()))
    }
}

impl<T: Pod> Drop for PinnedBuf<T> {
    fn drop(&mut self) {
        let fences: Vec<Fence> = self.copies.drain(..).map(|(_, fence)| fence).collect();
        if let Some(block) = self.block.take()
            && !fences.is_empty()
        {
            block.defer_until(Fence::poll(fences));
        }
    }
}

impl<T: Pod> std::fmt::Debug for PinnedBuf<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PinnedBuf")
            .field("elements", &self.len())
            .field("streams", &self.copies.len())
            .finish()
    }
}

/// A [`PinnedBuf`] that no copy uses, for reading: a slice, and rsmpi's [`Buffer`].
#[derive(Debug)]
pub struct Pinned<'b, T>(&'b [T]);

/// A [`PinnedBuf`] that no copy uses, for writing: a slice, and rsmpi's [`BufferMut`].
#[derive(Debug)]
pub struct PinnedMut<'b, T>(&'b mut [T]);

impl<T> Deref for Pinned<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0
    }
}

impl<T> Deref for PinnedMut<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.0
    }
}

impl<T> DerefMut for PinnedMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0
    }
}

/// Implements rsmpi's traits by a slice of host memory that the type derefs to.
macro_rules! slices {
    ($([$($generics:tt)*] $name:ty;)*) => {$(
        // SAFETY: the slice's elements.
        unsafe impl<$($generics)*> Collection for $name {
            fn count(&self) -> Count {
                count(self.len())
            }
        }
        // SAFETY: the slice's elements are `T`s.
        unsafe impl<$($generics)*> AsDatatype for $name {
            type Out = T::Out;
            fn as_datatype(&self) -> T::Out {
                T::equivalent_datatype()
            }
        }
        // SAFETY: the slice is borrowed with the value.
        unsafe impl<$($generics)*> Pointer for $name {
            fn pointer(&self) -> *const c_void {
                self.as_ptr().cast()
            }
        }
        // SAFETY: pointer, count and type are the slice's.
        unsafe impl<$($generics)*> Buffer for $name {}
    )*};
}

macro_rules! mutable_slices {
    ($([$($generics:tt)*] $name:ty;)*) => {$(
        // SAFETY: the slice is borrowed mutably with the value.
        unsafe impl<$($generics)*> PointerMut for $name {
            fn pointer_mut(&mut self) -> *mut c_void {
                self.as_mut_ptr().cast()
            }
        }
        // SAFETY: pointer, count and type are the slice's, and any bytes are a `T` (`Pod`).
        unsafe impl<$($generics)*> BufferMut for $name {}
    )*};
}

pub(super) use {mutable_slices, slices};

slices! {
    [T: Pod + Equivalence] Pinned<'_, T>;
    [T: Pod + Equivalence] PinnedMut<'_, T>;
}
mutable_slices! { [T: Pod + Equivalence] PinnedMut<'_, T>; }
