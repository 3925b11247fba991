//! Elements in device memory.
#![allow(unsafe_code)]

use super::gpu::Gpu;
use super::settled::{Place, Settled, SettledMut};
use crate::error::BufferError;
use bytemuck::Pod;
use parking_lot::Mutex;
use pinyard_allocator::device::{DeviceBuf as Block, PoolStream};
use pinyard_allocator::{DriverToken, Fence};
use pinyard_driver::DevicePtr;
use pinyard_registry::backend::MemoryKey;
use std::marker::PhantomData;

/// Device memory for elements of `T`, from a [`Gpu`]'s pool.
///
/// MPI and the host see it only through [`settle`](DeviceBuf::settle) and
/// [`settle_mut`](DeviceBuf::settle_mut), which wait for the streams that use it.
/// Dropping it waits for nothing: the pool reuses the memory in the order of its
/// stream, and after the others that [`used_by`](DeviceBuf::used_by) named.
///
/// `S` is the stream that it was allocated on. One on a stream of cudarc's
/// (`Arc<CudaStream>`, feature `cudarc`, `Gpu::alloc_cuda`) implements cudarc's
/// `DeviceSlice`, `DevicePtr` and `DevicePtrMut`, so that copies, kernels, cuBLAS and NCCL
/// take it in place of a `CudaSlice`. One on a stream of the pool's cannot: these traits
/// return the buffer's `Arc<CudaStream>` and have no way to fail, and there is none for a
/// stream that another driver made, as the simulated one is.
pub struct DeviceBuf<T, S = PoolStream> {
    gpu: Gpu,
    stream: S,
    /// The same stream as the pool knows it.
    home: PoolStream,
    /// None where there are no elements.
    block: Option<Block>,
    /// Where it begins: a kernel's argument is found here. 0 without elements.
    at: DevicePtr,
    elements: usize,
    /// Other streams whose work uses it, since it was last settled for writing.
    users: Mutex<Vec<PoolStream>>,
    owns: PhantomData<T>,
}

/// What buffers are allocated on: a [`PoolStream`], or with feature `cudarc` an
/// `Arc<CudaStream>` of the device's primary context.
pub trait BufferStream: Clone + sealed::Sealed + 'static {}

pub(super) mod sealed {
    use super::{BufferError, Gpu, PoolStream};

    pub trait Sealed {
        /// As the pool of `gpu` knows it.
        fn known(&self, gpu: &Gpu) -> Result<PoolStream, BufferError>;
    }
}

impl BufferStream for PoolStream {}

impl sealed::Sealed for PoolStream {
    fn known(&self, _: &Gpu) -> Result<PoolStream, BufferError> {
        Ok(self.clone())
    }
}

impl<T: Pod, S: BufferStream> DeviceBuf<T, S> {
    pub(super) fn new(
        gpu: Gpu,
        (stream, home): (S, PoolStream),
        block: Option<Block>,
        elements: usize,
    ) -> DeviceBuf<T, S> {
        let at = block.as_ref().map_or(DevicePtr(0), Block::ptr);
        let (users, owns) = (Mutex::default(), PhantomData);
        DeviceBuf { gpu, stream, home, block, at, elements, users, owns }
    }

    /// Without elements: its memory, which something may still write, stays for good.
    pub(crate) fn leaked(self) -> DeviceBuf<T, S> {
        let streams = (self.stream.clone(), self.home.clone());
        let empty = DeviceBuf::new(self.gpu.clone(), streams, None, 0);
        std::mem::forget(self);
        empty
    }

    /// The key of its slab's registration, of a device with a registry for that
    /// ([`Gpu::with_registries`]). The default one without, and without elements.
    pub fn key(&self) -> MemoryKey {
        self.block.as_ref().map_or_else(MemoryKey::default, Block::key)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.elements
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Where it begins, for kernels and the driver's functions; 0 without elements. Work
    /// of another stream than [`stream`](DeviceBuf::stream) is told by
    /// [`used_by`](DeviceBuf::used_by).
    pub fn ptr(&self) -> DevicePtr {
        self.at
    }

    /// The stream in whose order it was allocated.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The same as the pool knows it.
    pub(crate) fn home(&self) -> &PoolStream {
        &self.home
    }

    /// Where the argument of a kernel is found.
    #[cfg(feature = "cudarc")]
    pub(super) fn at(&self) -> &u64 {
        &self.at.0
    }

    /// Its device.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Work of `stream`, queued already, uses it: settling waits for that stream too, and
    /// the memory is not reused before it.
    pub fn used_by(&self, stream: &PoolStream) {
        let mut users = self.users.lock();
        if stream.id() != self.home.id() && users.iter().all(|user| user.id() != stream.id()) {
            users.push(stream.clone());
        }
    }

    /// Waits for all work of the streams that use it so far. Not during a capture.
    fn wait(&self, token: &DriverToken) -> Result<(), BufferError> {
        let users = self.users.lock().clone();
        for stream in std::iter::once(&self.home).chain(&users) {
            self.gpu.driver().stream_synchronize(stream.stream(), token)?;
        }
        Ok(())
    }

    /// The streams whose work may use it, and `other`.
    pub(crate) fn users_and(&self, other: &PoolStream) -> Vec<PoolStream> {
        let mut streams = self.users.lock().clone();
        for stream in [&self.home, other] {
            if streams.iter().all(|known| known.id() != stream.id()) {
                streams.push(stream.clone());
            }
        }
        streams
    }

    pub(crate) fn place(&self) -> Place<'_> {
        let slab = self.block.as_ref().map(|block| (block.slab_base(), block.slab_bytes()));
        Place { gpu: &self.gpu, ptr: self.ptr(), slab }
    }

