//! Physical memory, addresses, and what is mapped where.
#![allow(unsafe_code)]

use super::Answer;
use crate::cuda::{Cuda, check, sys};
use crate::text;
use crate::token::DriverToken;
use crate::types::{DevicePtr, Physical};

impl Cuda {
    pub(super) fn physical_granularity(&self, rdma: bool, _: &DriverToken) -> Answer<usize> {
        self.within("cuMemGetAllocationGranularity", |functions| {
            let prop = sys::AllocationProp::new(self.handle, rdma);
            let mut bytes = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result =
                unsafe { (functions.granularity)(&mut bytes, &prop, sys::ALLOC_GRANULARITY_RECOMMENDED) };
            check(functions, result, || format!("cuMemGetAllocationGranularity(rdma {rdma})")).map(|()| bytes)
        })
    }

    pub(super) fn physical_create(&self, bytes: usize, rdma: bool, _: &DriverToken) -> Answer<Physical> {
        self.outside_captures("cuMemCreate", |functions| {
            let prop = sys::AllocationProp::new(self.handle, rdma);
            let mut physical = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.create)(&mut physical, bytes, &prop, 0) };
            check(functions, result, || text::physical_create(bytes, rdma)).map(|()| Physical(physical))
        })
    }

    pub(super) unsafe fn physical_release(&self, physical: Physical, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemRelease", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.release)(physical.0) };
            check(functions, result, || text::physical_release(physical))
        })
    }

    pub(super) fn address_reserve(&self, bytes: usize, align: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.outside_captures("cuMemAddressReserve", |functions| {
            let mut at = 0;
            // SAFETY: handles stand (their types' contract); results are stored in locals.
            let result = unsafe { (functions.address_reserve)(&mut at, bytes, align, 0, 0) };
            check(functions, result, || text::address_reserve(bytes, align)).map(|()| DevicePtr(at))
        })
    }

    pub(super) unsafe fn address_free(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemAddressFree", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.address_free)(at.0, bytes) };
            check(functions, result, || text::address_free(at, bytes))
        })
    }

    pub(super) unsafe fn map(
        &self,
        at: DevicePtr,
        bytes: usize,
        physical: Physical,
        _: &DriverToken,
    ) -> Answer<()> {
        self.outside_captures("cuMemMap", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.map)(at.0, bytes, 0, physical.0, 0) };
            check(functions, result, || text::map(at, bytes, physical))?;
            let access = sys::AccessDesc {
                location: sys::Location::device(self.handle),
                flags: sys::ACCESS_READWRITE,
            };
            // SAFETY: just mapped.
            let result = unsafe { (functions.set_access)(at.0, bytes, &access, 1) };
            let accessible =
                check(functions, result, || format!("cuMemSetAccess({:#x}, {bytes}, read and write)", at.0));
            if accessible.is_err() {
                // SAFETY: as above; nobody has seen it.
                let _ = unsafe { (functions.unmap)(at.0, bytes) };
            }
            accessible
        })
    }

    pub(super) unsafe fn unmap(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<()> {
        self.outside_captures("cuMemUnmap", |functions| {
            // SAFETY: the caller's contract.
            let result = unsafe { (functions.unmap)(at.0, bytes) };
            check(functions, result, || text::unmap(at, bytes))
        })
    }
}
