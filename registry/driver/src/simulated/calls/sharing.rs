//! Memory for other processes and for NICs.
#![allow(unsafe_code)]

use super::{Answer, offence, refused};
use crate::call::Call;
use crate::error::{DriverError, code};
use crate::simulated::machine::Machine;
use crate::simulated::memory::Kind;
use crate::simulated::{Simulated, ipc};
use crate::text;
use crate::token::DriverToken;
use crate::types::DevicePtr;
use std::os::fd::{FromRawFd, OwnedFd};

impl Simulated {
    /// An anonymous file of the range's length: nothing to map.
    pub(super) fn dma_buf(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<OwnedFd> {
        let call = || text::dma_buf(at, bytes);
        let mut machine = self.enter(Call::DmaBuf, call)?;
        if !at.0.is_multiple_of(4096)
            || !bytes.is_multiple_of(4096)
            || !machine.memory.is_memory(at.0 as usize, bytes)
        {
            return offence(&mut machine, call(), code::INVALID_VALUE, "not whole pages of device memory");
        }
        // SAFETY: a new anonymous file.
        let fd = unsafe { libc::memfd_create(c"simulated dma-buf".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return refused(call(), code::NOT_SUPPORTED, "memfd_create failed");
        }
        // SAFETY: new, and ours alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Of a device that is not shareable: address and length, for whoever compares.
    pub(super) fn ipc_handle(&self, at: DevicePtr, _: &DriverToken) -> Answer<[u8; 64]> {
        let call = || text::ipc_handle(at);
        let mut machine = self.enter(Call::IpcHandle, call)?;
        let start = at.0 as usize;
        let memory = &machine.memory;
        match memory.allocations.get(&start) {
            Some(&(bytes, Kind::Device)) => {
                Ok(ipc::encode(memory.arena.as_ref(), at.0, memory.offset(start), bytes))
            }
            _ => offence(&mut machine, call(), code::INVALID_VALUE, "not an allocation of cuMemAlloc"),
        }
    }

    pub(super) unsafe fn ipc_open(&self, handle: [u8; 64], _: &DriverToken) -> Answer<DevicePtr> {
        let call = || format!("cuIpcOpenMemHandle({})", ipc::describe(&handle));
        let mut machine = self.enter(Call::IpcOpen, call)?;
        let import = ipc::open(&handle).map_err(|refusal| {
            let code = if refusal.own { code::INVALID_CONTEXT } else { code::INVALID_VALUE };
            DriverError::new(call(), code, refusal.reason)
        })?;
        let at = import.start();
        machine.memory.imports.insert(at, import);
        Ok(DevicePtr(at as u64))
    }

    pub(super) unsafe fn ipc_close(&self, at: DevicePtr, _: &DriverToken) -> Answer<()> {
        let call = || text::ipc_close(at);
        let machine = self.enter(Call::IpcClose, call)?;
        let mut machine = self.wait(machine, "cuIpcCloseMemHandle", Machine::all_idle)?;
        match machine.memory.imports.remove(&(at.0 as usize)) {
            Some(import) => {
                ipc::close(at.0 as usize, import);
                Ok(())
            }
            None => offence(&mut machine, call(), code::INVALID_VALUE, "no opened handle there"),
        }
    }
}
