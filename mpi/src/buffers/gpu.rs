//! One device with the pools that buffers come from.

use super::device::{BufferStream, DeviceBuf};
use super::exports::Exports;
use super::kernels::Kernels;
use super::pinned::PinnedBuf;
use crate::error::{BufferError, OpenError};
use bytemuck::Pod;
use parking_lot::Mutex;
use pinyard_allocator::device::{DevicePool, PoolStream};
use pinyard_allocator::{DriverToken, Pool};
use pinyard_driver::{Cuda, Device, Driver, DriverError, Simulated};
use pinyard_registry::backend::{Custom, MemoryKey};
use pinyard_registry::{Access, Events, Registry};
use std::sync::Arc;

/// A device, a pool of its memory and one of pinned host memory. A handle: clones
/// share it, and buffers keep it.
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

struct Inner {
    driver: Arc<dyn Driver>,
    device: DevicePool,
    pinned: Pool,
    exports: Exports,
    /// Loaded when a reduction first wants them.
    kernels: Mutex<Option<Arc<Kernels>>>,
    /// For what communicators allocate themselves.
    own: Mutex<Option<PoolStream>>,
    /// Streams of cudarc's that buffers were allocated on.
    #[cfg(feature = "cudarc")]
    adopted: Mutex<Vec<Adopted>>,
}

/// A stream of cudarc's, and as the pool knows it.
#[cfg(feature = "cudarc")]
pub(super) type Adopted = (Arc<cudarc::driver::CudaStream>, PoolStream);

impl Gpu {
    /// Device `ordinal` of those that this process sees. One rank of a node usually
    /// takes device (rank on the node) mod [`Cuda::count`].
    pub fn open(ordinal: i32) -> Result<Gpu, OpenError> {
        Gpu::new(Arc::new(Cuda::open(ordinal)?))
    }

    /// A simulated device of `bytes`, whose memory ranks of one node open as a real one's:
    /// for tests of programs where no GPU is.
    pub fn simulated(bytes: usize) -> Result<Gpu, OpenError> {
        Gpu::new(Arc::new(Simulated::shareable(bytes)))
    }

