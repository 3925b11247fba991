//! CUDA's device memory: whose it is, and as a dma-buf (CUDA driver API,
//! `cuPointerGetAttribute`, `cuMemGetHandleForAddressRange`).
#![allow(unsafe_code)]

use super::library::Library;
use super::{BackendError, DeviceMemory, DmaBuf, OpenError};
use crate::range::PageRange;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

const SUCCESS: c_int = 0;
/// CUDA_ERROR_INVALID_VALUE: not a pointer that the driver knows.
const INVALID_VALUE: c_int = 1;
/// CUDA_ERROR_NOT_INITIALIZED: nobody in this process has device memory.
const NOT_INITIALIZED: c_int = 3;
/// CUDA_ERROR_NOT_SUPPORTED.
const NOT_SUPPORTED: c_int = 801;

/// CU_POINTER_ATTRIBUTE_MEMORY_TYPE, _IS_MANAGED and _DEVICE_ORDINAL.
const MEMORY_TYPE: c_int = 2;
const IS_MANAGED: c_int = 8;
const DEVICE_ORDINAL: c_int = 9;
/// CU_MEMORYTYPE_DEVICE.
const MEMORYTYPE_DEVICE: u32 = 2;
/// CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD.
const HANDLE_DMA_BUF_FD: c_int = 1;

type PointerGetAttribute = unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int;
type GetHandle = unsafe extern "C" fn(*mut c_void, u64, usize, c_int, u64) -> c_int;
type GetErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

/// The CUDA driver, opened at run time.
///
/// The hooks do not see `cuMemFree`: call
/// [`Registry::invalidate`](crate::Registry::invalidate) before device memory that
/// was registered is freed.
pub struct Cuda {
    pointer_get_attribute: PointerGetAttribute,
    /// CUDA 11.7 and newer.
    get_handle: Option<GetHandle>,
    get_error_name: GetErrorName,
}

impl Cuda {
    /// Opens `libcuda.so.1`. Makes no context and selects no device.
    pub fn open() -> Result<Cuda, OpenError> {
        let library = Library::open(None, "libcuda.so.1", "libcuda1")?;
        let needs = "it comes with CUDA 6 and newer";
        // SAFETY: the signatures are cuda.h's.
        let cuda = unsafe {
            Cuda {
                pointer_get_attribute: library.function("cuPointerGetAttribute", needs)?,
                get_handle: library.optional("cuMemGetHandleForAddressRange"),
                get_error_name: library.function("cuGetErrorName", needs)?,
            }
        };
        library.keep();
        Ok(cuda)
    }

    /// `None` where the driver does not know the pointer.
    fn attribute(&self, attribute: c_int, at: usize) -> Result<Option<u32>, BackendError> {
        let mut value = 0u32;
        // SAFETY: the three attributes asked for here are 32 bits wide or, the
        // boolean, a byte of the zeroed word; the pointer is only looked up.
        match unsafe { (self.pointer_get_attribute)((&raw mut value).cast(), attribute, at as u64) } {
            SUCCESS => Ok(Some(value)),
            INVALID_VALUE | NOT_INITIALIZED => Ok(None),
            error => {
                Err(self.failed(format!("cuPointerGetAttribute(attribute {attribute}, {at:#x})"), error))
            }
        }
    }

    fn failed(&self, call: String, error: c_int) -> BackendError {
        let mut name = std::ptr::null();
        // SAFETY: gives a static text, or nothing for a number that it does not know.
        let known = unsafe { (self.get_error_name)(error, &raw mut name) } == SUCCESS && !name.is_null();
        let name = match known {
            // SAFETY: a static text, as above.
            true => unsafe { CStr::from_ptr(name) }.to_string_lossy(),
            false => "unknown error".into(),
        };
        let errno = if error == NOT_SUPPORTED { libc::EOPNOTSUPP } else { libc::EIO };
        BackendError::new(call, errno).with_hint(format_args!("CUDA says {name} ({error})"))
    }
}

impl DeviceMemory for Cuda {
    /// Managed memory counts as host memory: it migrates, and cannot be exported.
    fn device_of(&self, range: PageRange) -> Result<Option<i32>, BackendError> {
        if self.attribute(MEMORY_TYPE, range.start)? != Some(MEMORYTYPE_DEVICE)
            || self.attribute(IS_MANAGED, range.start)?.is_some_and(|managed| managed != 0)
        {
            return Ok(None);
        }
        Ok(self.attribute(DEVICE_ORDINAL, range.start)?.map(|ordinal| ordinal as i32))
    }

    fn export(&self, range: PageRange) -> Result<DmaBuf, BackendError> {
        let call = || format!("cuMemGetHandleForAddressRange({range}, DMA_BUF_FD)");
        let Some(get_handle) = self.get_handle else {
            return Err(BackendError::new(call(), libc::ENOSYS)
                .with_hint("this CUDA driver has no dma-buf export: 11.7 or newer has"));
        };
        let mut fd: c_int = -1;
        // SAFETY: writes a file descriptor, an int, on success; the range is only looked up.
        let answer = unsafe {
            get_handle((&raw mut fd).cast(), range.start as u64, range.len(), HANDLE_DMA_BUF_FD, 0)
        };
        if answer != SUCCESS || fd < 0 {
            return Err(self.failed(call(), answer));
        }
        // SAFETY: a descriptor that the driver has just made for the caller.
        Ok(DmaBuf { fd: unsafe { OwnedFd::from_raw_fd(fd) }, offset: 0 })
    }
}
