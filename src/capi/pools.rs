//! Pools.
#![allow(unsafe_code, non_camel_case_types)]

use super::backend::pny_access;
use super::block_table::Blocks;
use super::callbacks::may_destroy;
use super::get::access_of;
use super::registry::{REGISTRIES, pny_registry};
use super::sized::{self, Sized_};
use super::status::{Failure, IntoFailure, at_boundary, failed, pny_status, pny_status::*};
use pinyard_allocator::device::{DeviceError, DevicePool};
use pinyard_allocator::{AllocError, BuildError, Pool};
use pinyard_boundary::{Handles, from_pointer, to_pointer};
use pinyard_driver::{Absent, Cuda, Driver, DriverError, Simulated};
use pinyard_registry::{Access, Registry};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A pool. Only its address is used, as a name.
pub struct pny_pool_object {
    _private: [u8; 0],
}

/// Handle of a pool. Any thread may use it; whoever destroys it makes sure that no other
/// thread is inside a call with it.
pub type pny_pool = *mut pny_pool_object;

/// What a pool's memory is.
pub type pny_memory = u32;

/// Host memory on huge pages, registered with `registry`.
pub const PNY_MEMORY_HOST: pny_memory = 0;
/// The same, and pinned for the device: copies to and from it are asynchronous.
pub const PNY_MEMORY_PINNED: pny_memory = 1;
/// Device memory, in the order of streams.
pub const PNY_MEMORY_DEVICE: pny_memory = 2;

/// Who drives the device of a pool of pinned or device memory.
pub type pny_driver = u32;

/// The CUDA driver, libcuda.so.1, opened by pny_pool_create; the primary context.
pub const PNY_DRIVER_CUDA: pny_driver = 0;
/// A device that is simulated, for tests on machines without one. Its memory is the
/// host's.
pub const PNY_DRIVER_SIMULATED: pny_driver = 1;

/// How a pool is made. What is 0 or null has its default; begin with zeros and set `size`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pny_pool_config {
    /// sizeof(pny_pool_config).
    pub size: usize,
    /// PNY_MEMORY_HOST, PNY_MEMORY_PINNED or PNY_MEMORY_DEVICE.
    pub memory: pny_memory,
    /// PNY_DRIVER_CUDA or PNY_DRIVER_SIMULATED; not for PNY_MEMORY_HOST.
    pub driver: pny_driver,
    /// The device's number, from 0.
    pub device: u32,
    /// What slabs are registered for; default PNY_LOCAL_WRITE.
    pub access: pny_access,
    /// Registers each slab, once. Must be set for host and pinned memory; null for device
    /// memory that nobody registers, whose keys are 0. It is not destroyed before the pool.
    pub registry: pny_registry,
    /// Bytes of a slab, the unit of registration, rounded up to 2 MiB; a device pool's at
    /// most. A larger block gets a slab of its own length. Default 64 MiB, of device memory
    /// 256 MiB.
    pub slab_bytes: usize,
    /// Bytes of all slabs at most. Default: no limit but the registry's budget, or what the
    /// device has.
    pub limit: usize,
    /// How long an allocation that would fail waits for blocks that streams or fences still
    /// use, in nanoseconds; of a device pool pny_pool_trim too. Default 10 s.
    pub patience_ns: u64,
    /// Bytes of a simulated device. Default 1 GiB.
    pub simulated_bytes: usize,
}

// SAFETY: integers and pointers.
unsafe impl Sized_ for pny_pool_config {
    const NAME: &'static str = "pny_pool_config";
    const FIRST: usize = 64;
}

pub(super) static POOLS: Handles<Pooled> = Handles::new(2, "pny_pool");

/// A pool that C has a handle of.
pub(super) struct Pooled {
    pub(super) memory: Memory,
    pub(super) blocks: Blocks,
    /// The numbers, `cuStreamGetId`, of the streams that there are handles of.
    pub(super) streams: Mutex<Vec<u64>>,
    patience: Duration,
    /// Tells the registry that somebody uses it.
    _user: Option<Arc<()>>,
    /// The fork generation of the process that made it.
    forks: u32,
}

