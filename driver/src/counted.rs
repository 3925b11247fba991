//! A driver whose calls are counted.
#![allow(unsafe_code)] // forwards unsafe functions

use crate::call::{CALLS, Call};
use crate::driver::Driver;
use crate::error::DriverError;
use crate::token::DriverToken;
use crate::types::{Capture, Device, DevicePtr, Event, Function, MemInfo, Module, Physical, Stream};
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How often each function of a driver was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls([u64; CALLS]);

impl Calls {
    /// How often `call`.
    pub fn of(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// All calls.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those that were called, by number.
    pub fn iter(&self) -> impl Iterator<Item = (Call, u64)> + '_ {
        Call::ALL.into_iter().map(|call| (call, self.of(call))).filter(|&(_, count)| count > 0)
    }
}

impl Default for Calls {
    fn default() -> Calls {
        Calls([0; CALLS])
    }
}

/// Passes every call on to another driver, and counts it: one addition beside a call
/// that takes at least fifty nanoseconds. Failed calls count.
pub struct Counted {
    driver: Arc<dyn Driver>,
    counts: [AtomicU64; CALLS],
}

impl Counted {
    /// Counts the calls of `driver` that go through the value.
    pub fn new(driver: Arc<dyn Driver>) -> Counted {
        Counted { driver, counts: [const { AtomicU64::new(0) }; CALLS] }
    }

    /// The counts now. Calls of other threads meanwhile are in it or not.
    pub fn calls(&self) -> Calls {
        Calls(std::array::from_fn(|at| self.counts[at].load(Relaxed)))
    }

    fn count(&self, call: Call) {
        self.counts[call as usize].fetch_add(1, Relaxed);
    }
}

macro_rules! forward {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $call:ident;)*) => {$(
        fn $name(&self, $($argument: $kind,)* token: &DriverToken) -> Result<$result, DriverError> {
            self.count(Call::$call);
            self.driver.$name($($argument,)* token)
        }
    )*};
}

macro_rules! forward_unsafe {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $call:ident;)*) => {$(
        unsafe fn $name(&self, $($argument: $kind,)* token: &DriverToken) -> Result<$result, DriverError> {
            self.count(Call::$call);
            // SAFETY: the contract is the same, and the caller keeps it.
            unsafe { self.driver.$name($($argument,)* token) }
        }
    )*};
}

// SAFETY: the other driver's memory, and its promises.
unsafe impl Driver for Counted {
    fn name(&self) -> &'static str {
        self.driver.name()
    }

    fn device(&self) -> &Device {
        self.driver.device()
    }

    forward! {
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

    forward_unsafe! {
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
