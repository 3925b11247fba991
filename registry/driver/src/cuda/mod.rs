//! The real driver, opened at run time.
#![allow(unsafe_code)]

mod calls;
mod sys;

use self::sys::{Functions, attribute};
use crate::error::{Absent, DriverError, code};
use crate::token::DriverToken;
use crate::types::{Device, DevicePtr, Stream};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

const LIBRARY: &str = "libcuda.so.1";

/// The functions; the library stays loaded to the end of the process, as the
/// driver's own threads need it.
static FUNCTIONS: OnceLock<Result<Functions, Absent>> = OnceLock::new();

fn functions() -> Result<&'static Functions, Absent> {
    let loaded = match FUNCTIONS.get() {
        Some(loaded) => loaded,
        None => {
            // Before the cell is locked: the loader runs constructors under a lock of its own,
            // and one of them may come here. Of two threads that load, one's functions stay.
            let loaded = load();
            FUNCTIONS.get_or_init(|| loaded)
        }
    };
    loaded.as_ref().map_err(Clone::clone)
}

fn load() -> Result<Functions, Absent> {
    // SAFETY: the CUDA driver, whose constructors any CUDA program runs.
    let library = unsafe { libloading::Library::new(LIBRARY) }
        .map_err(|error| Absent::Library { library: LIBRARY, reason: words(&error) })?;
    let library = std::mem::ManuallyDrop::new(library);
    // SAFETY: it is the CUDA driver.
    let functions = unsafe { Functions::load(&library) }?;
    // SAFETY: the flags must be 0.
    check(&functions, unsafe { (functions.init)(0) }, || "cuInit(0)".to_owned())?;
    Ok(functions)
}

/// The loader's words, which libloading keeps as the cause.
fn words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

fn check(functions: &Functions, result: c_int, call: impl FnOnce() -> String) -> Result<(), DriverError> {
    if result == 0 { Ok(()) } else { Err(failed(functions, result, call())) }
}

#[cold]
fn failed(functions: &Functions, result: c_int, call: String) -> DriverError {
    let word = |ask: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
        let mut text = ptr::null();
        // SAFETY: stores a pointer to a constant string, or null for an unknown code.
        unsafe { ask(result, &mut text) };
        if text.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: a constant string of the driver's.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let text = format!("{}: {}", word(functions.error_name), word(functions.error_string));
    DriverError::new(call, result, text)
}

/// A CUDA device through its primary context, which is shared with everything else
/// in the process that uses the device.
pub struct Cuda {
    functions: &'static Functions,
    handle: sys::DeviceHandle,
    context: sys::Context,
    /// What `context` had for an id when it was retained; `None` where the driver is older
    /// than 12.0.
    context_id: Option<u64>,
    device: Device,
}