pub(super) enum Memory {
    Host(Pool),
    Device { pool: DevicePool, driver: Arc<dyn Driver>, simulated: bool },
}

impl Pooled {
    pub(super) fn is_forked(&self) -> bool {
        self.forks != pinyard_hooks::fork_generation()
    }

    /// Refuses in a forked child, where a lock may be held for ever.
    pub(super) fn own(&self) -> Result<&Pooled, Failure> {
        match self.is_forked() {
            false => Ok(self),
            true => Err(Failure::new(PNY_ERR_FORKED, AllocError::Forked.to_string())),
        }
    }

    /// Not in a forked child.
    pub(super) fn streams(&self) -> MutexGuard<'_, Vec<u64>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trim(&self) -> usize {
        match &self.memory {
            Memory::Host(pool) => pool.trim(),
            Memory::Device { pool, .. } => trim_device(pool, self.patience),
        }
    }

    fn counts(&self) -> pny_pool_counts {
        match &self.memory {
            Memory::Host(pool) => {
                let now = pool.stats();
                pny_pool_counts {
                    size: 0,
                    slabs: now.slabs,
                    slabs_made: now.registrations,
                    reserved_bytes: now.reserved_bytes,
                    peak_reserved_bytes: now.peak_reserved_bytes,
                    live_bytes: now.live_bytes,
                    live_blocks: now.live_blocks,
                    waiting_blocks: now.deferred_blocks,
                    free_bytes: now.free_bytes + now.cached_bytes,
                    allocations: now.allocations,
                    frees: now.frees,
                }
            }
            Memory::Device { pool, .. } => counts_of_device(pool),
        }
    }

    /// In a forked child, whose parent has everything: nothing is given back, and no lock
    /// is asked for.
    pub(super) fn end(self) {
        if self.is_forked() {
            std::mem::forget(self);
        }
    }
}

pub(super) fn trim_device(pool: &DevicePool, patience: Duration) -> usize {
    // Blocks that others had used are their stream's again at the end of a pass, and their
    // slabs are found free by the next.
    let mut released = pool.trim(patience);
    loop {
        match pool.trim(patience) {
            0 => return released,
            more => released += more,
        }
    }
}

pub(super) fn counts_of_device(pool: &DevicePool) -> pny_pool_counts {
    let now = pool.stats();
    pny_pool_counts {
        size: 0,
        slabs: now.slabs,
        slabs_made: now.growths,
        reserved_bytes: now.reserved_bytes,
        peak_reserved_bytes: now.peak_reserved_bytes,
        live_bytes: now.live_bytes,
        live_blocks: now.live_blocks,
        waiting_blocks: now.waiting_blocks,
        free_bytes: now.free_bytes + now.waiting_bytes,
        allocations: now.allocations,
        frees: now.frees,
    }
}

impl IntoFailure for AllocError {
    #[cold]
    fn into_failure(self) -> Failure {
        let text = self.to_string();
        match self {
            AllocError::Empty { .. } | AllocError::Overflow { .. } | AllocError::Alignment { .. } => {
                Failure::new(PNY_ERR_INVALID, text)
            }
            AllocError::Limit { .. } | AllocError::Share { .. } | AllocError::TooManyBlocks { .. } => {
                Failure::new(PNY_ERR_LIMIT, text)
            }
            AllocError::Registration { source, .. } => Failure { cause: text, ..source.into_failure() },
            AllocError::Forked => Failure::new(PNY_ERR_FORKED, text),
            _ => Failure::new(PNY_ERR_RESOURCES, text),
        }
    }
}

