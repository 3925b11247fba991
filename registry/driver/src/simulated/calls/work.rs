//! Copies, fills and host functions.
#![allow(unsafe_code)]

use super::Answer;
use crate::call::Call;
use crate::simulated::Simulated;
use crate::simulated::machine::Op;
use crate::text;
use crate::token::DriverToken;
use crate::types::{DevicePtr, Stream};

impl Simulated {
    pub(super) unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::ToDevice { to: to.0 as usize, from: from as usize, bytes };
        let call = || text::copy_to_device(to, from, bytes, stream);
        self.queue(Call::CopyToDevice, stream, call, op, bytes)
    }

    pub(super) unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::ToHost { to: to as usize, from: from.0 as usize, bytes };
        let call = || text::copy_to_host(to, from, bytes, stream);
        self.queue(Call::CopyToHost, stream, call, op, bytes)
    }

    pub(super) unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::OnDevice { to: to.0 as usize, from: from.0 as usize, bytes };
        let call = || text::copy_on_device(to, from, bytes, stream);
        self.queue(Call::CopyOnDevice, stream, call, op, bytes)
    }

    pub(super) unsafe fn fill(
        &self,
        at: DevicePtr,
        byte: u8,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::Fill { at: at.0 as usize, byte, bytes };
        let call = || text::fill(at, byte, bytes, stream);
        self.queue(Call::Fill, stream, call, op, bytes)
    }

    pub(super) fn host_function(
        &self,
        stream: Stream,
        work: Box<dyn FnOnce() + Send>,
        _: &DriverToken,
    ) -> Answer<()> {
        let call = || text::host_function(stream);
        self.queue(Call::HostFunction, stream, call, Op::HostFunction(work), 0)
    }
}