// SAFETY: the driver's functions may be called from any thread; the context is a
// handle, made current per call.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens device `ordinal` and keeps its primary context, which is made if the
    /// process has none.
    pub fn open(ordinal: i32) -> Result<Cuda, Absent> {
        let functions = functions()?;
        let mut handle = 0;
        // SAFETY: stores the handle.
        check(functions, unsafe { (functions.device_get)(&mut handle, ordinal) }, || {
            format!("cuDeviceGet({ordinal})")
        })?;
        let device = describe(functions, handle, ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: stores the context; released once, in `drop`.
        check(functions, unsafe { (functions.primary_retain)(&mut context, handle) }, || {
            format!("cuDevicePrimaryCtxRetain({ordinal})")
        })?;
        let mut cuda = Cuda { functions, handle, context, context_id: None, device };
        // SAFETY: just retained.
        let id = unsafe { id_of(functions, context) };
        cuda.context_id = id.map_err(|code| failed(functions, code, format!("cuCtxGetId({ordinal})")))?;
        Ok(cuda)
    }

    /// How many devices this process sees (CUDA_VISIBLE_DEVICES).
    pub fn count() -> Result<i32, Absent> {
        let functions = functions()?;
        let mut count = 0;
        // SAFETY: stores a number.
        check(functions, unsafe { (functions.device_count)(&mut count) }, || "cuDeviceGetCount".to_owned())?;
        Ok(count)
    }

    /// Whether the context is the one that was retained. A reset (`cuDevicePrimaryCtxReset`,
    /// `cudaDeviceReset`) leaves its handle, and whoever uses the device next brings it to life
    /// again under that handle, with another id. Streams and events of before are freed by then:
    /// the driver ends in a segmentation fault where it is given them. So every call begins with
    /// this, which takes no lock of the driver's, and a few nanoseconds.
    fn stands(&self, name: &'static str) -> Result<(), DriverError> {
        // SAFETY: retained in `open`. After resets, and releases beyond our own, the driver
        // (580.159.04) still knew the handle of a primary context, and answered.
        match unsafe { id_of(self.functions, self.context) } {
            Ok(id) if id == self.context_id => Ok(()),
            answer => Err(self.lost(name, answer.err())),
        }
    }

    /// What `cuCtxGetId` says in place of the id, or that it is another.
    #[cold]
    fn lost(&self, name: &'static str, code: Option<c_int>) -> DriverError {
        match code {
            None | Some(code::CONTEXT_IS_DESTROYED | code::INVALID_CONTEXT) => {
                let text = format!(
                    "CUDA_ERROR_CONTEXT_IS_DESTROYED: not called, as device {} was reset since it was opened",
                    self.device.ordinal
                );
                DriverError::new(name, code::CONTEXT_IS_DESTROYED, text)
            }
            Some(code) => failed(self.functions, code, format!("cuCtxGetId for {name}")),
        }
    }

    /// Runs `call` with the context current, and puts back the thread's own.
    fn within<R>(
        &self,
        name: &'static str,
        call: impl FnOnce(&Functions) -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        self.stands(name)?;
        let functions = self.functions;
        let mut before = ptr::null_mut();
        // SAFETY: stores the thread's context.
        check(functions, unsafe { (functions.ctx_get)(&mut before) }, || {
            format!("cuCtxGetCurrent for {name}")
        })?;
        if before == self.context {
            return call(functions);
        }
        // SAFETY: our context stands until `drop`.
        check(functions, unsafe { (functions.ctx_set)(self.context) }, || {
            format!("cuCtxSetCurrent for {name}")
        })?;
        let result = call(functions);
        // SAFETY: the thread's context of a moment ago, or none.
        let _ = unsafe { (functions.ctx_set)(before) };
        result
    }

    /// As `within`, for calls that a capture in another thread would forbid and be
    /// spoilt by (cuThreadExchangeStreamCaptureMode). They touch no captured stream.
    fn outside_captures<R>(
        &self,
        name: &'static str,
        call: impl FnOnce(&Functions) -> Result<R, DriverError>,
    ) -> Result<R, DriverError> {
        self.within(name, |functions| {
            let mut mode = sys::CAPTURE_MODE_RELAXED;
            let call_name = || format!("cuThreadExchangeStreamCaptureMode for {name}");
            // SAFETY: exchanges the thread's mode for the one in `mode`.
            check(functions, unsafe { (functions.exchange_capture_mode)(&mut mode) }, call_name)?;
            let result = call(functions);
            // SAFETY: as above; puts the old one back.
            let _ = unsafe { (functions.exchange_capture_mode)(&mut mode) };
            result
        })
    }

    /// The optional function, or an error that names it.
    fn optional<F: Copy>(function: Option<F>, name: &'static str) -> Result<F, DriverError> {
        function
            .ok_or_else(|| DriverError::new(name, code::NOT_SUPPORTED, "this driver has no such function"))
    }

    /// The device whose memory lies at an address, whoever allocated it
    /// (`cuPointerGetAttribute`); managed memory counts as the device's that it was
    /// allocated for. `None` for the host's, pinned or not.
    pub fn device_at(&self, at: DevicePtr, _: &DriverToken) -> Result<Option<i32>, DriverError> {
        self.within("cuPointerGetAttribute", |functions| {
            let get = Self::optional(functions.pointer_attribute, "cuPointerGetAttribute")?;
            let attribute = |which: c_int| {
                let mut value = [0 as c_int; 2];
                // SAFETY: these attributes are an int or shorter; an address that the driver
                // does not know is refused.
                match unsafe { get(value.as_mut_ptr().cast(), which, at.0) } {
                    0 => Ok(Some(value[0])),
                    code::INVALID_VALUE => Ok(None),
                    result => {
                        Err(failed(functions, result, format!("cuPointerGetAttribute({which}, {:#x})", at.0)))
                    }
                }
            };
            let Some(kind) = attribute(sys::POINTER_MEMORY_TYPE)? else { return Ok(None) };
            // The attribute is a byte; the rest of the int was 0.
            let managed = attribute(sys::POINTER_IS_MANAGED)?.is_some_and(|managed| managed != 0);
            if kind != sys::MEMORY_TYPE_DEVICE && !managed {
                return Ok(None);
            }
            attribute(sys::POINTER_DEVICE_ORDINAL)
        })
    }

    /// `cuMemAllocAsync` from the device's default pool: the peer in benchmarks. No
    /// pool of pinyard's uses it.
    pub fn alloc_async(
        &self,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Result<DevicePtr, DriverError> {
        self.within("cuMemAllocAsync", |functions| {
            let alloc = Self::optional(functions.mem_alloc_async, "cuMemAllocAsync")?;
            let mut at = 0;
            // SAFETY: stores the address.
            let result = unsafe { alloc(&mut at, bytes, stream.raw() as *mut c_void) };
            check(functions, result, || format!("cuMemAllocAsync({bytes})")).map(|()| DevicePtr(at))
        })
    }

    /// `cuMemFreeAsync`.
    ///
    /// # Safety
    /// `at` came from [`alloc_async`](Cuda::alloc_async), and only work of `stream`
    /// so far uses it.
    pub unsafe fn free_async(
        &self,
        at: DevicePtr,
        stream: Stream,
        _: &DriverToken,
    ) -> Result<(), DriverError> {
        self.within("cuMemFreeAsync", |functions| {
            let free = Self::optional(functions.mem_free_async, "cuMemFreeAsync")?;
            // SAFETY: the caller's contract.
            let result = unsafe { free(at.0, stream.raw() as *mut c_void) };
            check(functions, result, || format!("cuMemFreeAsync({:#x})", at.0))
        })
    }

    /// Lets the device's default pool keep `bytes` of free memory.
    pub fn keep_async(&self, bytes: u64, _: &DriverToken) -> Result<(), DriverError> {
        self.within("cuMemPoolSetAttribute", |functions| {
            let pool_of = Self::optional(functions.default_mem_pool, "cuDeviceGetDefaultMemPool")?;
            let set = Self::optional(functions.mem_pool_set, "cuMemPoolSetAttribute")?;
            let mut pool = ptr::null_mut();
            // SAFETY: stores the pool.
            check(functions, unsafe { pool_of(&mut pool, self.handle) }, || {
                "cuDeviceGetDefaultMemPool".to_owned()
            })?;
            let mut threshold = bytes;
            // SAFETY: this attribute is a 64-bit number.
            let result =
                unsafe { set(pool, sys::MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut threshold).cast()) };
            check(functions, result, || format!("cuMemPoolSetAttribute(release threshold, {bytes})"))
        })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`. An error means that the driver has ended.
        let _ = unsafe { (self.functions.primary_release)(self.handle) };
    }
}

/// `None` where the driver is older than 12.0; the code where it refuses.
///
/// # Safety
/// `context` is a primary context's handle.
unsafe fn id_of(functions: &Functions, context: sys::Context) -> Result<Option<u64>, c_int> {
    let Some(get) = functions.ctx_id else { return Ok(None) };
    let mut id = 0;
    // SAFETY: the caller's contract; stores a number.
    match unsafe { get(context, &mut id) } {
        0 => Ok(Some(id)),
        code => Err(code),
    }
}

/// `None` where the driver does not say: nothing is at 0:0.0, which is the host's bridge.
fn pci(domain: c_int, bus: c_int, device: c_int) -> Option<u64> {
    let [domain, bus, device] = [domain, bus, device].map(|part| u64::try_from(part).ok());
    Some(domain? << 16 | bus? << 8 | device?).filter(|&place| place > 0)
}

fn describe(functions: &Functions, handle: sys::DeviceHandle, ordinal: i32) -> Result<Device, DriverError> {
    let attribute = |which: c_int| {
        let mut value = 0;
        // SAFETY: stores a number. An attribute that the driver does not know is 0.
        if unsafe { (functions.device_attribute)(&mut value, which, handle) } == 0 { value } else { 0 }
    };
    let mut name = [0 as c_char; 128];
    let length = name.len() as c_int;
    // SAFETY: the buffer has this length; the name is terminated.
    let named = unsafe { (functions.device_name)(name.as_mut_ptr(), length, handle) };
    check(functions, named, || format!("cuDeviceGetName({ordinal})"))?;
    let mut total_bytes = 0;
    // SAFETY: stores a number.
    check(functions, unsafe { (functions.device_total)(&mut total_bytes, handle) }, || {
        format!("cuDeviceTotalMem({ordinal})")
    })?;
    let mut node = -1;
    // SAFETY: stores a number; -1 says that there are no nodes.
    let asked = unsafe { (functions.device_attribute)(&mut node, attribute::HOST_NUMA_ID, handle) };
    Ok(Device {
        ordinal,
        // SAFETY: terminated, as above.
        name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
        total_bytes,
        host_node: u32::try_from(node).ok().filter(|_| asked == 0),
        pci: pci(
            attribute(attribute::PCI_DOMAIN_ID),
            attribute(attribute::PCI_BUS_ID),
            attribute(attribute::PCI_DEVICE_ID),
        ),
        stream_values: functions.write_value.is_some()
            && functions.wait_value.is_some()
            && attribute(attribute::CAN_USE_64_BIT_STREAM_MEM_OPS) != 0,
        virtual_memory: attribute(attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0,
        rdma_virtual_memory: attribute(attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0,
        dma_buf: functions.range_handle.is_some() && attribute(attribute::DMA_BUF_SUPPORTED) != 0,
        concurrent_managed: attribute(attribute::CONCURRENT_MANAGED_ACCESS) != 0,
    })
}