    /// Waits until everything queued has written it, and lends it for reading. While the
    /// guard lives, the program queues no work that writes it.
    pub fn settle(&self) -> Result<Settled<'_, T>, BufferError> {
        self.wait(&DriverToken::at_entry())?;
        Ok(Settled::new(self.place(), self.elements))
    }

    /// Waits until nothing queued uses it, and lends it for writing.
    pub fn settle_mut(&mut self) -> Result<SettledMut<'_, T>, BufferError> {
        self.wait(&DriverToken::at_entry())?;
        self.record_users();
        Ok(SettledMut::new(self.place(), self.elements))
    }

    /// Gives it up: its memory is reused only after the streams that use it, and after `fence` has
    /// passed, such as a [`RequestFence`](crate::RequestFence) of an MPI that takes device pointers.
    /// Without elements there is no memory, and the fence is dropped.
    pub fn defer_until(mut self, fence: Fence) {
        self.record_users();
        if let Some(block) = self.block.take() {
            block.defer_until(fence);
        }
    }

    /// The pool is told of the streams, and they are waited for no more.
    fn record_users(&mut self) {
        for stream in std::mem::take(self.users.get_mut()) {
            if let Some(block) = &mut self.block {
                block.record_use(&stream);
            }
        }
    }

    /// Copies `from`, which has its length, to it, and waits for that.
    pub fn write(&mut self, from: &[T]) -> Result<(), BufferError> {
        self.same_length(from.len())?;
        let token = DriverToken::at_entry();
        self.wait(&token)?;
        if !from.is_empty() {
            let (stream, bytes) = (self.home.stream(), size_of_val(from));
            let driver = self.gpu.driver();
            // SAFETY: both ranges have these bytes, are borrowed, and stand until the wait is
            // over; nothing queued uses the destination.
            let queued =
                unsafe { driver.copy_to_device(self.ptr(), from.as_ptr().cast(), bytes, stream, &token) };
            // A copy that was refused may still have begun.
            driver.stream_synchronize(stream, &token)?;
            queued?;
        }
        Ok(())
    }

    /// Copies it to `to`, which has its length, when everything queued has written it.
    pub fn read(&self, to: &mut [T]) -> Result<(), BufferError> {
        self.same_length(to.len())?;
        let token = DriverToken::at_entry();
        self.wait(&token)?;
        if !to.is_empty() {
            let (stream, bytes) = (self.home.stream(), size_of_val(to));
            let driver = self.gpu.driver();
            // SAFETY: both ranges have these bytes, are borrowed, and stand until the wait is
            // over; any bytes are a `T` (`Pod`).
            let queued =
                unsafe { driver.copy_to_host(to.as_mut_ptr().cast(), self.ptr(), bytes, stream, &token) };
            driver.stream_synchronize(stream, &token)?;
            queued?;
        }
        Ok(())
    }

    /// Its elements, as [`read`](DeviceBuf::read).
    pub fn to_vec(&self) -> Result<Vec<T>, BufferError> {
        let mut elements = vec![T::zeroed(); self.elements];
        self.read(&mut elements)?;
        Ok(elements)
    }

    pub(super) fn same_length(&self, other: usize) -> Result<(), BufferError> {
        let elements = self.elements;
        if other == elements { Ok(()) } else { Err(BufferError::Length { elements, other }) }
    }
}

impl<T, S> Drop for DeviceBuf<T, S> {
    fn drop(&mut self) {
        for stream in std::mem::take(self.users.get_mut()) {
            if let Some(block) = &mut self.block {
                block.record_use(&stream);
            }
        }
    }
}

impl<T, S> std::fmt::Debug for DeviceBuf<T, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceBuf")
            .field("gpu", &self.gpu)
            .field("elements", &self.elements)
            .field("block", &self.block)
            .finish_non_exhaustive()
    }
}
