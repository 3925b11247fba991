//! Device memory between pinyard and cudarc (feature `cudarc`): buffers of ours that its
//! copies, libraries and kernels take, and slices of its own for our operations.
//!
//! ```text
//! CudaBuf     DevicePtr, DevicePtrMut -> memcpy_htod, cuBLAS, NCCL …
//!             settle, settle_mut      -> DeviceCommunicator's operations
//! PinnedBuf   HostSlice (cuda_host.rs) -> memcpy_htod, memcpy_dtoh
//! CudaSlice   lend, lend_mut          -> the same, staged: other ranks cannot open it
//! ```
//!
//! cudarc's own slices remember two events, which it records where the context has several
//! streams. A [`CudaBuf`] has one stream that knows of all its uses: work of another one
//! begins after it, and the host waits for that work. So whoever waits for the buffer's
//! stream, as `settle` does, has waited for everything.
#![allow(unsafe_code)] // names device memory to kernels, and streams to the pool

use super::device::sealed::Sealed;
use super::device::{BufferStream, DeviceBuf};
use super::gpu::{Adopted, Gpu};
use super::settled::{Settled, SettledMut, resolve};
use crate::error::BufferError;
use bytemuck::Pod;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice,
    DriverError, LaunchArgs, PushKernelArg, SyncOnDrop,
};
use pinyard_allocator::device::PoolStream;
use std::ops::RangeBounds;
use std::sync::Arc;

/// A [`DeviceBuf`] on a stream of cudarc's: what cudarc takes in place of a [`CudaSlice`].
///
/// Its memory is the pool's, so an allocation usually makes no driver call, and other ranks
/// copy from it where they can. A kernel that gets it as an argument belongs on
/// [`stream`](DeviceBuf::stream): cudarc does not say which stream it launches on, and
/// leaves that to the caller of its `launch`.
///
/// ```no_run
/// use cudarc::driver::CudaContext;
/// # use pinyard_mpi::{DeviceCommunicator, Gpu};
/// # fn work(ranks: &DeviceCommunicator, gpu: &Gpu) -> Result<(), Box<dyn std::error::Error>> {
/// let stream = CudaContext::new(gpu.device().ordinal as usize)?.new_stream()?;
/// let mut grid = gpu.alloc_cuda::<f32>(1 << 20, &stream)?;
/// stream.memcpy_htod(&vec![1.0; 1 << 20], &mut grid)?;
/// stream.memset_zeros(&mut grid.slice_mut(..16))?;
/// ranks.broadcast_into(0, &mut grid.settle_mut()?)?;
/// let elements: Vec<f32> = stream.clone_dtoh(&grid)?;
/// # Ok(())
/// # }
/// ```
pub type CudaBuf<T> = DeviceBuf<T, Arc<CudaStream>>;

/// Some elements of a [`CudaBuf`], for reading.
pub struct CudaPart<'b, T> {
    whole: &'b CudaBuf<T>,
    at: CUdeviceptr,
    elements: usize,
}

/// Some elements of a [`CudaBuf`], for writing.
pub struct CudaPartMut<'b, T> {
    whole: &'b mut CudaBuf<T>,
    at: CUdeviceptr,
    elements: usize,
}

impl Gpu {
    /// A stream of cudarc's as the pool knows it. It is kept until the process ends, as the
    /// pool may ask for it: make a few.
    fn adopt(&self, stream: &Arc<CudaStream>) -> Result<PoolStream, BufferError> {
        let is_known = |(known, _): &&Adopted| Arc::ptr_eq(known, stream);
        if let Some((_, known)) = self.adopted().lock().iter().find(is_known) {
            return Ok(known.clone());
        }
        // Not with the lock held. Of two threads both ask the pool, which knows a stream once.
        let refused = |reason: String| BufferError::Stream { reason };
        let (own, theirs) = (self.device().ordinal, stream.context().ordinal());
        if self.driver().name() != "cuda" {
            return Err(refused(format!("the buffers are of a {} device", self.driver().name())));
        }
        if usize::try_from(own) != Ok(theirs) {
            return Err(refused(format!("it is of device {theirs}, and the buffers of device {own}")));
        }
        let raw = stream.cu_stream() as usize;
        if raw == pinyard_driver::Stream::PER_THREAD {
            return Err(refused("it is another stream in every thread".to_owned()));
        }
        let primary = CudaContext::new(theirs).map_err(failed("cuDevicePrimaryCtxRetain"))?;
        if primary.cu_ctx() != stream.context().cu_ctx() {
            return Err(refused("its context is not the device's primary one".to_owned()));
        }
        // A handle that is never dropped keeps the stream: the pool may outlive the Gpu.
        std::mem::forget(stream.clone());
        // SAFETY: a stream of the driver's context, which stands to the end of the process.
        let raw = unsafe { pinyard_driver::Stream::from_raw(raw) };
        let known = self.pool().stream(raw)?;
        self.adopted().lock().push((stream.clone(), known.clone()));
        Ok(known)
    }

