//! Device memory in the shapes that the allocators of other libraries have: PyTorch's
//! `CUDAPluggableAllocator`, CuPy's `CFunctionAllocator`, RMM's `CallbackMemoryResource`.
//!
//! ```text
//! alloc   shared (a pool for each device, made by the first call) -> Shared::stream -> RawPool::alloc
//! free    RawPool::free: the block goes back to the stream that it was allocated on
//! ```
//!
//! These shapes have no room for a status: a null pointer is all that the caller learns,
//! and some of them use it. So the cause also goes to stderr.
#![allow(unsafe_code)]

use super::blocks::pny_block_place;
use super::pools::{counts_of_device, pny_pool_counts, trim_device};
use super::sized;
use super::status::{Failure, at_boundary, failed, pny_last_error, pny_status, pny_status::*};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use pinyard_allocator::device::{DeviceError, DevicePool, PoolStream, RawPool};
use pinyard_driver::{Chosen, Cuda, DevicePtr, Driver, DriverToken, Simulated, Stream};
use pinyard_registry::MemoryKey;
use pinyard_worker::say;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// Devices of a process at most.
const DEVICES: usize = 64;
/// Bytes of a simulated device.
const SIMULATED: usize = 1 << 30;
/// What PyTorch and CuPy wait before they have no memory, at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pool of a device, never taken down: interpreters end without freeing.
struct Shared {
    pool: RawPool,
    driver: Arc<dyn Driver>,
    /// By the stream's number, which no later stream is given (`cuStreamGetId`).
    streams: RwLock<HashMap<u64, PoolStream>>,
    /// The fork generation of the process that made it.
    forks: u32,
}

impl Shared {
    fn open(device: usize) -> Result<Shared, Failure> {
        pinyard_hooks::notice_forks();
        let chosen = Chosen::from_environment();
        let driver: Arc<dyn Driver> =
            match chosen.map_err(|error| Failure::new(PNY_ERR_REFUSED, error.to_string()))? {
                Chosen::Cuda => Arc::new(Cuda::open(device as i32).map_err(failed)?),
                Chosen::Simulated if device == 0 => Simulated::new(SIMULATED).running(),
                Chosen::Simulated => {
                    let cause = "the simulated driver has one device, number 0";
                    return Err(Failure::new(PNY_ERR_ABSENT, cause));
                }
            };
        Shared::over(driver)
    }

    fn over(driver: Arc<dyn Driver>) -> Result<Shared, Failure> {
        let pool = DevicePool::builder(driver.clone()).patience(PATIENCE).build().map_err(failed)?;
        let forks = pinyard_hooks::fork_generation();
        Ok(Shared { pool: RawPool::new(pool), driver, streams: RwLock::default(), forks })
    }

    /// Refuses in a forked child, where a lock may be held for ever.
    fn own(&self) -> Result<(), Failure> {
        match self.forks == pinyard_hooks::fork_generation() {
            true => Ok(()),
            false => Err(failed(DeviceError::Forked)),
        }
    }

    /// The stream's number.
    ///
    /// # Safety
    /// `native` is null or a stream of the device's primary context.
    unsafe fn number(&self, native: *mut c_void) -> Result<(Stream, u64), Failure> {
        // SAFETY: the caller's contract; what the pool keeps of it is its users'.
        let stream = unsafe { Stream::from_raw(native.addr()) };
        Ok((stream, self.driver.stream_id(stream, &DriverToken::at_entry()).map_err(failed)?))
    }

    /// The pool's handle of the stream.
    ///
    /// # Safety
    /// As `number`; the stream is not destroyed before `retire`.
    unsafe fn stream(&self, native: *mut c_void) -> Result<PoolStream, Failure> {
        self.own()?;
        // SAFETY: the caller's contract.
        let (stream, id) = unsafe { self.number(native) }?;
        if let Some(known) = self.of_number(id) {
            return Ok(known);
        }
        let new = self.pool.pool().stream(stream).map_err(failed)?;
        self.streams.write().unwrap_or_else(PoisonError::into_inner).insert(id, new.clone());
        Ok(new)
    }

