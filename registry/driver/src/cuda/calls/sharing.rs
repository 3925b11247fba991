//! Memory for other processes and for NICs.
#![allow(unsafe_code)]

use super::Answer;
use crate::cuda::{Cuda, check, sys};
use crate::text;
use crate::token::DriverToken;
use crate::types::DevicePtr;
use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

impl Cuda {
    pub(super) fn dma_buf(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<OwnedFd> {
        self.within("cuMemGetHandleForAddressRange", |functions| {
            let get = Self::optional(functions.range_handle, "cuMemGetHandleForAddressRange")?;
            let mut fd: c_int = -1;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result =
                unsafe { get((&raw mut fd).cast(), at.0, bytes, sys::RANGE_HANDLE_TYPE_DMA_BUF_FD, 0) };
            check(functions, result, || text::dma_buf(at, bytes))?;
            // SAFETY: a new descriptor, ours alone.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        })
    }

    pub(super) fn ipc_handle(&self, at: DevicePtr, _: &DriverToken) -> Answer<[u8; 64]> {
        self.within("cuIpcGetMemHandle", |functions| {
            let mut ipc = sys::IpcHandle([0; 64]);
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.ipc_handle)(&mut ipc, at.0) };
            check(functions, result, || text::ipc_handle(at)).map(|()| ipc.0)
        })
    }

    pub(super) unsafe fn ipc_open(&self, ipc: [u8; 64], _: &DriverToken) -> Answer<DevicePtr> {
        self.outside_captures("cuIpcOpenMemHandle", |functions| {
            let (mut at, flags) = (0, sys::IPC_LAZY_ENABLE_PEER_ACCESS);
            // SAFETY: stores the address; what is opened is the caller's contract.
            let result = unsafe { (functions.ipc_open)(&mut at, sys::IpcHandle(ipc), flags) };
            check(functions, result, || format!("cuIpcOpenMemHandle(…, {flags})")).map(|()| DevicePtr(at))
        })
    }

    pub(super) unsafe fn ipc_close(&self, at: DevicePtr, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuIpcCloseMemHandle", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.ipc_close)(at.0) };
            check(functions, result, || text::ipc_close(at))
        })
    }
}