    /// `elements` of device memory in the order of `stream`, which is of this device's primary
    /// context. Its contents are unspecified. None is allowed, and takes no memory.
    ///
    /// # Errors
    /// [`BufferError::Stream`] for a stream of another device or context, and for the
    /// per-thread default stream; otherwise as [`alloc`](Gpu::alloc).
    pub fn alloc_cuda<T: Pod>(
        &self,
        elements: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<CudaBuf<T>, BufferError> {
        self.alloc_on(elements, stream)
    }
}

impl BufferStream for Arc<CudaStream> {}

impl Sealed for Arc<CudaStream> {
    fn known(&self, gpu: &Gpu) -> Result<PoolStream, BufferError> {
        gpu.adopt(self)
    }
}

impl<T: Pod> CudaBuf<T> {
    /// Some of the elements.
    ///
    /// # Panics
    /// As a slice's index: if the range ends beyond the elements.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> CudaPart<'_, T> {
        let range = resolve(range, self.len());
        CudaPart { at: self.element(range.start), elements: range.len(), whole: self }
    }

    /// Some of the elements.
    ///
    /// # Panics
    /// As a slice's index: if the range ends beyond the elements.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> CudaPartMut<'_, T> {
        let range = resolve(range, self.len());
        CudaPartMut { at: self.element(range.start), elements: range.len(), whole: self }
    }

    fn element(&self, number: usize) -> CUdeviceptr {
        self.at() + (number * size_of::<T>()) as u64
    }

    /// `at`, for work that is given to `stream` now.
    fn used_on<'a>(&'a self, at: CUdeviceptr, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        if stream.cu_stream() == self.stream().cu_stream() {
            return (at, SyncOnDrop::Record(None));
        }
        if let Err(error) = stream.join(self.stream()) {
            // Without an order of the streams the host waits.
            stream.context().record_err(self.stream().synchronize().and(Err::<(), _>(error)));
        }
        (at, SyncOnDrop::sync_stream(stream))
    }
}

/// cudarc's traits for a type with its elements, the place of its address, and its whole
/// buffer.
macro_rules! slices {
    ($([$($generics:tt)*] $name:ty, $slice:ident => $elements:expr, $at:expr, $whole:expr;)*) => {$(
        impl<$($generics)*> DeviceSlice<T> for $name {
            fn len(&self) -> usize {
                let $slice = self;
                $elements
            }
            fn stream(&self) -> &Arc<CudaStream> {
                let $slice = self;
                $whole.stream()
            }
        }
        impl<$($generics)*> DevicePtr<T> for $name {
            fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
                let $slice = self;
                $whole.used_on(*$at, stream)
            }
        }
        // SAFETY: an address is an argument that kernels take, and stands in the value, which
        // is borrowed as long as the arguments.
        unsafe impl<'a, 'v: 'a, $($generics)*> PushKernelArg<&'v $name> for LaunchArgs<'a> {
            #[inline(always)]
            fn arg(&mut self, arg: &'v $name) -> &mut Self {
                let $slice = arg;
                self.arg($at)
            }
        }
    )*};
}

macro_rules! mutable_slices {
    ($([$($generics:tt)*] $name:ty, $slice:ident => $at:expr, $whole:expr;)*) => {$(
        impl<$($generics)*> DevicePtrMut<T> for $name {
            fn device_ptr_mut<'s>(&'s mut self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
                let $slice = self;
                $whole.used_on(*$at, stream)
            }
        }
        // SAFETY: as above.
        unsafe impl<'a, 'v: 'a, $($generics)*> PushKernelArg<&'v mut $name> for LaunchArgs<'a> {
            #[inline(always)]
            fn arg(&mut self, arg: &'v mut $name) -> &mut Self {
                let $slice: &'v $name = arg;
                self.arg($at)
            }
        }
    )*};
}