    fn of_number(&self, id: u64) -> Option<PoolStream> {
        self.streams.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The pool's handle of the stream, if there is one.
    ///
    /// # Safety
    /// As `stream`.
    unsafe fn known(&self, native: *mut c_void) -> Option<PoolStream> {
        self.own().ok()?;
        // SAFETY: the caller's contract.
        let (_, id) = unsafe { self.number(native) }.ok()?;
        self.of_number(id)
    }
}

static SHARED: [OnceLock<Shared>; DEVICES] = [const { OnceLock::new() }; DEVICES];

/// The device's pool, if a call has made it.
fn made(device: c_int) -> Result<Option<&'static Shared>, Failure> {
    let place = usize::try_from(device).ok().and_then(|device| SHARED.get(device));
    let place = place.ok_or_else(|| {
        Failure::new(PNY_ERR_INVALID, format!("device {device} is refused: devices are 0 to {}", DEVICES - 1))
    })?;
    Ok(place.get())
}

/// The device's pool, made where there is none.
fn shared(device: c_int) -> Result<&'static Shared, Failure> {
    static MAKING: Mutex<()> = Mutex::new(());
    if let Some(shared) = made(device)? {
        return Ok(shared);
    }
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = made(device)? {
        return Ok(shared);
    }
    let opened = Shared::open(device as usize)?;
    Ok(SHARED[device as usize].get_or_init(|| opened))
}

/// Runs `body` as every function does; a failure is told on stderr too.
fn told(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) {
    if at_boundary(name, body) != PNY_OK {
        // SAFETY: the calling thread's own text, which stands until its next call.
        let text = unsafe { CStr::from_ptr(pny_last_error()) };
        say(format_args!("{}", text.to_string_lossy()));
    }
}

/// # Safety
/// As `Shared::stream`.
unsafe fn alloc(name: &'static str, bytes: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    let mut block = null_mut();
    if bytes != 0 {
        told(name, || {
            let shared = shared(device)?;
            // SAFETY: the caller's contract.
            let stream = unsafe { shared.stream(stream) }?;
            let at = shared.pool.alloc(bytes, &stream).map_err(failed)?;
            block = core::ptr::with_exposed_provenance_mut(at.0 as usize);
            Ok(())
        });
    }
    block
}

fn free(name: &'static str, block: *mut c_void, device: c_int) {
    if !block.is_null() {
        told(name, || {
            let at = DevicePtr(block.addr() as u64);
            let refused = |cause| Failure::new(PNY_ERR_STALE, cause);
            let Some(shared) = made(device)? else {
                return Err(refused(format!("{block:p} is no block: device {device} has no pool yet")));
            };
            shared.pool.free(at).map_err(|misuse| refused(misuse.to_string()))
        });
    }
}

/// Device memory for work on `stream`, in the shape of the first function of PyTorch's
/// torch.cuda.memory.CUDAPluggableAllocator(path, "pny_torch_malloc", "pny_torch_free");
/// RMM's CallbackMemoryResource calls it from Python. One pool serves all callers of a
/// device; the first call makes it, as PINYARD_POOL_* say.
///
/// Usually without a call of the driver but cuStreamGetId. `bytes` 0 gives null. Null with
/// the cause in pny_last_error and on stderr: the device has no memory left, or is not
/// there. PyTorch does not look whether it is null: PINYARD_POOL_LIMIT bounds the pool
/// instead of the device. Any thread; in a forked child there is no memory.
///
/// # Safety
/// `stream` is null (the default stream) or a stream of the device's primary context that
/// is not destroyed before pny_plug_retire is told. PyTorch never destroys one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_torch_malloc(bytes: usize, device: c_int, stream: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { alloc("pny_torch_malloc", bytes, device, stream) }
}

/// Takes back what pny_torch_malloc gave: work on the stream that it was allocated on may
/// still be using it, and other streams' if pny_torch_record_stream was told. Null is
/// nothing. What is no block is refused, on stderr, and harms nothing. `bytes` and
/// `stream` are PyTorch's and not needed. Never calls the driver; any thread.
///
/// # Safety
/// Nobody enqueues work on the block from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_torch_free(
    block: *mut c_void,
    bytes: usize,
    device: c_int,
    stream: *mut c_void,
) {
    let _ = (bytes, stream);
    free("pny_torch_free", block, device);
}

