//! Copies, fills and host functions.
#![allow(unsafe_code)]

use super::{Answer, Work, handle, run_work};
use crate::cuda::{Cuda, check};
use crate::text;
use crate::token::DriverToken;
use crate::types::{DevicePtr, Stream};

impl Cuda {
    pub(super) unsafe fn copy_to_device(
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
            check(functions, result, || text::copy_to_device(to, from, bytes, stream))
        })
    }

    pub(super) unsafe fn copy_to_host(
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
            check(functions, result, || text::copy_to_host(to, from, bytes, stream))
        })
    }

    pub(super) unsafe fn copy_on_device(
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
            check(functions, result, || text::copy_on_device(to, from, bytes, stream))
        })
    }

    pub(super) unsafe fn fill(
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
            check(functions, result, || text::fill(at, byte, bytes, stream))
        })
    }

    pub(super) fn host_function(&self, stream: Stream, work: Work, _: &DriverToken) -> Answer<()> {
        self.within("cuLaunchHostFunc", |functions| {
            let data = Box::into_raw(Box::new(work)).cast();
            // SAFETY: the stream stands; `run_work` takes the box over.
            let result = unsafe { (functions.launch_host)(handle(stream), run_work, data) };
            let launched = check(functions, result, || text::host_function(stream));
            if launched.is_err() {
                // SAFETY: refused, so it stays ours.
                drop(unsafe { Box::from_raw(data.cast::<Work>()) });
            }
            launched
        })
    }
}
