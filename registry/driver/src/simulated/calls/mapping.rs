//! Physical memory, addresses, and what is mapped where.
#![allow(unsafe_code)]

use super::{Answer, GRANULARITY, offence, refused};
use crate::call::Call;
use crate::error::code;
use crate::simulated::Simulated;
use crate::simulated::machine::Machine;
use crate::simulated::memory::Kind;
use crate::text;
use crate::token::DriverToken;
use crate::types::{DevicePtr, Physical};

impl Simulated {
    pub(super) fn physical_granularity(&self, _: bool, _: &DriverToken) -> Answer<usize> {
        drop(self.enter(Call::PhysicalGranularity, || "cuMemGetAllocationGranularity()".to_owned())?);
        Ok(GRANULARITY)
    }

    pub(super) fn physical_create(&self, bytes: usize, rdma: bool, _: &DriverToken) -> Answer<Physical> {
        let call = || text::physical_create(bytes, rdma);
        let mut machine = self.enter(Call::PhysicalCreate, call)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return offence(&mut machine, call(), code::INVALID_VALUE, "not a multiple of the granularity");
        }
        if machine.memory.used + bytes > machine.memory.budget {
            return refused(call(), code::OUT_OF_MEMORY, "out of memory");
        }
        machine.memory.used += bytes;
        let handle = machine.handle() as u64;
        machine.memory.physical.insert(handle, (bytes, false));
        Ok(Physical(handle))
    }

    pub(super) unsafe fn physical_release(&self, physical: Physical, _: &DriverToken) -> Answer<()> {
        let call = || text::physical_release(physical);
        let mut machine = self.enter(Call::PhysicalRelease, call)?;
        let memory = &mut machine.memory;
        match memory.physical.get_mut(&physical.0) {
            Some((_, released)) if !*released => *released = true,
            _ => return offence(&mut machine, call(), code::INVALID_VALUE, "no such memory"),
        }
        memory.drop_unmapped(physical.0);
        Ok(())
    }

    pub(super) fn address_reserve(&self, bytes: usize, align: usize, _: &DriverToken) -> Answer<DevicePtr> {
        let call = || text::address_reserve(bytes, align);
        let mut machine = self.enter(Call::AddressReserve, call)?;
        match machine.memory.take(bytes, align, Kind::Reserved) {
            Some(at) => Ok(DevicePtr(at as u64)),
            None => refused(call(), code::OUT_OF_MEMORY, "no addresses"),
        }
    }

    pub(super) unsafe fn address_free(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<()> {
        let call = || text::address_free(at, bytes);
        let mut machine = self.enter(Call::AddressFree, call)?;
        let start = at.0 as usize;
        if machine.memory.mapped.range(start..start + bytes).next().is_some() {
            return offence(&mut machine, call(), code::INVALID_VALUE, "memory is mapped there");
        }
        if machine.memory.allocations.get(&start) == Some(&(bytes, Kind::Reserved))
            && machine.memory.give(start, &[Kind::Reserved])
        {
            return Ok(());
        }
        offence(&mut machine, call(), code::INVALID_VALUE, "no such reservation")
    }

    pub(super) unsafe fn map(
        &self,
        at: DevicePtr,
        bytes: usize,
        physical: Physical,
        _: &DriverToken,
    ) -> Answer<()> {
        let call = || text::map(at, bytes, physical);
        let mut machine = self.enter(Call::Map, call)?;
        let start = at.0 as usize;
        let memory = &mut machine.memory;
        let fits = memory.physical.get(&physical.0).is_some_and(|(length, _)| bytes <= *length);
        let reserved =
            memory.allocations.range(..=start).next_back().is_some_and(|(&from, &(length, kind))| {
                kind == Kind::Reserved && start + bytes <= from + length
            });
        if !fits || !reserved || memory.overlaps_mapped(start, bytes) {
            return offence(&mut machine, call(), code::INVALID_VALUE, "no such memory or addresses");
        }
        memory.mapped.insert(start, (bytes, physical.0));
        Ok(())
    }

    pub(super) unsafe fn unmap(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<()> {
        let call = || text::unmap(at, bytes);
        let mut machine = self.enter(Call::Unmap, call)?;
        if self.costs.free_waits {
            machine = self.wait(machine, "cuMemUnmap", Machine::all_idle)?;
        }
        let start = at.0 as usize;
        match machine.memory.mapped.get(&start).copied() {
            Some((length, physical)) if length == bytes => {
                machine.memory.mapped.remove(&start);
                machine.memory.drop_unmapped(physical);
                Ok(())
            }
            _ => offence(&mut machine, call(), code::INVALID_VALUE, "not mapped as a whole"),
        }
    }
}