/// Work on `stream` uses the block as well, from before its end: what PyTorch's
/// Tensor.record_stream tells (set_record_stream_fn). Null is nothing.
///
/// # Safety
/// As pny_torch_malloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_torch_record_stream(block: *mut c_void, stream: *mut c_void) {
    if block.is_null() {
        return;
    }
    told("pny_torch_record_stream", || {
        let made: Vec<&Shared> = SHARED.iter().filter_map(OnceLock::get).collect();
        // SAFETY: the caller's contract.
        unsafe { record_use(&made, block, stream) }
    });
}

/// Tells the pool that `block` is of. The stream may be another device's: the handle of the
/// pool that knows it is taken, or else of the first whose driver takes it, the block's own
/// before others.
///
/// # Safety
/// As `Shared::stream`, of one of the pools' devices.
unsafe fn record_use(pools: &[&Shared], block: *mut c_void, native: *mut c_void) -> Result<(), Failure> {
    let at = DevicePtr(block.addr() as u64);
    let Some(home) = pools.iter().position(|shared| shared.pool.holds(at)) else {
        if pools.is_empty() {
            let cause = format!("{block:p} is no block: no device has a pool yet");
            return Err(Failure::new(PNY_ERR_STALE, cause));
        }
        pools.iter().try_for_each(|shared| shared.own())?;
        return Err(Failure::new(PNY_ERR_STALE, format!("{block:p} is no block of any device's pool")));
    };
    let mut nearest = pools.to_vec();
    nearest[..=home].rotate_right(1);
    // SAFETY: the caller's contract.
    let known = nearest.iter().find_map(|shared| unsafe { shared.known(native) });
    let stream = match known {
        Some(known) => known,
        None => {
            // SAFETY: the caller's contract. A driver refuses another context's streams.
            let mut handles = nearest.iter().map(|shared| unsafe { shared.stream(native) });
            let own = handles.next().unwrap_or_else(|| Err(Failure::null("stream")));
            own.or_else(|refusal| handles.find_map(Result::ok).ok_or(refusal))?
        }
    };
    let told = pools[home].pool.record_use(at, &stream);
    told.map_err(|misuse| Failure::new(PNY_ERR_STALE, misuse.to_string()))
}

/// Device memory in the shape of the first function of CuPy's
/// cupy.cuda.memory.CFunctionAllocator(param, malloc, free, owner). CuPy does not say for
/// which stream: `param` is the stream, null for the default one, and the memory is used
/// in its order. Otherwise as pny_torch_malloc.
///
/// # Safety
/// As pny_torch_malloc, of `param`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_cupy_malloc(param: *mut c_void, bytes: usize, device: c_int) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { alloc("pny_cupy_malloc", bytes, device, param) }
}

/// Takes back what pny_cupy_malloc gave. As pny_torch_free.
///
/// # Safety
/// As pny_torch_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_cupy_free(param: *mut c_void, block: *mut c_void, device: c_int) {
    let _ = param;
    free("pny_cupy_free", block, device);
}

/// Fills `*counts`, whose `size` the caller has set, with those of the pool that serves
/// pny_torch_malloc and pny_cupy_malloc on the device.
///
/// PNY_ERR_INVALID    there is no such device number
/// PNY_ERR_NOT_READY  nothing was allocated there yet
/// PNY_ERR_FORKED     the pool is the parent process's
///
/// # Safety
/// `counts` is writable for its size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_plug_stats(device: c_int, counts: *mut pny_pool_counts) -> pny_status {
    at_boundary("pny_plug_stats", || {
        sized::required("counts", counts.cast())?;
        // SAFETY: the caller's contract.
        unsafe { sized::claimed(counts) }?;
        let shared = used(device)?;
        // SAFETY: the caller's contract.
        unsafe { sized::write(counts, &counts_of_device(shared.pool.pool())) }
    })
}

/// Gives what that pool only keeps back to the device, and says how many bytes in
/// `*released` unless that is null. Waits for streams as pny_pool_trim does.
///
/// PNY_ERR_INVALID    there is no such device number
/// PNY_ERR_NOT_READY  nothing was allocated there yet
/// PNY_ERR_FORKED     the pool is the parent process's
///
/// # Safety
/// `released` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_plug_trim(device: c_int, released: *mut usize) -> pny_status {
    at_boundary("pny_plug_trim", || {
        let bytes = trim_device(used(device)?.pool.pool(), PATIENCE);
        if !released.is_null() {
            // SAFETY: the caller's contract.
            unsafe { released.write(bytes) };
        }
        Ok(())
    })
}

