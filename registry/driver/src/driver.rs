//! What pinyard needs of a device's driver.
#![allow(unsafe_code)] // declares unsafe functions, calls none

use crate::error::DriverError;
use crate::token::DriverToken;
use crate::types::{Capture, Device, DevicePtr, Event, Function, MemInfo, Module, Physical, Stream};
use std::ffi::CStr;
use std::os::fd::OwnedFd;

/// One device. Called from any thread, several at a time.
///
/// The functions are the driver API's of the same name (cuda.h); the context is the
/// device's primary one, made current for the call and the caller's put back after
/// it. None may be called from a host function of a stream.
///
/// # Safety
/// Memory that an allocation returned is nobody else's until it is freed.
pub unsafe trait Driver: Send + Sync {
    /// A short name for messages.
    fn name(&self) -> &'static str;

    /// What the device is.
    fn device(&self) -> &Device;

    /// `cuCtxGetId`: the context's number, which another one has after a reset of the device. An
    /// error once it was reset since this was opened, as of every call, unless the driver is older
    /// than 12.0: then 0, always. Who hands out what it was told of memory before asks this first.
    fn context_id(&self, token: &DriverToken) -> Result<u64, DriverError>;

    /// `cuMemGetInfo`.
    fn mem_info(&self, token: &DriverToken) -> Result<MemInfo, DriverError>;

    /// `cuMemAlloc`: device memory, aligned to 256 bytes at least. May be exported,
    /// shared with other processes and registered with a NIC, which memory of
    /// `cuMemAllocAsync` may not.
    fn mem_alloc(&self, bytes: usize, token: &DriverToken) -> Result<DevicePtr, DriverError>;

