//! Types and constants of the driver API (cuda.h of CUDA 13.0). What has no field
//! here is opaque.
#![allow(unsafe_code)] // types of unsafe functions

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(super) type Result = c_int;
pub(super) type DeviceHandle = c_int;
pub(super) type Context = *mut c_void;
pub(super) type StreamHandle = *mut c_void;
pub(super) type EventHandle = *mut c_void;
pub(super) type Graph = *mut c_void;
pub(super) type HostFunction = extern "C" fn(*mut c_void);

pub(super) mod attribute {
    use std::ffi::c_int;
    pub(in super::super) const PCI_BUS_ID: c_int = 33;
    pub(in super::super) const PCI_DEVICE_ID: c_int = 34;
    pub(in super::super) const PCI_DOMAIN_ID: c_int = 50;
    pub(in super::super) const CONCURRENT_MANAGED_ACCESS: c_int = 89;
    pub(in super::super) const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_int = 102;
    pub(in super::super) const GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: c_int = 110;
    pub(in super::super) const CAN_USE_64_BIT_STREAM_MEM_OPS: c_int = 122;
    pub(in super::super) const DMA_BUF_SUPPORTED: c_int = 124;
    pub(in super::super) const HOST_NUMA_ID: c_int = 134;
}

pub(super) const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
pub(super) const MEM_ATTACH_GLOBAL: c_uint = 1;
pub(super) const MEMHOSTALLOC_PORTABLE_DEVICEMAP: c_uint = 1 | 2;
pub(super) const MEMHOSTREGISTER_PORTABLE_DEVICEMAP: c_uint = 1 | 2;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const CAPTURE_MODE_THREAD_LOCAL: c_int = 1;
pub(super) const CAPTURE_MODE_RELAXED: c_int = 2;
pub(super) const CAPTURE_STATUS_NONE: c_int = 0;
pub(super) const CAPTURE_STATUS_ACTIVE: c_int = 1;
pub(super) const ALLOC_GRANULARITY_RECOMMENDED: c_int = 1;
pub(super) const RANGE_HANDLE_TYPE_DMA_BUF_FD: c_int = 1;
pub(super) const ACCESS_READWRITE: c_int = 3;
pub(super) const POINTER_MEMORY_TYPE: c_int = 2;
pub(super) const POINTER_IS_MANAGED: c_int = 8;
pub(super) const POINTER_DEVICE_ORDINAL: c_int = 9;
pub(super) const MEMORY_TYPE_DEVICE: c_int = 2;
pub(super) const MEMPOOL_ATTR_RELEASE_THRESHOLD: c_int = 4;

/// `CUmemLocation`.
#[repr(C)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

impl Location {
    pub(super) fn device(id: c_int) -> Location {
        Location { kind: 1, id }
    }
}

/// `CUmemAllocationProp`.
#[repr(C)]
pub(super) struct AllocationProp {
    pub(super) kind: c_int,
    pub(super) handle_types: c_int,
    pub(super) location: Location,
    pub(super) win32: *mut c_void,
    pub(super) compression: u8,
    pub(super) rdma_capable: u8,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 4],
}

impl AllocationProp {
    /// Pinned memory of a device, exportable as a file descriptor.
    pub(super) fn new(device: c_int, rdma: bool) -> AllocationProp {
        AllocationProp {
            kind: 1,
            handle_types: 1,
            location: Location::device(device),
            win32: std::ptr::null_mut(),
            compression: 0,
            rdma_capable: u8::from(rdma),
            usage: 0,
            reserved: [0; 4],
        }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct AccessDesc {
    pub(super) location: Location,
    pub(super) flags: c_int,
}

/// `CUipcMemHandle`.
#[repr(C)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// Declares the table of functions: field, symbol, signature. The symbols are those
/// that cuda.h's macros make of the plain names. The optional ones came later.
macro_rules! functions {
    (required { $($name:ident = $symbol:literal ($($arg:ty),*);)* }
     optional { $($oname:ident = $osymbol:literal ($($oarg:ty),*);)* }) => {
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Result,)*
            $(pub(super) $oname: Option<unsafe extern "C" fn($($oarg),*) -> Result>,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is the CUDA driver.
            pub(super) unsafe fn load(
                library: &libloading::Library,
            ) -> std::result::Result<Functions, crate::Absent> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the symbol has this type in cuda.h.
                        *unsafe { library.get($symbol.as_bytes()) }.map_err(|error| {
                            crate::Absent::Symbol { symbol: $symbol, reason: super::words(&error) }
                        })?
                    },)*
                    // SAFETY: as above.
                    $($oname: unsafe { library.get($osymbol.as_bytes()) }.ok().map(|symbol| *symbol),)*
                })
            }
        }
    };
}

