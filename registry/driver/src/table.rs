//! Every call of a driver, once: for whoever implements all of them alike.

/// Hands the table to the macro `$each`: functions with their arguments, their result, and
/// their [`Call`](crate::Call); those that are unsafe behind the others. The types are those
/// in scope where it is used.
macro_rules! every_call {
    ($each:ident) => {
        $each! {
            safe {
                context_id() -> u64, ContextId;
                mem_info() -> MemInfo, MemInfo;
                mem_alloc(bytes: usize) -> DevicePtr, MemAlloc;
                mem_alloc_managed(bytes: usize) -> DevicePtr, MemAllocManaged;
                physical_granularity(rdma: bool) -> usize, PhysicalGranularity;
                physical_create(bytes: usize, rdma: bool) -> Physical, PhysicalCreate;
                address_reserve(bytes: usize, align: usize) -> DevicePtr, AddressReserve;
                host_alloc(bytes: usize) -> *mut u8, HostAlloc;
                stream_create() -> Stream, StreamCreate;
                stream_id(stream: Stream) -> u64, StreamId;
                stream_query(stream: Stream) -> bool, StreamQuery;
                stream_synchronize(stream: Stream) -> (), StreamSynchronize;
                stream_wait_event(stream: Stream, event: Event) -> (), StreamWaitEvent;
                stream_capture(stream: Stream) -> Capture, StreamCapture;
                capture_begin(stream: Stream) -> (), CaptureBegin;
                capture_end(stream: Stream) -> (), CaptureEnd;
                event_create() -> Event, EventCreate;
                event_record(event: Event, stream: Stream) -> (), EventRecord;
                event_query(event: Event) -> bool, EventQuery;
                event_synchronize(event: Event) -> (), EventSynchronize;
                module_load(ptx: &CStr) -> Module, ModuleLoad;
                module_function(module: Module, name: &CStr) -> Function, ModuleFunction;
                host_function(stream: Stream, work: Box<dyn FnOnce() + Send>) -> (), HostFunction;
                synchronize() -> (), Synchronize;
                dma_buf(at: DevicePtr, bytes: usize) -> OwnedFd, DmaBuf;
                ipc_handle(at: DevicePtr) -> [u8; 64], IpcHandle;
            }
            unsafe {
                mem_free(at: DevicePtr) -> (), MemFree;
                physical_release(physical: Physical) -> (), PhysicalRelease;
                address_free(at: DevicePtr, bytes: usize) -> (), AddressFree;
                map(at: DevicePtr, bytes: usize, physical: Physical) -> (), Map;
                unmap(at: DevicePtr, bytes: usize) -> (), Unmap;
                host_free(at: *mut u8) -> (), HostFree;
                host_register(at: *mut u8, bytes: usize) -> (), HostRegister;
                host_unregister(at: *mut u8) -> (), HostUnregister;
                host_device_ptr(at: *mut u8) -> DevicePtr, HostDevicePtr;
                stream_destroy(stream: Stream) -> (), StreamDestroy;
                stream_write_value(stream: Stream, word: DevicePtr, value: u64) -> (), StreamWriteValue;
                stream_wait_value(stream: Stream, word: DevicePtr, value: u64) -> (), StreamWaitValue;
                event_destroy(event: Event) -> (), EventDestroy;
                copy_to_device(to: DevicePtr, from: *const u8, bytes: usize, stream: Stream) -> (), CopyToDevice;
                copy_to_host(to: *mut u8, from: DevicePtr, bytes: usize, stream: Stream) -> (), CopyToHost;
                copy_on_device(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream) -> (), CopyOnDevice;
                module_unload(module: Module) -> (), ModuleUnload;
                launch(function: Function, grid: u32, block: u32, arguments: &[u64], stream: Stream) -> (), Launch;
                ipc_open(handle: [u8; 64]) -> DevicePtr, IpcOpen;
                ipc_close(at: DevicePtr) -> (), IpcClose;
                fill(at: DevicePtr, byte: u8, bytes: usize, stream: Stream) -> (), Fill;
            }
        }
    };
}

/// Carries each call out by the function of `Self` that has its name, where the topics' files
/// have it.
macro_rules! by_own_functions {
    (
        safe { $($name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $call:ident;)* }
        unsafe { $($uname:ident($($uargument:ident: $ukind:ty),*) -> $uresult:ty, $ucall:ident;)* }
    ) => {
        $(fn $name(&self, $($argument: $kind,)* token: &DriverToken) -> Result<$result, DriverError> {
            Self::$name(self, $($argument,)* token)
        })*
        $(unsafe fn $uname(&self, $($uargument: $ukind,)* token: &DriverToken) -> Result<$uresult, DriverError> {
            // SAFETY: the contract is the same, and the caller keeps it.
            unsafe { Self::$uname(self, $($uargument,)* token) }
        })*
    };
}

pub(crate) use {by_own_functions, every_call};