    /// `cuMemFree`. May wait for all work on the device.
    ///
    /// # Safety
    /// `at` came from `mem_alloc` or `mem_alloc_managed`, is freed once, and nothing
    /// uses the memory.
    unsafe fn mem_free(&self, at: DevicePtr, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuMemAllocManaged`, attached globally: memory of host and device.
    fn mem_alloc_managed(&self, bytes: usize, token: &DriverToken) -> Result<DevicePtr, DriverError>;

    /// `cuMemGetAllocationGranularity`, the recommended one.
    fn physical_granularity(&self, rdma: bool, token: &DriverToken) -> Result<usize, DriverError>;

    /// `cuMemCreate` on this device; `rdma` asks for memory that a NIC may reach. It
    /// is exportable as a file descriptor.
    fn physical_create(&self, bytes: usize, rdma: bool, token: &DriverToken)
    -> Result<Physical, DriverError>;

    /// `cuMemRelease`. The memory goes when it is mapped nowhere.
    ///
    /// # Safety
    /// Released once.
    unsafe fn physical_release(&self, physical: Physical, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuMemAddressReserve`: addresses without memory.
    fn address_reserve(
        &self,
        bytes: usize,
        align: usize,
        token: &DriverToken,
    ) -> Result<DevicePtr, DriverError>;

    /// `cuMemAddressFree`.
    ///
    /// # Safety
    /// The range came from `address_reserve`, whole, and nothing is mapped there.
    unsafe fn address_free(
        &self,
        at: DevicePtr,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuMemMap` from the start of `physical`, and `cuMemSetAccess` for this device.
    ///
    /// # Safety
    /// The range is reserved, and nothing is mapped there.
    unsafe fn map(
        &self,
        at: DevicePtr,
        bytes: usize,
        physical: Physical,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuMemUnmap`.
    ///
    /// # Safety
    /// The range was mapped as a whole, and nothing uses it.
    unsafe fn unmap(&self, at: DevicePtr, bytes: usize, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuMemHostAlloc`, portable and mapped: pinned host memory.
    fn host_alloc(&self, bytes: usize, token: &DriverToken) -> Result<*mut u8, DriverError>;

    /// `cuMemFreeHost`.
    ///
    /// # Safety
    /// `at` came from `host_alloc`, is freed once, and nothing uses the memory.
    unsafe fn host_free(&self, at: *mut u8, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuMemHostRegister`, portable and mapped: pins host memory of the caller's.
    ///
    /// # Safety
    /// The range is mapped, and stays until it is unregistered. Nobody relies on
    /// copies from or to it being synchronous because it is pageable.
    unsafe fn host_register(&self, at: *mut u8, bytes: usize, token: &DriverToken)
    -> Result<(), DriverError>;

    /// `cuMemHostUnregister`.
    ///
    /// # Safety
    /// `at` was registered, and no device uses the memory.
    unsafe fn host_unregister(&self, at: *mut u8, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuMemHostGetDevicePointer`: where the device sees pinned host memory.
    ///
    /// # Safety
    /// `at` is pinned.
    unsafe fn host_device_ptr(&self, at: *mut u8, token: &DriverToken) -> Result<DevicePtr, DriverError>;

    /// `cuStreamCreate`, non-blocking.
    fn stream_create(&self, token: &DriverToken) -> Result<Stream, DriverError>;

    /// `cuStreamDestroy`. Its work still runs to its end.
    ///
    /// # Safety
    /// No copy of the value is used afterwards.
    unsafe fn stream_destroy(&self, stream: Stream, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuStreamGetId`: unlike the handle, never given to a second stream.
    fn stream_id(&self, stream: Stream, token: &DriverToken) -> Result<u64, DriverError>;

    /// `cuStreamQuery`: whether all its work is done.
    fn stream_query(&self, stream: Stream, token: &DriverToken) -> Result<bool, DriverError>;

    /// `cuStreamSynchronize`: waits for its work.
    fn stream_synchronize(&self, stream: Stream, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuStreamWaitEvent`: later work of `stream` waits for `event`.
    fn stream_wait_event(&self, stream: Stream, event: Event, token: &DriverToken)
    -> Result<(), DriverError>;

    /// `cuStreamWriteValue64`: writes `value` when the work before it is done.
    ///
    /// # Safety
    /// `word` is a word of pinned or device memory that stands until it is written.
    unsafe fn stream_write_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuStreamWaitValue64`: later work waits until the word is at least `value`
    /// (as a signed difference).
    ///
    /// # Safety
    /// `word` is a word of pinned or device memory that stands until then.
    unsafe fn stream_wait_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuStreamIsCapturing` and, for the number, `cuStreamGetCaptureInfo`.
    fn stream_capture(&self, stream: Stream, token: &DriverToken) -> Result<Capture, DriverError>;

    /// `cuStreamBeginCapture`, thread-local mode.
    fn capture_begin(&self, stream: Stream, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuStreamEndCapture`; the graph is destroyed.
    fn capture_end(&self, stream: Stream, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuEventCreate`, without timing.
    fn event_create(&self, token: &DriverToken) -> Result<Event, DriverError>;

    /// `cuEventDestroy`.
    ///
    /// # Safety
    /// No copy of the value is used afterwards.
    unsafe fn event_destroy(&self, event: Event, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuEventRecord`.
    fn event_record(&self, event: Event, stream: Stream, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuEventQuery`: whether the work before its last record is done.
    fn event_query(&self, event: Event, token: &DriverToken) -> Result<bool, DriverError>;

    /// `cuEventSynchronize`: waits for it.
    fn event_synchronize(&self, event: Event, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuMemcpyHtoDAsync`.
    ///
    /// # Safety
    /// Both ranges stand until the copy has passed; nobody writes the source or uses
    /// the destination meanwhile.
    unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
        stream: Stream,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuMemcpyDtoHAsync`.
    ///
    /// # Safety
    /// As [`copy_to_device`](Driver::copy_to_device).
    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuMemcpyDtoDAsync`: within the device, or between it and memory that
    /// [`ipc_open`](Driver::ipc_open) gave, of whichever device.
    ///
    /// # Safety
    /// As [`copy_to_device`](Driver::copy_to_device).
    unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuMemsetD8Async`.
    ///
    /// # Safety
    /// The range stands until the work has passed, and nobody else uses it meanwhile.
    unsafe fn fill(
        &self,
        at: DevicePtr,
        byte: u8,
        bytes: usize,
        stream: Stream,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuModuleLoadData`: compiles PTX text for the device. Takes up to seconds the first
    /// time on a machine; the driver keeps what it has compiled.
    fn module_load(&self, ptx: &CStr, token: &DriverToken) -> Result<Module, DriverError>;

    /// `cuModuleUnload`.
    ///
    /// # Safety
    /// No kernel of it runs or is launched any more.
    unsafe fn module_unload(&self, module: Module, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuModuleGetFunction`.
    fn module_function(
        &self,
        module: Module,
        name: &CStr,
        token: &DriverToken,
    ) -> Result<Function, DriverError>;

    /// `cuLaunchKernel`, of `grid` blocks of `block` threads, with arguments that all have 64
    /// bits.
    ///
    /// # Safety
    /// The module stands until the work has passed; the kernel takes these arguments, and may
    /// do what it does with the memory that they name until then.
    unsafe fn launch(
        &self,
        function: Function,
        grid: u32,
        block: u32,
        arguments: &[u64],
        stream: Stream,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuLaunchHostFunc`: runs `work` on a thread of the driver's when the stream
    /// reaches it. `work` must call no function of a driver.
    fn host_function(
        &self,
        stream: Stream,
        work: Box<dyn FnOnce() + Send>,
        token: &DriverToken,
    ) -> Result<(), DriverError>;

    /// `cuCtxSynchronize`: waits for all work of the context.
    fn synchronize(&self, token: &DriverToken) -> Result<(), DriverError>;

    /// `cuMemGetHandleForAddressRange`: a dma-buf of whole host pages.
    fn dma_buf(&self, at: DevicePtr, bytes: usize, token: &DriverToken) -> Result<OwnedFd, DriverError>;

    /// `cuIpcGetMemHandle` of a whole allocation of `mem_alloc`.
    fn ipc_handle(&self, at: DevicePtr, token: &DriverToken) -> Result<[u8; 64], DriverError>;

    /// `cuIpcOpenMemHandle`, with peer access where the memory is another device's: the
    /// allocation of another process, whole. Refused in the process that exported it.
    ///
    /// # Safety
    /// The exporting process does not free the allocation while it is open here.
    unsafe fn ipc_open(&self, handle: [u8; 64], token: &DriverToken) -> Result<DevicePtr, DriverError>;

    /// `cuIpcCloseMemHandle`.
    ///
    /// # Safety
    /// `at` came from `ipc_open`, is closed once, and nothing uses the memory.
    unsafe fn ipc_close(&self, at: DevicePtr, token: &DriverToken) -> Result<(), DriverError>;
}
