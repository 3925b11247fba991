//! Memory of the device, of the host, and of both.
#![allow(unsafe_code)]

use super::{Answer, offence, refused};
use crate::call::Call;
use crate::error::code;
use crate::simulated::Simulated;
use crate::simulated::machine::Machine;
use crate::simulated::memory::Kind;
use crate::text;
use crate::token::DriverToken;
use crate::types::{DevicePtr, MemInfo};

impl Simulated {
    pub(super) fn mem_info(&self, _: &DriverToken) -> Answer<MemInfo> {
        let machine = self.enter(Call::MemInfo, || "cuMemGetInfo()".to_owned())?;
        let total = machine.memory.budget;
        Ok(MemInfo { free: total - machine.memory.used, total })
    }

    pub(super) fn mem_alloc(&self, bytes: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.allocate(Call::MemAlloc, "cuMemAlloc", bytes, Kind::Device).map(|at| DevicePtr(at as u64))
    }

    pub(super) unsafe fn mem_free(&self, at: DevicePtr, _: &DriverToken) -> Answer<()> {
        self.free(Call::MemFree, "cuMemFree", at.0 as usize, &[Kind::Device, Kind::Managed])
    }

    pub(super) fn mem_alloc_managed(&self, bytes: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.allocate(Call::MemAllocManaged, "cuMemAllocManaged", bytes, Kind::Managed)
            .map(|at| DevicePtr(at as u64))
    }

    pub(super) fn host_alloc(&self, bytes: usize, _: &DriverToken) -> Answer<*mut u8> {
        self.allocate(Call::HostAlloc, "cuMemHostAlloc", bytes, Kind::Host).map(|at| at as *mut u8)
    }

    pub(super) unsafe fn host_free(&self, at: *mut u8, _: &DriverToken) -> Answer<()> {
        self.free(Call::HostFree, "cuMemFreeHost", at as usize, &[Kind::Host])
    }

    pub(super) unsafe fn host_register(&self, at: *mut u8, bytes: usize, _: &DriverToken) -> Answer<()> {
        let call = || format!("cuMemHostRegister({at:p}, {bytes})");
        let mut machine = self.enter(Call::HostRegister, call)?;
        let start = at as usize;
        let registered = &mut machine.memory.registered;
        let overlaps = registered
            .range(..start + bytes)
            .next_back()
            .is_some_and(|(&from, &length)| from + length > start);
        if overlaps {
            return refused(call(), code::HOST_MEMORY_ALREADY_REGISTERED, "already registered");
        }
        registered.insert(start, bytes);
        machine.now += self.costs.register_2_mib * (bytes >> 21) as u64;
        Ok(())
    }

    pub(super) unsafe fn host_unregister(&self, at: *mut u8, _: &DriverToken) -> Answer<()> {
        let call = || text::host_unregister(at);
        let machine = self.enter(Call::HostUnregister, call)?;
        let mut machine = self.wait(machine, "cuMemHostUnregister", Machine::all_idle)?;
        if machine.memory.registered.remove(&(at as usize)).is_some() {
            return Ok(());
        }
        offence(&mut machine, call(), code::HOST_MEMORY_NOT_REGISTERED, "not registered")
    }

    pub(super) unsafe fn host_device_ptr(&self, at: *mut u8, _: &DriverToken) -> Answer<DevicePtr> {
        let call = || text::host_device_ptr(at);
        let mut machine = self.enter(Call::HostDevicePtr, call)?;
        if machine.memory.is_memory(at as usize, 1) {
            return Ok(DevicePtr(at as u64));
        }
        offence(&mut machine, call(), code::INVALID_VALUE, "not pinned")
    }
}