slices! {
    [T: Pod] CudaBuf<T>, buf => buf.len(), buf.at(), buf;
    ['b, T: Pod] CudaPart<'b, T>, part => part.elements, &part.at, part.whole;
    ['b, T: Pod] CudaPartMut<'b, T>, part => part.elements, &part.at, part.whole;
}
mutable_slices! {
    [T: Pod] CudaBuf<T>, buf => buf.at(), buf;
    ['b, T: Pod] CudaPartMut<'b, T>, part => &part.at, part.whole;
}

/// A failure of cudarc's, as ours are.
fn failed(call: &'static str) -> impl Fn(DriverError) -> BufferError {
    move |error| {
        let text = error
            .error_string()
            .map_or_else(|_| "unknown".to_owned(), |text| text.to_string_lossy().into_owned());
        BufferError::Driver(pinyard_driver::DriverError { call: call.to_owned(), code: error.0 as i32, text })
    }
}

/// Waits for what `stream` has been given so far, which belongs to the device of `gpu`.
fn wait(stream: &CudaStream, gpu: &Gpu) -> Result<(), BufferError> {
    let (own, theirs) = (gpu.device().ordinal, stream.context().ordinal());
    if gpu.driver().name() != "cuda" || usize::try_from(own) != Ok(theirs) {
        let reason = format!("the slice is of device {theirs}, and the communicator of {gpu}");
        return Err(BufferError::Stream { reason });
    }
    stream.synchronize().map_err(failed("cuStreamSynchronize of the slice's stream"))
}

mod sealed {
    pub trait Sealed {}
}

/// Memory of cudarc's for operations that read it.
pub trait Lend<T>: sealed::Sealed {
    /// Waits until what cudarc knows to write it has, and lends it for reading by operations
    /// of a communicator of `gpu`. Others cannot open it (memory of `cuMemAllocAsync`), so
    /// it goes through pinned chunks: copy it to a [`CudaBuf`] for more.
    ///
    /// # Errors
    /// [`BufferError::Stream`] for memory of another device; what the driver says of the
    /// wait.
    fn lend<'b>(&'b self, gpu: &'b Gpu) -> Result<Settled<'b, T>, BufferError>;
}

/// Memory of cudarc's for operations that write it.
pub trait LendMut<T>: sealed::Sealed {
    /// As [`lend`](Lend::lend), until nothing that cudarc knows of uses it.
    fn lend_mut<'b>(&'b mut self, gpu: &'b Gpu) -> Result<SettledMut<'b, T>, BufferError>;
}

macro_rules! lent {
    ($($name:ty;)*) => {$(
        impl<T> sealed::Sealed for $name {}
        impl<T: Pod> Lend<T> for $name {
            fn lend<'b>(&'b self, gpu: &'b Gpu) -> Result<Settled<'b, T>, BufferError> {
                let stream = DeviceSlice::stream(self);
                // Its stream then waits for the others that cudarc knows of.
                let (at, used) = self.device_ptr(stream);
                drop(used);
                wait(stream, gpu)?;
                // SAFETY: memory of the device that the slice has, and lends; nothing that is
                // queued writes it.
                Ok(unsafe { Settled::from_raw(gpu, pinyard_driver::DevicePtr(at), self.len()) })
            }
        }
    )*};
}

macro_rules! lent_mutably {
    ($($name:ty;)*) => {$(
        impl<T: Pod> LendMut<T> for $name {
            fn lend_mut<'b>(&'b mut self, gpu: &'b Gpu) -> Result<SettledMut<'b, T>, BufferError> {
                let (stream, elements) = (DeviceSlice::stream(self).clone(), self.len());
                let (at, used) = self.device_ptr_mut(&stream);
                drop(used);
                wait(&stream, gpu)?;
                // SAFETY: as above, and mutably: nothing that is queued uses it.
                Ok(unsafe { SettledMut::from_raw(gpu, pinyard_driver::DevicePtr(at), elements) })
            }
        }
    )*};
}

lent! { CudaSlice<T>; CudaView<'_, T>; CudaViewMut<'_, T>; }
lent_mutably! { CudaSlice<T>; CudaViewMut<'_, T>; }

impl<T> std::fmt::Debug for CudaPart<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaPart({:#x}, {} elements)", self.at, self.elements)
    }
}

impl<T> std::fmt::Debug for CudaPartMut<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaPartMut({:#x}, {} elements)", self.at, self.elements)
    }
}
