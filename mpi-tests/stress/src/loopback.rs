//! RDMA that a process does with itself (`loopback.c`): what its device sees through a
//! registration.
#![allow(unsafe_code)]

use pinyard_registry::backend::{MemoryKey, Verbs};
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::sync::Arc;

/// Bytes of a transfer.
const LEN: usize = 1 << 20;

unsafe extern "C" {
    fn loopback_open(pd: *mut c_void, len: usize) -> *mut c_void;
    fn loopback_close(loopback: *mut c_void);
    fn loopback_buffer(loopback: *mut c_void) -> *mut c_char;
    fn loopback_transfer(loopback: *mut c_void, write: c_int, at: u64, rkey: u32, len: usize) -> c_int;
}

/// A queue pair connected to itself, and a buffer of its own.
pub(crate) struct Loopback {
    pair: *mut c_void,
    /// The protection domain's owner, which must outlive the pair.
    _verbs: Arc<Verbs>,
    copy: Vec<u8>,
}

impl Loopback {
    pub(crate) fn open(verbs: Arc<Verbs>) -> Result<Loopback, String> {
        // SAFETY: an open protection domain, which stands while the pair does.
        let pair = unsafe { loopback_open(verbs.pd().as_ptr(), LEN) };
        if pair.is_null() {
            let error = io::Error::last_os_error();
            return Err(format!("a queue pair of {} connected to itself: {error}", verbs.device_name()));
        }
        Ok(Loopback { pair, _verbs: verbs, copy: Vec::new() })
    }

    /// The bytes at `bytes` as the device reads them through `key`.
    ///
    /// # Safety
    /// The registration of `key` is held until this returns.
    pub(crate) unsafe fn see(&mut self, key: MemoryKey, bytes: &[u8]) -> Result<&[u8], String> {
        self.copy.clear();
        for part in bytes.chunks(LEN) {
            self.transfer(false, part.as_ptr().addr(), key, part.len())?;
            // SAFETY: LEN bytes of the pair's own, into which the transfer is over.
            let arrived =
                unsafe { std::slice::from_raw_parts(loopback_buffer(self.pair).cast::<u8>(), part.len()) };
            self.copy.extend_from_slice(arrived);
        }
        Ok(&self.copy)
    }

    /// The device writes `source` to where `bytes` is registered as `key`.
    ///
    /// # Safety
    /// As for [`see`](Loopback::see).
    pub(crate) unsafe fn write(
        &mut self,
        key: MemoryKey,
        bytes: &mut [u8],
        source: &[u8],
    ) -> Result<(), String> {
        for (part, source) in bytes.chunks_mut(LEN).zip(source.chunks(LEN)) {
            // SAFETY: LEN bytes of the pair's own, which no transfer moves meanwhile.
            let own = unsafe {
                std::slice::from_raw_parts_mut(loopback_buffer(self.pair).cast::<u8>(), source.len())
            };
            own.copy_from_slice(source);
            self.transfer(true, part.as_mut_ptr().expose_provenance(), key, part.len())?;
        }
        Ok(())
    }

    fn transfer(&self, write: bool, at: usize, key: MemoryKey, len: usize) -> Result<(), String> {
        // SAFETY: an open pair, at most LEN bytes, and a registration that the caller of
        // `see` or `write` holds; the device checks the address against the key.
        let status = unsafe { loopback_transfer(self.pair, write.into(), at as u64, key.rkey as u32, len) };
        let call = if write { "RDMA write" } else { "RDMA read" };
        match status {
            0 => Ok(()),
            ..0 => {
                Err(format!("{call} of {len} bytes at {at:#x}: {}", io::Error::from_raw_os_error(-status)))
            }
            status => Err(format!("{call} of {len} bytes at {at:#x}: ibv_wc_status {status}")),
        }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        // SAFETY: opened by `loopback_open`, once.
        unsafe { loopback_close(self.pair) };
    }
}
