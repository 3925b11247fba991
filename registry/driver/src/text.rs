//! Calls with their arguments, as errors have them: of the real driver and of the simulated
//! one.

use crate::types::{DevicePtr, Event, Function, Module, Physical, Stream};
use std::ffi::CStr;

macro_rules! texts {
    ($($name:ident($($argument:ident: $kind:ty),*) $text:literal $(, $value:expr)*;)*) => {$(
        pub(crate) fn $name($($argument: $kind),*) -> String {
            format!($text $(, $value)*)
        }
    )*};
}

texts! {
    physical_create(bytes: usize, rdma: bool) "cuMemCreate({bytes}, rdma {rdma})";
    physical_release(physical: Physical) "cuMemRelease({:#x})", physical.0;
    address_reserve(bytes: usize, align: usize) "cuMemAddressReserve({bytes}, {align})";
    address_free(at: DevicePtr, bytes: usize) "cuMemAddressFree({:#x}, {bytes})", at.0;
    map(at: DevicePtr, bytes: usize, physical: Physical) "cuMemMap({:#x}, {bytes}, {:#x})", at.0, physical.0;
    unmap(at: DevicePtr, bytes: usize) "cuMemUnmap({:#x}, {bytes})", at.0;
    host_unregister(at: *mut u8) "cuMemHostUnregister({at:p})";
    host_device_ptr(at: *mut u8) "cuMemHostGetDevicePointer({at:p})";
    stream_synchronize(stream: Stream) "cuStreamSynchronize({stream:?})";
    stream_wait_event(stream: Stream, event: Event) "cuStreamWaitEvent({stream:?}, {event:?})";
    stream_write_value(stream: Stream, word: DevicePtr, value: u64)
        "cuStreamWriteValue64({stream:?}, {:#x}, {value})", word.0;
    stream_wait_value(stream: Stream, word: DevicePtr, value: u64)
        "cuStreamWaitValue64({stream:?}, {:#x}, at least {value})", word.0;
    event_record(event: Event, stream: Stream) "cuEventRecord({event:?}, {stream:?})";
    event_synchronize(event: Event) "cuEventSynchronize({event:?})";
    copy_to_device(to: DevicePtr, from: *const u8, bytes: usize, stream: Stream)
        "cuMemcpyHtoDAsync({:#x}, {from:p}, {bytes}, {stream:?})", to.0;
    copy_to_host(to: *mut u8, from: DevicePtr, bytes: usize, stream: Stream)
        "cuMemcpyDtoHAsync({to:p}, {:#x}, {bytes}, {stream:?})", from.0;
    copy_on_device(to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream)
        "cuMemcpyDtoDAsync({:#x}, {:#x}, {bytes}, {stream:?})", to.0, from.0;
    fill(at: DevicePtr, byte: u8, bytes: usize, stream: Stream)
        "cuMemsetD8Async({:#x}, {byte}, {bytes}, {stream:?})", at.0;
    host_function(stream: Stream) "cuLaunchHostFunc({stream:?})";
    module_load(ptx: &CStr) "cuModuleLoadData({} bytes of PTX)", ptx.count_bytes();
    module_unload(module: Module) "cuModuleUnload({:#x})", module.0;
    module_function(module: Module, name: &CStr) "cuModuleGetFunction({:#x}, {name:?})", module.0;
    launch(function: Function, grid: u32, block: u32, stream: Stream)
        "cuLaunchKernel({:#x}, {grid}, {block}, {stream:?})", function.0;
    dma_buf(at: DevicePtr, bytes: usize) "cuMemGetHandleForAddressRange({:#x}, {bytes}, dma-buf)", at.0;
    ipc_handle(at: DevicePtr) "cuIpcGetMemHandle({:#x})", at.0;
    ipc_close(at: DevicePtr) "cuIpcCloseMemHandle({:#x})", at.0;
}