/// The stream is about to be destroyed: what the device's pool keeps for it is anybody's
/// once its work is done. A stream that was never used there is nothing.
///
/// PNY_ERR_INVALID    there is no such device number
/// PNY_ERR_NOT_READY  nothing was allocated there yet
/// PNY_ERR_FORKED     the pool is the parent process's
/// PNY_ERR_BACKEND    the driver does not know the stream
///
/// # Safety
/// `stream` is null or a stream of the device's primary context; nobody allocates on it
/// any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pny_plug_retire(device: c_int, stream: *mut c_void) -> pny_status {
    at_boundary("pny_plug_retire", || {
        let shared = used(device)?;
        // SAFETY: the caller's contract.
        let (_, id) = unsafe { shared.number(stream) }?;
        let known = shared.streams.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        known.map_or(Ok(()), PoolStream::retire).map_err(failed)
    })
}

/// The block that `at` lies in.
pub(super) fn find(at: usize) -> Option<pny_block_place> {
    SHARED.iter().filter_map(OnceLock::get).find_map(|shared| {
        let (start, bytes, slab, slab_bytes) = shared.pool.find(DevicePtr(at as u64))?;
        Some(pny_block_place {
            size: 0,
            key: MemoryKey::default().into(),
            slab_base: slab.0,
            slab_length: slab_bytes as u64,
            block_base: start.0,
            block_length: bytes as u64,
            offset: at as u64 - slab.0,
        })
    })
}

/// The device's pool, in which this process has allocated.
fn used(device: c_int) -> Result<&'static Shared, Failure> {
    let shared = made(device)?.ok_or_else(|| {
        Failure::new(PNY_ERR_NOT_READY, format!("device {device} has no pool: allocate there first"))
    })?;
    shared.own()?;
    Ok(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose clock stands still, its pool, and a stream that no device before has.
    fn device(number: usize) -> (Arc<Simulated>, Shared, *mut c_void) {
        let gpu = Arc::new(Simulated::new(SIMULATED));
        let token = DriverToken::at_entry();
        let streams: Vec<Stream> = (0..number).map(|_| gpu.stream_create(&token).unwrap()).collect();
        let shared = Shared::over(gpu.clone()).unwrap();
        (gpu, shared, core::ptr::without_provenance_mut(streams[number - 1].raw()))
    }

    /// With several devices a use is told to the pool that has the block, not to the first
    /// there is, and no device that does not know the stream is in the way.
    #[test]
    fn a_use_is_told_to_the_blocks_own_device() {
        let ((one, other), (of_one, of_other)) = {
            let ((a, one, of_one), (b, other, of_other)) = (device(2), device(5));
            std::mem::forget((a, b));
            ((one, other), (of_one, of_other))
        };
        let allocated = |shared: &Shared, native| {
            // SAFETY: a stream of the pool's device, which is never destroyed.
            shared.pool.alloc(1 << 20, &unsafe { shared.stream(native) }.unwrap()).unwrap()
        };
        let (first, second) = (allocated(&one, of_one), allocated(&other, of_other));
        for (pools, at, native) in [
            // The second device's, with the first asked first; and the other way round.
            ([&one, &other], second, of_other),
            ([&other, &one], first, of_one),
            // A stream of the other device, that only that one knows.
            ([&one, &other], first, of_other),
        ] {
            let block = core::ptr::without_provenance_mut(at.0 as usize);
            // SAFETY: streams of the pools' devices.
            unsafe { record_use(&pools, block, native) }
                .unwrap_or_else(|failure| panic!("{}", failure.cause));
        }
        assert_eq!(one.streams.read().unwrap().len(), 1, "nobody made it a stream it has not");
        let nowhere = core::ptr::without_provenance_mut(4096);
        // SAFETY: as above; no block.
        let refused = unsafe { record_use(&[&one, &other], nowhere, of_one) }.unwrap_err();
        assert_eq!(refused.status, PNY_ERR_STALE);
    }
}
