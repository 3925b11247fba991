//! Each call of the driver, with its arguments in its error.
#![allow(unsafe_code)]

use super::{Cuda, check, sys};
use crate::driver::Driver;
use crate::error::{DriverError, code};
use crate::token::DriverToken;
use crate::types::{Capture, Device, DevicePtr, Event, Function, MemInfo, Module, Physical, Stream};
use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

type Answer<T> = Result<T, DriverError>;

fn handle(stream: Stream) -> *mut c_void {
    stream.raw() as *mut c_void
}

fn event_handle(event: Event) -> *mut c_void {
    event.raw() as *mut c_void
}

/// What a boxed closure becomes for a host function.
type Work = Box<dyn FnOnce() + Send>;

extern "C" fn run_work(data: *mut c_void) {
    // SAFETY: made by `host_function`, which the driver runs once.
    let work = unsafe { Box::from_raw(data.cast::<Work>()) };
    // A panic must not cross into the driver.
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// A wait that says "not yet" by a code.
fn ready(answer: Answer<()>) -> Answer<bool> {
    match answer {
        Ok(()) => Ok(true),
        Err(error) if error.code == code::NOT_READY => Ok(false),
        Err(error) => Err(error),
    }
}

// SAFETY: memory comes from the driver, which gives it to nobody else.
unsafe impl Driver for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn mem_info(&self, _: &DriverToken) -> Answer<MemInfo> {
        self.within("cuMemGetInfo", |functions| {
            let (mut free, mut total) = (0, 0);
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.mem_info)(&mut free, &mut total) };
            check(functions, result, || "cuMemGetInfo()".to_owned()).map(|()| MemInfo { free, total })
        })
    }

    fn mem_alloc(&self, bytes: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.outside_captures("cuMemAlloc", |functions| {
            let mut at = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.mem_alloc)(&mut at, bytes) };
            check(functions, result, || format!("cuMemAlloc({bytes})")).map(|()| DevicePtr(at))
        })
    }

    unsafe fn mem_free(&self, at: DevicePtr, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemFree", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.mem_free)(at.0) };
            check(functions, result, || format!("cuMemFree({:#x})", at.0))
        })
    }

    fn mem_alloc_managed(&self, bytes: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.outside_captures("cuMemAllocManaged", |functions| {
            let mut at = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.mem_alloc_managed)(&mut at, bytes, sys::MEM_ATTACH_GLOBAL) };
            check(functions, result, || format!("cuMemAllocManaged({bytes})")).map(|()| DevicePtr(at))
        })
    }

    fn physical_granularity(&self, rdma: bool, _: &DriverToken) -> Answer<usize> {
        self.within("cuMemGetAllocationGranularity", |functions| {
            let prop = sys::AllocationProp::new(self.handle, rdma);
            let mut bytes = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result =
                unsafe { (functions.granularity)(&mut bytes, &prop, sys::ALLOC_GRANULARITY_RECOMMENDED) };
            check(functions, result, || format!("cuMemGetAllocationGranularity(rdma {rdma})")).map(|()| bytes)
        })
    }

    fn physical_create(&self, bytes: usize, rdma: bool, _: &DriverToken) -> Answer<Physical> {
        self.outside_captures("cuMemCreate", |functions| {
            let prop = sys::AllocationProp::new(self.handle, rdma);
            let mut physical = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.create)(&mut physical, bytes, &prop, 0) };
            check(functions, result, || format!("cuMemCreate({bytes}, rdma {rdma})"))
                .map(|()| Physical(physical))
        })
    }

    unsafe fn physical_release(&self, physical: Physical, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemRelease", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.release)(physical.0) };
            check(functions, result, || format!("cuMemRelease({:#x})", physical.0))
        })
    }

    fn address_reserve(&self, bytes: usize, align: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.outside_captures("cuMemAddressReserve", |functions| {
            let mut at = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.address_reserve)(&mut at, bytes, align, 0, 0) };
            check(functions, result, || format!("cuMemAddressReserve({bytes}, {align})"))
                .map(|()| DevicePtr(at))
        })
    }

    unsafe fn address_free(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemAddressFree", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.address_free)(at.0, bytes) };
            check(functions, result, || format!("cuMemAddressFree({:#x}, {bytes})", at.0))
        })
    }

    unsafe fn map(&self, at: DevicePtr, bytes: usize, physical: Physical, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemMap", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.map)(at.0, bytes, 0, physical.0, 0) };
            check(functions, result, || format!("cuMemMap({:#x}, {bytes}, {:#x})", at.0, physical.0))?;
            let access = sys::AccessDesc {
                location: sys::Location::device(self.handle),
                flags: sys::ACCESS_READWRITE,
            };
            // SAFETY: just mapped.
            let result = unsafe { (functions.set_access)(at.0, bytes, &access, 1) };
            let accessible =
                check(functions, result, || format!("cuMemSetAccess({:#x}, {bytes}, read and write)", at.0));
            if accessible.is_err() {
                // SAFETY: as above; nobody has seen it.
                let _ = unsafe { (functions.unmap)(at.0, bytes) };
            }
            accessible
        })
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemUnmap", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.unmap)(at.0, bytes) };
            check(functions, result, || format!("cuMemUnmap({:#x}, {bytes})", at.0))
        })
    }

    fn host_alloc(&self, bytes: usize, _: &DriverToken) -> Answer<*mut u8> {
        self.outside_captures("cuMemHostAlloc", |functions| {
            let mut at = ptr::null_mut();
            let flags = sys::MEMHOSTALLOC_PORTABLE_DEVICEMAP;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.host_alloc)(&mut at, bytes, flags) };
            check(functions, result, || format!("cuMemHostAlloc({bytes}, {flags:#x})")).map(|()| at.cast())
        })
    }

    unsafe fn host_free(&self, at: *mut u8, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemFreeHost", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.host_free)(at.cast()) };
            check(functions, result, || format!("cuMemFreeHost({at:p})"))
        })
    }

    unsafe fn host_register(&self, at: *mut u8, bytes: usize, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemHostRegister", |functions| {
            let flags = sys::MEMHOSTREGISTER_PORTABLE_DEVICEMAP;
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.host_register)(at.cast(), bytes, flags) };
            check(functions, result, || format!("cuMemHostRegister({at:p}, {bytes}, {flags:#x})"))
        })
    }

    unsafe fn host_unregister(&self, at: *mut u8, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemHostUnregister", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.host_unregister)(at.cast()) };
            check(functions, result, || format!("cuMemHostUnregister({at:p})"))
        })
    }

    unsafe fn host_device_ptr(&self, at: *mut u8, _: &DriverToken) -> Answer<DevicePtr> {
        self.within("cuMemHostGetDevicePointer", |functions| {
            let mut device = 0;
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.host_device_ptr)(&mut device, at.cast(), 0) };
            check(functions, result, || format!("cuMemHostGetDevicePointer({at:p})"))
                .map(|()| DevicePtr(device))
        })
    }

    fn stream_create(&self, _: &DriverToken) -> Answer<Stream> {
        self.within("cuStreamCreate", |functions| {
            let mut stream = ptr::null_mut();
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.stream_create)(&mut stream, sys::STREAM_NON_BLOCKING) };
            check(functions, result, || "cuStreamCreate(non-blocking)".to_owned())?;
            // SAFETY: just made.
            Ok(unsafe { Stream::from_raw(stream as usize) })
        })
    }

    unsafe fn stream_destroy(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.within("cuStreamDestroy", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.stream_destroy)(handle(stream)) };
            check(functions, result, || format!("cuStreamDestroy({stream:?})"))
        })
    }

    fn stream_id(&self, stream: Stream, _: &DriverToken) -> Answer<u64> {
        self.within("cuStreamGetId", |functions| {
            let get = Self::optional(functions.stream_id, "cuStreamGetId")?;
            let mut id = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { get(handle(stream), &mut id) };
            check(functions, result, || format!("cuStreamGetId({stream:?})")).map(|()| id)
        })
    }

    fn stream_query(&self, stream: Stream, _: &DriverToken) -> Answer<bool> {
        self.outside_captures("cuStreamQuery", |functions| {
            // SAFETY: the stream stands (its type's contract).
            let result = unsafe { (functions.stream_query)(handle(stream)) };
            if result == code::NOT_READY {
                return Ok(false);
            }
            ready(check(functions, result, || format!("cuStreamQuery({stream:?})")))
        })
    }

    fn stream_synchronize(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuStreamSynchronize", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.stream_synchronize)(handle(stream)) };
            check(functions, result, || format!("cuStreamSynchronize({stream:?})"))
        })
    }

    fn stream_wait_event(&self, stream: Stream, event: Event, _: &DriverToken) -> Answer<()> {
        self.within("cuStreamWaitEvent", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.stream_wait_event)(handle(stream), event_handle(event), 0) };
            check(functions, result, || format!("cuStreamWaitEvent({stream:?}, {event:?})"))
        })
    }

    unsafe fn stream_write_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuStreamWriteValue64", |functions| {
            let write = Self::optional(functions.write_value, "cuStreamWriteValue64")?;
            // SAFETY: the caller's contract.
            let result = unsafe { write(handle(stream), word.0, value, 0) };
            check(functions, result, || format!("cuStreamWriteValue64({stream:?}, {:#x}, {value})", word.0))
        })
    }

    unsafe fn stream_wait_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuStreamWaitValue64", |functions| {
            let wait = Self::optional(functions.wait_value, "cuStreamWaitValue64")?;
            // SAFETY: the caller's contract.
            let result = unsafe { wait(handle(stream), word.0, value, 0) };
            check(functions, result, || {
                format!("cuStreamWaitValue64({stream:?}, {:#x}, at least {value})", word.0)
            })
        })
    }

    fn stream_capture(&self, stream: Stream, _: &DriverToken) -> Answer<Capture> {
        self.within("cuStreamIsCapturing", |functions| {
            let mut status: c_int = 0;
            // SAFETY: the stream stands; stores a number.
            let result = unsafe { (functions.stream_is_capturing)(handle(stream), &mut status) };
            check(functions, result, || format!("cuStreamIsCapturing({stream:?})"))?;
            match status {
                sys::CAPTURE_STATUS_NONE => Ok(Capture::None),
                sys::CAPTURE_STATUS_ACTIVE => {
                    let mut id = 0;
                    let (none, nothing) = (ptr::null_mut(), ptr::null_mut());
                    // Null pointers ask for nothing.
                    let result = match (functions.capture_info_v3, functions.capture_info_v2) {
                        // SAFETY: as above.
                        (Some(info), _) => unsafe {
                            info(
                                handle(stream),
                                &mut status,
                                &mut id,
                                none,
                                nothing,
                                nothing,
                                ptr::null_mut(),
                            )
                        },
                        // SAFETY: as above.
                        (None, Some(info)) => unsafe {
                            info(handle(stream), &mut status, &mut id, none, nothing, ptr::null_mut())
                        },
                        (None, None) => 0,
                    };
                    check(functions, result, || format!("cuStreamGetCaptureInfo({stream:?})"))?;
                    Ok(Capture::Active(id))
                }
                _ => Ok(Capture::Invalidated),
            }
        })
    }

    fn capture_begin(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.within("cuStreamBeginCapture", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.capture_begin)(handle(stream), sys::CAPTURE_MODE_THREAD_LOCAL) };
            check(functions, result, || format!("cuStreamBeginCapture({stream:?}, thread-local)"))
        })
    }

    fn capture_end(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.within("cuStreamEndCapture", |functions| {
            let mut graph = ptr::null_mut();
            // SAFETY: the stream stands; stores the graph, null where the capture failed.
            let result = unsafe { (functions.capture_end)(handle(stream), &mut graph) };
            if !graph.is_null() {
                // SAFETY: ours, and destroyed once.
                let _ = unsafe { (functions.graph_destroy)(graph) };
            }
            check(functions, result, || format!("cuStreamEndCapture({stream:?})"))
        })
    }

    fn event_create(&self, _: &DriverToken) -> Answer<Event> {
        self.within("cuEventCreate", |functions| {
            let mut event = ptr::null_mut();
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.event_create)(&mut event, sys::EVENT_DISABLE_TIMING) };
            check(functions, result, || "cuEventCreate(no timing)".to_owned())
                .map(|()| Event::new(event as usize))
        })
    }

    unsafe fn event_destroy(&self, event: Event, _: &DriverToken) -> Answer<()> {
        self.within("cuEventDestroy", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.event_destroy)(event_handle(event)) };
            check(functions, result, || format!("cuEventDestroy({event:?})"))
        })
    }

    fn event_record(&self, event: Event, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.within("cuEventRecord", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.event_record)(event_handle(event), handle(stream)) };
            check(functions, result, || format!("cuEventRecord({event:?}, {stream:?})"))
        })
    }

    fn event_query(&self, event: Event, _: &DriverToken) -> Answer<bool> {
        self.outside_captures("cuEventQuery", |functions| {
            // SAFETY: the event stands (its type's contract).
            let result = unsafe { (functions.event_query)(event_handle(event)) };
            if result == code::NOT_READY {
                return Ok(false);
            }
            ready(check(functions, result, || format!("cuEventQuery({event:?})")))
        })
    }

    fn event_synchronize(&self, event: Event, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuEventSynchronize", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.event_synchronize)(event_handle(event)) };
            check(functions, result, || format!("cuEventSynchronize({event:?})"))
        })
    }

    unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuMemcpyHtoDAsync", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.copy_to_device)(to.0, from.cast(), bytes, handle(stream)) };
            check(functions, result, || {
                format!("cuMemcpyHtoDAsync({:#x}, {from:p}, {bytes}, {stream:?})", to.0)
            })
        })
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuMemcpyDtoHAsync", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.copy_to_host)(to.cast(), from.0, bytes, handle(stream)) };
            check(functions, result, || {
                format!("cuMemcpyDtoHAsync({to:p}, {:#x}, {bytes}, {stream:?})", from.0)
            })
        })
    }

    unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuMemcpyDtoDAsync", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.copy_on_device)(to.0, from.0, bytes, handle(stream)) };
            check(functions, result, || {
                format!("cuMemcpyDtoDAsync({:#x}, {:#x}, {bytes}, {stream:?})", to.0, from.0)
            })
        })
    }

    unsafe fn fill(
        &self,
        at: DevicePtr,
        byte: u8,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuMemsetD8Async", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.fill)(at.0, byte, bytes, handle(stream)) };
            check(functions, result, || format!("cuMemsetD8Async({:#x}, {byte}, {bytes}, {stream:?})", at.0))
        })
    }

    fn module_load(&self, ptx: &CStr, _: &DriverToken) -> Answer<Module> {
        self.outside_captures("cuModuleLoadData", |functions| {
            let mut module = ptr::null_mut();
            // SAFETY: stores the module; the text is terminated.
            let result = unsafe { (functions.module_load)(&mut module, ptx.as_ptr().cast()) };
            check(functions, result, || format!("cuModuleLoadData({} bytes of PTX)", ptx.count_bytes()))
                .map(|()| Module(module as usize))
        })
    }

    unsafe fn module_unload(&self, module: Module, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuModuleUnload", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.module_unload)(module.0 as *mut c_void) };
            check(functions, result, || format!("cuModuleUnload({:#x})", module.0))
        })
    }

    fn module_function(&self, module: Module, name: &CStr, _: &DriverToken) -> Answer<Function> {
        self.within("cuModuleGetFunction", |functions| {
            let mut function = ptr::null_mut();
            // SAFETY: the module stands (its type's contract); stores the function.
            let result =
                unsafe { (functions.module_function)(&mut function, module.0 as *mut c_void, name.as_ptr()) };
            check(functions, result, || format!("cuModuleGetFunction({:#x}, {name:?})", module.0))
                .map(|()| Function(function as usize))
        })
    }

    unsafe fn launch(
        &self,
        function: Function,
        grid: u32,
        block: u32,
        arguments: &[u64],
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        self.within("cuLaunchKernel", |functions| {
            // The driver copies the arguments before it returns.
            let mut at: Vec<*mut c_void> =
                arguments.iter().map(|argument| ptr::from_ref(argument).cast_mut().cast()).collect();
            let (kernel, at) = (function.0 as *mut c_void, at.as_mut_ptr());
            let (stream, none) = (handle(stream), ptr::null_mut());
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.launch)(kernel, grid, 1, 1, block, 1, 1, 0, stream, at, none) };
            check(functions, result, || {
                format!("cuLaunchKernel({:#x}, {grid}, {block}, {stream:?})", function.0)
            })
        })
    }

    fn host_function(&self, stream: Stream, work: Work, _: &DriverToken) -> Answer<()> {
        self.within("cuLaunchHostFunc", |functions| {
            let data = Box::into_raw(Box::new(work)).cast();
            // SAFETY: the stream stands; `run_work` takes the box over.
            let result = unsafe { (functions.launch_host)(handle(stream), run_work, data) };
            let launched = check(functions, result, || format!("cuLaunchHostFunc({stream:?})"));
            if launched.is_err() {
                // SAFETY: refused, so it stays ours.
                drop(unsafe { Box::from_raw(data.cast::<Work>()) });
            }
            launched
        })
    }

    fn synchronize(&self, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuCtxSynchronize", |functions| {
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.ctx_synchronize)() };
            check(functions, result, || "cuCtxSynchronize()".to_owned())
        })
    }

    fn dma_buf(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<OwnedFd> {
        self.within("cuMemGetHandleForAddressRange", |functions| {
            let get = Self::optional(functions.range_handle, "cuMemGetHandleForAddressRange")?;
            let mut fd: c_int = -1;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result =
                unsafe { get((&raw mut fd).cast(), at.0, bytes, sys::RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) };
            check(functions, result, || {
                format!("cuMemGetHandleForAddressRange({:#x}, {bytes}, dma-buf)", at.0)
            })?;
            // SAFETY: a new descriptor, ours alone.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
    }

    fn ipc_handle(&self, at: DevicePtr, _: &DriverToken) -> Answer<[u8; 64]> {
        self.within("cuIpcGetMemHandle", |functions| {
            let mut ipc = sys::IpcHandle([0; 64]);
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.ipc_handle)(&mut ipc, at.0) };
            check(functions, result, || format!("cuIpcGetMemHandle({:#x})", at.0)).map(|()| ipc.0)
        })
    }

    unsafe fn ipc_open(&self, ipc: [u8; 64], _: &DriverToken) -> Answer<DevicePtr> {
        self.outside_captures("cuIpcOpenMemHandle", |functions| {
            let (mut at, flags) = (0, sys::IPC_LAZY_ENABLE_PEER_ACCESS);
            // SAFETY: stores the address; what is opened is the caller's contract.
            let result = unsafe { (functions.ipc_open)(&mut at, sys::IpcHandle(ipc), flags) };
            check(functions, result, || format!("cuIpcOpenMemHandle(…, {flags})")).map(|()| DevicePtr(at))
        })
    }

    unsafe fn ipc_close(&self, at: DevicePtr, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuIpcCloseMemHandle", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.ipc_close)(at.0) };
            check(functions, result, || format!("cuIpcCloseMemHandle({:#x})", at.0))
        })
    }
}