impl IntoFailure for DeviceError {
    #[cold]
    fn into_failure(self) -> Failure {
        fn status(error: &DeviceError) -> pny_status {
            match error {
                DeviceError::Empty
                | DeviceError::Overflow { .. }
                | DeviceError::ForeignStream
                | DeviceError::PerThread => PNY_ERR_INVALID,
                DeviceError::Retired => PNY_ERR_STALE,
                DeviceError::Limit { .. } | DeviceError::Share { .. } => PNY_ERR_LIMIT,
                DeviceError::OutOfMemory { cause, .. } => status(cause),
                DeviceError::Registration { .. } | DeviceError::Driver(_) => PNY_ERR_BACKEND,
                DeviceError::Forked => PNY_ERR_FORKED,
                _ => PNY_ERR_RESOURCES,
            }
        }
        Failure::new(status(&self), self.to_string())
    }
}

impl IntoFailure for DriverError {
    fn into_failure(self) -> Failure {
        Failure::new(PNY_ERR_BACKEND, self.to_string())
    }
}

impl IntoFailure for BuildError {
    fn into_failure(self) -> Failure {
        let status = match &self {
            BuildError::Config(_) | BuildError::Trace(_) => PNY_ERR_REFUSED,
            BuildError::Driver(_) => PNY_ERR_BACKEND,
            BuildError::Thread { .. } | BuildError::Memory(_) => PNY_ERR_RESOURCES,
            _ => PNY_ERR_INVALID,
        };
        Failure::new(status, self.to_string())
    }
}

impl IntoFailure for Absent {
    fn into_failure(self) -> Failure {
        Failure::new(PNY_ERR_ABSENT, self.to_string())
    }
}

fn invalid(cause: impl std::fmt::Display) -> Failure {
    Failure::new(PNY_ERR_INVALID, format!("pny_pool_config: {cause}"))
}

impl pny_pool_config {
    /// What contradicts itself.
    fn judge(&self) -> Result<(), Failure> {
        if self.driver > PNY_DRIVER_SIMULATED {
            return Err(invalid(format_args!("driver is {}, which is no PNY_DRIVER_ constant", self.driver)));
        }
        match self.memory {
            PNY_MEMORY_HOST if self.driver != PNY_DRIVER_CUDA || self.device != 0 => {
                return Err(invalid("driver and device are not for PNY_MEMORY_HOST"));
            }
            PNY_MEMORY_HOST | PNY_MEMORY_PINNED if self.registry.is_null() => {
                return Err(invalid("registry is null; host and pinned slabs are registered with one"));
            }
            PNY_MEMORY_HOST | PNY_MEMORY_PINNED => {}
            PNY_MEMORY_DEVICE => {}
            other => {
                return Err(invalid(format_args!("memory is {other}, which is no PNY_MEMORY_ constant")));
            }
        }
        if self.simulated_bytes != 0
            && (self.memory == PNY_MEMORY_HOST || self.driver != PNY_DRIVER_SIMULATED)
        {
            return Err(invalid("simulated_bytes is for PNY_DRIVER_SIMULATED"));
        }
        // Addresses are reserved for eight times as much.
        const MOST: usize = 1 << 40;
        if self.simulated_bytes > MOST {
            return Err(invalid(format_args!("simulated_bytes is above {MOST}")));
        }
        Ok(())
    }

    fn open_driver(&self) -> Result<Arc<dyn Driver>, Failure> {
        if self.driver == PNY_DRIVER_SIMULATED {
            if self.device != 0 {
                return Err(Failure::new(PNY_ERR_ABSENT, "the simulated driver has one device, number 0"));
            }
            let bytes = if self.simulated_bytes == 0 { 1 << 30 } else { self.simulated_bytes };
            return Ok(Simulated::new(bytes).running());
        }
        let ordinal = i32::try_from(self.device).map_err(|_| invalid("device is above 2147483647"))?;
        Ok(Arc::new(Cuda::open(ordinal).map_err(failed)?))
    }

    fn host(&self, registry: &Registry, access: Access) -> Result<Memory, Failure> {
        let mut builder = match self.memory {
            PNY_MEMORY_PINNED => Pool::pinned(registry, self.open_driver()?),
            _ => Pool::host(registry),
        }
        .patience(self.patience());
        if self.slab_bytes != 0 {
            builder = builder.slab_bytes(self.slab_bytes);
        }
        if self.limit != 0 {
            builder = builder.limit(self.limit);
        }
        Ok(Memory::Host(builder.access(access).build().map_err(failed)?))
    }

