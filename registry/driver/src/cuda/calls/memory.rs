//! Memory of the device, of the host, and of both.
#![allow(unsafe_code)]

use super::Answer;
use crate::cuda::{Cuda, check, sys};
use crate::text;
use crate::token::DriverToken;
use crate::types::{DevicePtr, MemInfo};
use std::ptr;

impl Cuda {
    pub(super) fn mem_info(&self, _: &DriverToken) -> Answer<MemInfo> {
        self.within("cuMemGetInfo", |functions| {
            let (mut free, mut total) = (0, 0);
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.mem_info)(&mut free, &mut total) };
            check(functions, result, || "cuMemGetInfo()".to_owned()).map(|()| MemInfo { free, total })
        })
    }

    pub(super) fn mem_alloc(&self, bytes: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.outside_captures("cuMemAlloc", |functions| {
            let mut at = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.mem_alloc)(&mut at, bytes) };
            check(functions, result, || format!("cuMemAlloc({bytes})")).map(|()| DevicePtr(at))
        })
    }

    pub(super) unsafe fn mem_free(&self, at: DevicePtr, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemFree", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.mem_free)(at.0) };
            check(functions, result, || format!("cuMemFree({:#x})", at.0))
        })
    }

    pub(super) fn mem_alloc_managed(&self, bytes: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.outside_captures("cuMemAllocManaged", |functions| {
            let mut at = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.mem_alloc_managed)(&mut at, bytes, sys::MEM_ATTACH_GLOBAL) };
            check(functions, result, || format!("cuMemAllocManaged({bytes})")).map(|()| DevicePtr(at))
        })
    }

    pub(super) fn host_alloc(&self, bytes: usize, _: &DriverToken) -> Answer<*mut u8> {
        self.outside_captures("cuMemHostAlloc", |functions| {
            let mut at = ptr::null_mut();
            let flags = sys::MEMHOSTALLOC_PORTABLE_DEVICEMAP;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.host_alloc)(&mut at, bytes, flags) };
            check(functions, result, || format!("cuMemHostAlloc({bytes}, {flags:#x})")).map(|()| at.cast())
        })
    }

    pub(super) unsafe fn host_free(&self, at: *mut u8, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemFreeHost", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.host_free)(at.cast()) };
            check(functions, result, || format!("cuMemFreeHost({at:p})"))
        })
    }

    pub(super) unsafe fn host_register(&self, at: *mut u8, bytes: usize, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemHostRegister", |functions| {
            let flags = sys::MEMHOSTREGISTER_PORTABLE_DEVICEMAP;
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.host_register)(at.cast(), bytes, flags) };
            check(functions, result, || format!("cuMemHostRegister({at:p}, {bytes}, {flags:#x})"))
        })
    }

    pub(super) unsafe fn host_unregister(&self, at: *mut u8, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemHostUnregister", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.host_unregister)(at.cast()) };
            check(functions, result, || text::host_unregister(at))
        })
    }

    pub(super) unsafe fn host_device_ptr(&self, at: *mut u8, _: &DriverToken) -> Answer<DevicePtr> {
        self.within("cuMemHostGetDevicePointer", |functions| {
            let mut device = 0;
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.host_device_ptr)(&mut device, at.cast(), 0) };
            check(functions, result, || text::host_device_ptr(at)).map(|()| DevicePtr(device))
        })
    }
}