functions! {
    required {
    init = "cuInit" (c_uint);
    device_get = "cuDeviceGet" (*mut DeviceHandle, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, DeviceHandle);
    device_total = "cuDeviceTotalMem_v2" (*mut usize, DeviceHandle);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, DeviceHandle);
    primary_retain = "cuDevicePrimaryCtxRetain" (*mut Context, DeviceHandle);
    primary_release = "cuDevicePrimaryCtxRelease_v2" (DeviceHandle);
    ctx_set = "cuCtxSetCurrent" (Context);
    ctx_get = "cuCtxGetCurrent" (*mut Context);
    ctx_synchronize = "cuCtxSynchronize" ();
    error_name = "cuGetErrorName" (Result, *mut *const c_char);
    error_string = "cuGetErrorString" (Result, *mut *const c_char);
    mem_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    mem_alloc = "cuMemAlloc_v2" (*mut u64, usize);
    mem_free = "cuMemFree_v2" (u64);
    mem_alloc_managed = "cuMemAllocManaged" (*mut u64, usize, c_uint);
    host_alloc = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint);
    host_free = "cuMemFreeHost" (*mut c_void);
    host_register = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    host_unregister = "cuMemHostUnregister" (*mut c_void);
    host_device_ptr = "cuMemHostGetDevicePointer_v2" (*mut u64, *mut c_void, c_uint);
    granularity = "cuMemGetAllocationGranularity" (*mut usize, *const AllocationProp, c_int);
    create = "cuMemCreate" (*mut u64, usize, *const AllocationProp, u64);
    release = "cuMemRelease" (u64);
    address_reserve = "cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
    address_free = "cuMemAddressFree" (u64, usize);
    map = "cuMemMap" (u64, usize, usize, u64, u64);
    unmap = "cuMemUnmap" (u64, usize);
    set_access = "cuMemSetAccess" (u64, usize, *const AccessDesc, usize);
    stream_create = "cuStreamCreate" (*mut StreamHandle, c_uint);
    stream_destroy = "cuStreamDestroy_v2" (StreamHandle);
    stream_query = "cuStreamQuery" (StreamHandle);
    stream_synchronize = "cuStreamSynchronize" (StreamHandle);
    stream_wait_event = "cuStreamWaitEvent" (StreamHandle, EventHandle, c_uint);
    stream_is_capturing = "cuStreamIsCapturing" (StreamHandle, *mut c_int);
    capture_begin = "cuStreamBeginCapture_v2" (StreamHandle, c_int);
    capture_end = "cuStreamEndCapture" (StreamHandle, *mut Graph);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" (*mut c_int);
    graph_destroy = "cuGraphDestroy" (Graph);
    event_create = "cuEventCreate" (*mut EventHandle, c_uint);
    event_destroy = "cuEventDestroy_v2" (EventHandle);
    event_record = "cuEventRecord" (EventHandle, StreamHandle);
    event_query = "cuEventQuery" (EventHandle);
    event_synchronize = "cuEventSynchronize" (EventHandle);
    copy_to_device = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, StreamHandle);
    copy_to_host = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, StreamHandle);
    copy_on_device = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, StreamHandle);
    fill = "cuMemsetD8Async" (u64, u8, usize, StreamHandle);
    module_load = "cuModuleLoadData" (*mut *mut c_void, *const c_void);
    module_unload = "cuModuleUnload" (*mut c_void);
    module_function = "cuModuleGetFunction" (*mut *mut c_void, *mut c_void, *const c_char);
    launch = "cuLaunchKernel" (*mut c_void, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, StreamHandle, *mut *mut c_void, *mut *mut c_void);
    launch_host = "cuLaunchHostFunc" (StreamHandle, HostFunction, *mut c_void);
    ipc_handle = "cuIpcGetMemHandle" (*mut IpcHandle, u64);
    ipc_open = "cuIpcOpenMemHandle_v2" (*mut u64, IpcHandle, c_uint);
    ipc_close = "cuIpcCloseMemHandle" (u64);
    device_count = "cuDeviceGetCount" (*mut c_int);
    }
    optional {
    ctx_id = "cuCtxGetId" (Context, *mut u64);
    stream_id = "cuStreamGetId" (StreamHandle, *mut u64);
    write_value = "cuStreamWriteValue64_v2" (StreamHandle, u64, u64, c_uint);
    wait_value = "cuStreamWaitValue64_v2" (StreamHandle, u64, u64, c_uint);
    capture_info_v3 = "cuStreamGetCaptureInfo_v3" (StreamHandle, *mut c_int, *mut u64, *mut Graph, *mut *const c_void, *mut *const c_void, *mut usize);
    capture_info_v2 = "cuStreamGetCaptureInfo_v2" (StreamHandle, *mut c_int, *mut u64, *mut Graph, *mut *const c_void, *mut usize);
    range_handle = "cuMemGetHandleForAddressRange" (*mut c_void, u64, usize, c_int, u64);
    pointer_attribute = "cuPointerGetAttribute" (*mut c_void, c_int, u64);
    mem_alloc_async = "cuMemAllocAsync" (*mut u64, usize, StreamHandle);
    mem_free_async = "cuMemFreeAsync" (u64, StreamHandle);
    default_mem_pool = "cuDeviceGetDefaultMemPool" (*mut *mut c_void, DeviceHandle);
    mem_pool_set = "cuMemPoolSetAttribute" (*mut c_void, c_int, *mut c_void);
}
}