    fn on_device(&self, registry: Option<&Registry>, access: Access) -> Result<Memory, Failure> {
        let driver = self.open_driver()?;
        let mut builder = DevicePool::builder(driver.clone()).patience(self.patience());
        if self.slab_bytes != 0 {
            builder = builder.slab_bytes(self.slab_bytes);
        }
        if self.limit != 0 {
            builder = builder.limit(self.limit);
        }
        if let Some(registry) = registry {
            builder = builder.registry(registry, access);
        }
        let simulated = self.driver == PNY_DRIVER_SIMULATED;
        Ok(Memory::Device { pool: builder.build().map_err(failed)?, driver, simulated })
    }

    fn patience(&self) -> Duration {
        match self.patience_ns {
            0 => Duration::from_secs(10),
            nanoseconds => Duration::from_nanos(nanoseconds),
        }
    }
}

/// Makes a pool and stores its handle in `*pool`. It has no slab yet: see pny_pool_warmup.
/// `config` may go afterwards. A device pool starts a thread, and heeds the environment's
/// PINYARD_POOL_ settings; a host or pinned pool those that begin with PINYARD_HOST_POOL_.
///
/// PNY_ERR_INVALID    the configuration contradicts itself
/// PNY_ERR_STALE      `registry` is none
/// PNY_ERR_ABSENT     there is no CUDA driver, or no such device
/// PNY_ERR_REFUSED    a setting of the environment cannot be read
/// PNY_ERR_BACKEND    the driver refuses
/// PNY_ERR_RESOURCES  as many pools as there can be, or no thread
///
/// # Safety
/// `config` is readable for its size; `pool` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_create(config: *const pny_pool_config, pool: *mut pny_pool) -> pny_status {
    at_boundary("pny_pool_create", || {
        sized::required("config", config.cast())?;
        sized::required("pool", pool.cast())?;
        // SAFETY: the caller's contract.
        let config = unsafe { sized::read(config) }?;
        config.judge()?;
        let access = match config.access {
            0 => Access::LOCAL_WRITE,
            bits => access_of(bits)?,
        };
        let kept = match config.registry.is_null() {
            true => None,
            false => {
                Some(REGISTRIES.get(from_pointer(config.registry)).map_err(|Failure { status, cause }| {
                    Failure::new(status, format!("pny_pool_config: registry: {cause}"))
                })?)
            }
        };
        // Before the first slab: the registry is not destroyed from now on.
        let user = kept.map(|kept| kept.user());
        pinyard_hooks::notice_forks();
        let memory = match (kept, config.memory) {
            (registry, PNY_MEMORY_DEVICE) => config.on_device(registry.map(|kept| &kept.registry), access)?,
            (Some(registry), _) => config.host(&registry.registry, access)?,
            (None, _) => return Err(invalid("registry is null")),
        };
        let made = Pooled {
            memory,
            blocks: Blocks::new(),
            streams: Mutex::default(),
            patience: config.patience(),
            _user: user,
            forks: pinyard_hooks::fork_generation(),
        };
        let handle = POOLS.insert(made)?;
        // SAFETY: the caller's contract.
        unsafe { pool.write(to_pointer(handle)) };
        Ok(())
    })
}

/// Deregisters and gives back every slab, and destroys the pool. Waits for streams as
/// pny_pool_trim does. In a forked child, whose parent made it, only the handle goes.
///
/// PNY_ERR_INVALID  null
/// PNY_ERR_STALE    not a pool
/// PNY_ERR_BUSY     blocks are in use, or wait for streams or fences, or there are handles of
///                  streams; the text says how many. Or the caller is a function that
///                  pinyard has called. The pool stays.
///
/// # Safety
/// No other thread is inside a call with this handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_destroy(pool: pny_pool) -> pny_status {
    at_boundary("pny_pool_destroy", || {
        POOLS.take(from_pointer(pool), may_go)?.end();
        Ok(())
    })
}

