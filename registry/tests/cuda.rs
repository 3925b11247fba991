//! Device memory, as the backends ask about it. Needs a GPU.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Cuda, DeviceMemory, Libfabric, Mlock, OpenError, Ucx};
use pinyard_registry::{Access, GetError, PageRange, Registry};
use std::ffi::c_void;
use std::os::fd::AsRawFd;

/// 2 MiB of the first GPU, in its primary context.
struct OfGpu {
    driver: libloading::Library,
    at: u64,
}

const LEN: usize = 2 << 20;

impl OfGpu {
    /// `None`, and why, where there is no GPU.
    fn new(managed: bool) -> Option<OfGpu> {
        // SAFETY: the driver's library, whose functions have cuda.h's signatures.
        unsafe {
            let driver = match libloading::Library::new("libcuda.so.1") {
                Ok(driver) => driver,
                Err(error) => {
                    eprintln!("skipped: no CUDA driver: {error}");
                    return None;
                }
            };
            let init: extern "C" fn(u32) -> i32 = *driver.get(b"cuInit").unwrap();
            let answer = init(0);
            if answer != 0 {
                eprintln!("skipped: cuInit answers {answer}");
                return None;
            }
            let retain: extern "C" fn(*mut *mut c_void, i32) -> i32 =
                *driver.get(b"cuDevicePrimaryCtxRetain").unwrap();
            let enter: extern "C" fn(*mut c_void) -> i32 = *driver.get(b"cuCtxSetCurrent").unwrap();
            let mut context = std::ptr::null_mut();
            assert_eq!((retain(&raw mut context, 0), enter(context)), (0, 0));
            let mut at = 0;
            if managed {
                let allocate: extern "C" fn(*mut u64, usize, u32) -> i32 =
                    *driver.get(b"cuMemAllocManaged").unwrap();
                assert_eq!(allocate(&raw mut at, LEN, 1), 0);
            } else {
                let allocate: extern "C" fn(*mut u64, usize) -> i32 = *driver.get(b"cuMemAlloc_v2").unwrap();
                assert_eq!(allocate(&raw mut at, LEN), 0);
            }
            Some(OfGpu { driver, at })
        }
    }

    fn range(&self) -> PageRange {
        PageRange { start: self.at as usize, end: self.at as usize + LEN }
    }
}

impl Drop for OfGpu {
    fn drop(&mut self) {
        // SAFETY: cuda.h's signature; allocated above, once.
        unsafe {
            let free: extern "C" fn(u64) -> i32 = *self.driver.get(b"cuMemFree_v2").unwrap();
            assert_eq!(free(self.at), 0);
        }
    }
}

fn page_of(pages: &Pages) -> PageRange {
    PageRange { start: pages.at, end: pages.at + pages.len }
}

#[test]
fn no_driver_is_an_answer() {
    match Cuda::open() {
        Ok(cuda) => assert_eq!(cuda.device_of(page_of(&Pages::new(1))).unwrap(), None),
        Err(error @ OpenError::Absent { .. }) => {
            assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn device_memory_is_told_from_host_and_managed_memory() {
    let Some(device) = OfGpu::new(false) else { return };
    let cuda = Cuda::open().unwrap();
    assert_eq!(cuda.device_of(device.range()).unwrap(), Some(0));
    assert_eq!(cuda.device_of(page_of(&Pages::new(1))).unwrap(), None);
    if let Some(managed) = OfGpu::new(true) {
        assert_eq!(cuda.device_of(managed.range()).unwrap(), None);
    }
}

#[test]
fn device_memory_is_exported_as_a_dma_buf() {
    let Some(device) = OfGpu::new(false) else { return };
    let cuda = Cuda::open().unwrap();
    match cuda.export(device.range()) {
        Ok(buffer) => {
            let link = std::fs::read_link(format!("/proc/self/fd/{}", buffer.fd.as_raw_fd())).unwrap();
            assert!(link.to_string_lossy().contains("dmabuf"), "{link:?}");
        }
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            eprintln!("skipped: {error}");
        }
    }
    // Host memory is nothing to export.
    let error = cuda.export(page_of(&Pages::new(1))).unwrap_err();
    assert!(error.to_string().contains("cuMemGetHandleForAddressRange"), "{error}");
}

/// Device memory through a registry, where UCX was built for CUDA.
#[test]
fn ucx_registers_device_memory() {
    let Some(device) = OfGpu::new(false) else { return };
    let Some(ucx) = opened("ucx", Ucx::open()) else { return };
    let registry = Registry::builder().backend(ucx).build().unwrap();
    let buffer = (device.at as *const u8, LEN);
    let lease = registry.get(buffer, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    assert_eq!(lease.len(), LEN);
    drop(lease);
    registry.invalidate(buffer).unwrap();
    let stats = registry.stats();
    assert_eq!((stats.deregistrations, stats.failed_deregistrations), (1, 0));
}

/// FI_HMEM is asked for, and refused in words where the provider has none.
#[test]
fn libfabric_registers_device_memory_or_says_that_it_cannot() {
    let Some(device) = OfGpu::new(false) else { return };
    let open = Libfabric::options().provider("shm").device_memory(Cuda::open().unwrap()).open();
    let backend = match open {
        Ok(backend) => backend,
        Err(
            error @ (OpenError::Unsupported { .. } | OpenError::Absent { .. } | OpenError::NoProvider { .. }),
        ) => {
            eprintln!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let registry = Registry::builder().backend(backend).build().unwrap();
    let buffer = (device.at as *const u8, LEN);
    match registry.get(buffer, Access::LOCAL_WRITE) {
        Ok(lease) => drop(lease),
        // The provider has FI_HMEM, and the library was not built for CUDA.
        Err(GetError::Backend { source, .. }) if source.is_unsupported() => {
            assert!(source.hint.contains("not built for CUDA"), "{source}");
            eprintln!("skipped: {source}");
        }
        Err(error) => panic!("{error}"),
    }
    registry.invalidate(buffer).unwrap();
    assert_eq!(registry.stats().failed_deregistrations, 0);
}

/// A GPU's address is no mapping of this process: what cannot register it says so.
#[test]
fn a_backend_for_host_memory_refuses_device_memory() {
    let Some(device) = OfGpu::new(false) else { return };
    let registry = Registry::builder().backend(Mlock::new()).build().unwrap();
    let refused = registry.get((device.at as *const u8, LEN), Access::LOCAL_WRITE);
    assert!(refused.is_err());
}