    /// The device of `driver`. Its pinned memory is registered with the driver alone:
    /// what else MPI registers is MPI's own affair.
    pub fn new(driver: Arc<dyn Driver>) -> Result<Gpu, OpenError> {
        let nobody = Custom::new("driver", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let registry = Registry::builder()
            .backend(nobody)
            .events(Events::NotifyOnly)
            .build()
            .map_err(|error| OpenError::Registry { reason: error.to_string() })?;
        Gpu::with_registry(driver, &registry)
    }

    /// The same, with the pinned memory registered with `registry` as well.
    pub fn with_registry(driver: Arc<dyn Driver>, registry: &Registry) -> Result<Gpu, OpenError> {
        Gpu::made(driver, registry, None)
    }

    /// The same, and each slab of device memory registered with `device`, once, for `access`: for a
    /// program with transfers of its own by a NIC beside the collectives here, which need no
    /// registration. A buffer's key is [`DeviceBuf::key`], and whoever asks the registry for a range
    /// of it finds the slab's. Its backend has to know device memory: verbs does with
    /// [`device_memory`](pinyard_registry::backend::DeviceMemory), by a dma-buf. The two registries
    /// may be one. That a slab cannot be registered is the error of the allocation that wanted it.
    pub fn with_registries(
        driver: Arc<dyn Driver>,
        pinned: &Registry,
        device: &Registry,
        access: Access,
    ) -> Result<Gpu, OpenError> {
        Gpu::made(driver, pinned, Some((device, access)))
    }

    fn made(
        driver: Arc<dyn Driver>,
        registry: &Registry,
        slabs: Option<(&Registry, Access)>,
    ) -> Result<Gpu, OpenError> {
        let exports = Exports::new(driver.clone());
        let device = DevicePool::from_source(driver.clone(), exports.clone());
        let device = match slabs {
            Some((registry, access)) => device.registry(registry, access),
            None => device,
        };
        let device = device.build()?;
        // A limit of the program's own pools would fail MPI's chunks.
        let pinned = Pool::pinned(registry, driver.clone()).slab_bytes(16 << 20).ignore_environment();
        let pinned = pinned.build()?;
        Ok(Gpu {
            inner: Arc::new(Inner {
                driver,
                device,
                pinned,
                exports,
                kernels: Mutex::default(),
                own: Mutex::default(),
                #[cfg(feature = "cudarc")]
                adopted: Mutex::default(),
            }),
        })
    }

    /// A new stream, non-blocking. It stands until the process ends: make a few.
    pub fn stream(&self) -> Result<PoolStream, BufferError> {
        let stream = self.inner.driver.stream_create(&DriverToken::at_entry())?;
        Ok(self.inner.device.stream(stream)?)
    }

    /// A stream of its own: made once, as streams stand.
    pub(crate) fn own_stream(&self) -> Result<PoolStream, BufferError> {
        if let Some(stream) = &*self.inner.own.lock() {
            return Ok(stream.clone());
        }
        // Not with the lock held. Of two threads one makes a stream for nothing.
        let stream = self.stream()?;
        Ok(self.inner.own.lock().get_or_insert(stream).clone())
    }

    /// The kernels of reductions.
    pub(crate) fn kernels(&self, token: &DriverToken) -> Result<Arc<Kernels>, DriverError> {
        if let Some(kernels) = &*self.inner.kernels.lock() {
            return Ok(kernels.clone());
        }
        // Not with the lock held. Of two threads one loads them for nothing.
        let kernels = Arc::new(Kernels::load(&self.inner.driver, token)?);
        Ok(self.inner.kernels.lock().get_or_insert(kernels).clone())
    }

    /// `elements` of device memory in the order of `stream`, which is this device's
    /// pool's. Its contents are unspecified. None is allowed, and takes no memory.
    pub fn alloc<T: Pod>(&self, elements: usize, stream: &PoolStream) -> Result<DeviceBuf<T>, BufferError> {
        self.alloc_on(elements, stream)
    }

    pub(super) fn alloc_on<T: Pod, S: BufferStream>(
        &self,
        elements: usize,
        stream: &S,
    ) -> Result<DeviceBuf<T, S>, BufferError> {
        let home = stream.known(self)?;
        let bytes = elements.checked_mul(size_of::<T>());
        let bytes = bytes.ok_or(BufferError::TooLong { elements, element_bytes: size_of::<T>() })?;
        let block = match bytes {
            0 => None,
            bytes => Some(self.inner.device.alloc(bytes, &home)?),
        };
        Ok(DeviceBuf::new(self.clone(), (stream.clone(), home), block, elements))
    }

    /// `elements` of pinned host memory. None is allowed, and takes no memory.
    pub fn alloc_pinned<T: Pod>(&self, elements: usize) -> Result<PinnedBuf<T>, BufferError> {
        let block = match elements.saturating_mul(size_of::<T>()) {
            0 => None,
            _ => Some(self.inner.pinned.alloc::<T>(elements)?),
        };
        Ok(PinnedBuf::new(self.clone(), block))
    }

    /// What the device is.
    pub fn device(&self) -> &Device {
        self.inner.driver.device()
    }

    /// The driver, for work of the program's own.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.inner.driver
    }

    /// The pool of device memory: statistics, trimming.
    pub fn pool(&self) -> &DevicePool {
        &self.inner.device
    }

    /// The pool of pinned memory, which has MPI's chunks as well: statistics, trimming, and fences of
    /// blocks that were given up.
    pub fn pinned_pool(&self) -> &Pool {
        &self.inner.pinned
    }

    #[cfg(feature = "cudarc")]
    pub(super) fn adopted(&self) -> &Mutex<Vec<Adopted>> {
        &self.inner.adopted
    }

    pub(crate) fn exports(&self) -> &Exports {
        &self.inner.exports
    }

    /// Whether both are handles of one.
    pub(crate) fn is(&self, other: &Gpu) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = self.device();
        f.debug_struct("Gpu").field("ordinal", &device.ordinal).field("name", &device.name).finish()
    }
}

/// `device 0 (NVIDIA H200)`.
impl std::fmt::Display for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "device {} ({})", self.device().ordinal, self.device().name)
    }
}