/// Whether nobody uses the pool; then it has no slab any more.
fn may_go(pool: &Pooled) -> Result<(), Failure> {
    may_destroy("pool")?;
    if pool.is_forked() {
        return Ok(());
    }
    let busy = |cause: String| Err(Failure::new(PNY_ERR_BUSY, cause));
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let (blocks, streams) = (pool.blocks.count() as u64, pool.streams().len() as u64);
    if blocks > 0 {
        return busy(format!("{blocks} block{} in use; free with pny_pool_free", plural(blocks)));
    }
    if streams > 0 {
        return busy(format!("{streams} stream{}; destroy with pny_stream_destroy", plural(streams)));
    }
    pool.trim();
    let now = pool.counts();
    if now.slabs > 0 {
        return busy(format!(
            "{} slabs are left, with {} blocks that wait for fences or streams, or that the driver or the registry \
             did not let go",
            now.slabs, now.waiting_blocks
        ));
    }
    Ok(())
}

/// Deregisters and gives back the slabs that hold no block in use, and stores their bytes
/// in `*released` where that is not null. Asks the fences of deferred blocks; a device pool
/// waits for streams that hold free memory, up to its patience.
///
/// PNY_ERR_INVALID  `pool` is null
/// PNY_ERR_STALE    not a pool, or one that was destroyed
/// PNY_ERR_FORKED   the pool is the parent process's
///
/// # Safety
/// `released` is writable or null. Nobody destroys the pool meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_trim(pool: pny_pool, released: *mut usize) -> pny_status {
    at_boundary("pny_pool_trim", || {
        let bytes = POOLS.get(from_pointer(pool))?.own()?.trim();
        if !released.is_null() {
            // SAFETY: the caller's contract.
            unsafe { released.write(bytes) };
        }
        Ok(())
    })
}

/// Counters of a pool, exact while no other thread is inside it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pny_pool_counts {
    /// sizeof(pny_pool_counts).
    pub size: usize,
    /// Slabs now.
    pub slabs: u64,
    /// Slabs made since the start, each registered once.
    pub slabs_made: u64,
    /// Bytes of all slabs.
    pub reserved_bytes: u64,
    /// Most bytes of slabs that there ever were.
    pub peak_reserved_bytes: u64,
    /// Bytes of blocks in use, as set aside for them, those that wait included.
    pub live_bytes: u64,
    /// Blocks in use, those that wait included.
    pub live_blocks: u64,
    /// Of these, blocks that wait for a fence or another stream.
    pub waiting_blocks: u64,
    /// Bytes that are in no block.
    pub free_bytes: u64,
    /// Blocks handed out since the start.
    pub allocations: u64,
    /// Blocks taken back since the start.
    pub frees: u64,
}

// SAFETY: integers.
unsafe impl Sized_ for pny_pool_counts {
    const NAME: &'static str = "pny_pool_counts";
    const FIRST: usize = 88;
}

/// Fills `*counts`, whose `size` the caller has set. Takes the pool's lock: not for hot
/// paths.
///
/// PNY_ERR_INVALID  null, or `size` is none of this structure's
/// PNY_ERR_STALE    not a pool, or one that was destroyed
/// PNY_ERR_FORKED   the pool is the parent process's
///
/// # Safety
/// `counts` is writable for its size. Nobody destroys the pool meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_pool_stats(pool: pny_pool, counts: *mut pny_pool_counts) -> pny_status {
    at_boundary("pny_pool_stats", || {
        sized::required("counts", counts.cast())?;
        // SAFETY: the caller's contract.
        unsafe { sized::claimed(counts) }?;
        let filled = POOLS.get(from_pointer(pool))?.own()?.counts();
        // SAFETY: the caller's contract.
        unsafe { sized::write(counts, &filled) }
    })
}
