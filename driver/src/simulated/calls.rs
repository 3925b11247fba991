//! The calls of the simulated driver.
#![allow(unsafe_code)]

use super::machine::{EventState, Machine, Op, Record};
use super::memory::Kind;
use super::{Simulated, ipc, kernels};
use crate::call::Call;
use crate::driver::Driver;
use crate::error::{DriverError, code};
use crate::reduction;
use crate::token::DriverToken;
use crate::types::{Capture, Device, DevicePtr, Event, Function, MemInfo, Module, Physical, Stream};
use parking_lot::MutexGuard;
use std::ffi::CStr;
use std::os::fd::{FromRawFd, OwnedFd};

type Answer<T> = Result<T, DriverError>;

/// Smallest piece of physical memory.
const GRANULARITY: usize = 2 << 20;

fn refused<T>(call: impl Into<String>, code: i32, text: &str) -> Answer<T> {
    Err(DriverError::new(call, code, text))
}

/// A mistake of the caller's: an error, and an offence.
fn offence<T>(machine: &mut Machine, call: String, code: i32, text: &str) -> Answer<T> {
    machine.offences.push(format!("{call}: {text}"));
    refused(call, code, text)
}

impl Simulated {
    fn allocate(&self, call: Call, name: &str, bytes: usize, kind: Kind) -> Answer<usize> {
        let text = || format!("{name}({bytes})");
        let mut machine = self.enter(call, text)?;
        if self.costs.alloc_waits && kind == Kind::Device {
            machine = self.wait(machine, name, Machine::all_idle)?;
        }
        match machine.memory.take(bytes, 0, kind) {
            Some(at) => Ok(at),
            None => refused(text(), code::OUT_OF_MEMORY, "out of memory"),
        }
    }

    fn free(&self, call: Call, name: &str, at: usize, kinds: &[Kind]) -> Answer<()> {
        let text = || format!("{name}({at:#x})");
        let mut machine = self.enter(call, text)?;
        if self.costs.free_waits {
            machine = self.wait(machine, name, Machine::all_idle)?;
        }
        if machine.memory.give(at, kinds) {
            return Ok(());
        }
        offence(&mut machine, text(), code::INVALID_VALUE, "no such allocation")
    }

    /// Queues work; during a capture it is recorded, that is nowhere.
    fn queue(
        &self,
        call: Call,
        stream: Stream,
        text: impl Fn() -> String,
        op: Op,
        bytes: usize,
    ) -> Answer<()> {
        let machine = self.enter(call, &text)?;
        self.queue_within(machine, stream, text, op, bytes)
    }

    fn queue_within(
        &self,
        mut machine: MutexGuard<'_, Machine>,
        stream: Stream,
        text: impl Fn() -> String,
        op: Op,
        bytes: usize,
    ) -> Answer<()> {
        let Some(state) = machine.streams.get(&stream.raw()) else {
            return offence(&mut machine, text(), code::INVALID_HANDLE, "no such stream");
        };
        if state.capture != Capture::None {
            return Ok(());
        }
        let memory = &machine.memory;
        let there = match op {
            Op::ToDevice { to, .. } => memory.is_memory(to, bytes),
            Op::ToHost { from, .. } => memory.is_memory(from, bytes),
            Op::OnDevice { to, from, .. } => memory.is_memory(to, bytes) && memory.is_memory(from, bytes),
            Op::Fill { at, .. } => memory.is_memory(at, bytes),
            Op::Reduce(ref reduction) => {
                reduction.ranges().all(|(at, bytes)| bytes == 0 || memory.is_memory(at, bytes))
            }
            Op::Write { word, .. } | Op::WaitValue { word, .. } => memory.is_memory(word, 8),
            _ => true,
        };
        if !there {
            return offence(&mut machine, text(), code::INVALID_VALUE, "no memory of the device's there");
        }
        let takes = self.costs.copy_64_kib * bytes.div_ceil(64 << 10) as u64;
        machine.enqueue(stream.raw(), op, takes);
        drop(self.settle(machine));
        Ok(())
    }

    fn stream_state<R>(
        &self,
        call: Call,
        stream: Stream,
        name: &str,
        work: impl FnOnce(&mut Machine) -> Answer<R>,
    ) -> Answer<R> {
        let text = || format!("{name}({stream:?})");
        let mut machine = self.enter(call, text)?;
        if !machine.streams.contains_key(&stream.raw()) {
            return offence(&mut machine, text(), code::INVALID_HANDLE, "no such stream");
        }
        work(&mut machine)
    }

    fn event_state<'a>(&'a self, call: Call, event: Event, name: &str) -> Answer<MutexGuard<'a, Machine>> {
        let text = || format!("{name}({event:?})");
        let mut machine = self.enter(call, text)?;
        if machine.events.contains_key(&event.raw()) {
            return Ok(machine);
        }
        offence(&mut machine, text(), code::INVALID_HANDLE, "no such event")
    }
}

// SAFETY: `Memory::take` gives out each range once until it is given back.
unsafe impl Driver for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn mem_info(&self, _: &DriverToken) -> Answer<MemInfo> {
        let machine = self.enter(Call::MemInfo, || "cuMemGetInfo()".to_owned())?;
        let total = machine.memory.budget;
        Ok(MemInfo { free: total - machine.memory.used, total })
    }

    fn mem_alloc(&self, bytes: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.allocate(Call::MemAlloc, "cuMemAlloc", bytes, Kind::Device).map(|at| DevicePtr(at as u64))
    }

    unsafe fn mem_free(&self, at: DevicePtr, _: &DriverToken) -> Answer<()> {
        self.free(Call::MemFree, "cuMemFree", at.0 as usize, &[Kind::Device, Kind::Managed])
    }

    fn mem_alloc_managed(&self, bytes: usize, _: &DriverToken) -> Answer<DevicePtr> {
        self.allocate(Call::MemAllocManaged, "cuMemAllocManaged", bytes, Kind::Managed)
            .map(|at| DevicePtr(at as u64))
    }

    fn physical_granularity(&self, _: bool, _: &DriverToken) -> Answer<usize> {
        drop(self.enter(Call::PhysicalGranularity, || "cuMemGetAllocationGranularity()".to_owned())?);
        Ok(GRANULARITY)
    }

    fn physical_create(&self, bytes: usize, rdma: bool, _: &DriverToken) -> Answer<Physical> {
        let text = || format!("cuMemCreate({bytes}, rdma {rdma})");
        let mut machine = self.enter(Call::PhysicalCreate, text)?;
        if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
            return offence(&mut machine, text(), code::INVALID_VALUE, "not a multiple of the granularity");
        }
        if machine.memory.used + bytes > machine.memory.budget {
            return refused(text(), code::OUT_OF_MEMORY, "out of memory");
        }
        machine.memory.used += bytes;
        let handle = machine.handle() as u64;
        machine.memory.physical.insert(handle, (bytes, false));
        Ok(Physical(handle))
    }

    unsafe fn physical_release(&self, physical: Physical, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuMemRelease({:#x})", physical.0);
        let mut machine = self.enter(Call::PhysicalRelease, text)?;
        let memory = &mut machine.memory;
        match memory.physical.get_mut(&physical.0) {
            Some((_, released)) if !*released => *released = true,
            _ => return offence(&mut machine, text(), code::INVALID_VALUE, "no such memory"),
        }
        memory.drop_unmapped(physical.0);
        Ok(())
    }

    fn address_reserve(&self, bytes: usize, align: usize, _: &DriverToken) -> Answer<DevicePtr> {
        let text = || format!("cuMemAddressReserve({bytes}, {align})");
        let mut machine = self.enter(Call::AddressReserve, text)?;
        match machine.memory.take(bytes, align, Kind::Reserved) {
            Some(at) => Ok(DevicePtr(at as u64)),
            None => refused(text(), code::OUT_OF_MEMORY, "no addresses"),
        }
    }

    unsafe fn address_free(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuMemAddressFree({:#x}, {bytes})", at.0);
        let mut machine = self.enter(Call::AddressFree, text)?;
        let start = at.0 as usize;
        if machine.memory.mapped.range(start..start + bytes).next().is_some() {
            return offence(&mut machine, text(), code::INVALID_VALUE, "memory is mapped there");
        }
        if machine.memory.allocations.get(&start) == Some(&(bytes, Kind::Reserved))
            && machine.memory.give(start, &[Kind::Reserved])
        {
            return Ok(());
        }
        offence(&mut machine, text(), code::INVALID_VALUE, "no such reservation")
    }

    unsafe fn map(&self, at: DevicePtr, bytes: usize, physical: Physical, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuMemMap({:#x}, {bytes}, {:#x})", at.0, physical.0);
        let mut machine = self.enter(Call::Map, text)?;
        let start = at.0 as usize;
        let memory = &mut machine.memory;
        let fits = memory.physical.get(&physical.0).is_some_and(|(length, _)| bytes <= *length);
        let reserved =
            memory.allocations.range(..=start).next_back().is_some_and(|(&from, &(length, kind))| {
                kind == Kind::Reserved && start + bytes <= from + length
            });
        if !fits || !reserved || memory.overlaps_mapped(start, bytes) {
            return offence(&mut machine, text(), code::INVALID_VALUE, "no such memory or addresses");
        }
        memory.mapped.insert(start, (bytes, physical.0));
        Ok(())
    }

    unsafe fn unmap(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuMemUnmap({:#x}, {bytes})", at.0);
        let mut machine = self.enter(Call::Unmap, text)?;
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
            _ => offence(&mut machine, text(), code::INVALID_VALUE, "not mapped as a whole"),
        }
    }

    fn host_alloc(&self, bytes: usize, _: &DriverToken) -> Answer<*mut u8> {
        self.allocate(Call::HostAlloc, "cuMemHostAlloc", bytes, Kind::Host).map(|at| at as *mut u8)
    }

    unsafe fn host_free(&self, at: *mut u8, _: &DriverToken) -> Answer<()> {
        self.free(Call::HostFree, "cuMemFreeHost", at as usize, &[Kind::Host])
    }

    unsafe fn host_register(&self, at: *mut u8, bytes: usize, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuMemHostRegister({at:p}, {bytes})");
        let mut machine = self.enter(Call::HostRegister, text)?;
        let start = at as usize;
        let registered = &mut machine.memory.registered;
        let overlaps = registered
            .range(..start + bytes)
            .next_back()
            .is_some_and(|(&from, &length)| from + length > start);
        if overlaps {
            return refused(text(), code::HOST_MEMORY_ALREADY_REGISTERED, "already registered");
        }
        registered.insert(start, bytes);
        machine.now += self.costs.register_2_mib * (bytes >> 21) as u64;
        Ok(())
    }

    unsafe fn host_unregister(&self, at: *mut u8, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuMemHostUnregister({at:p})");
        let machine = self.enter(Call::HostUnregister, text)?;
        let mut machine = self.wait(machine, "cuMemHostUnregister", Machine::all_idle)?;
        if machine.memory.registered.remove(&(at as usize)).is_some() {
            return Ok(());
        }
        offence(&mut machine, text(), code::HOST_MEMORY_NOT_REGISTERED, "not registered")
    }

    unsafe fn host_device_ptr(&self, at: *mut u8, _: &DriverToken) -> Answer<DevicePtr> {
        let text = || format!("cuMemHostGetDevicePointer({at:p})");
        let mut machine = self.enter(Call::HostDevicePtr, text)?;
        if machine.memory.is_memory(at as usize, 1) {
            return Ok(DevicePtr(at as u64));
        }
        offence(&mut machine, text(), code::INVALID_VALUE, "not pinned")
    }

    fn stream_create(&self, _: &DriverToken) -> Answer<Stream> {
        let mut machine = self.enter(Call::StreamCreate, || "cuStreamCreate()".to_owned())?;
        let handle = machine.new_stream();
        // SAFETY: just made.
        Ok(unsafe { Stream::from_raw(handle) })
    }

    unsafe fn stream_destroy(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.stream_state(Call::StreamDestroy, stream, "cuStreamDestroy", |machine| {
            machine.destroy_stream(stream.raw());
            Ok(())
        })
    }

    fn stream_id(&self, stream: Stream, _: &DriverToken) -> Answer<u64> {
        self.stream_state(Call::StreamId, stream, "cuStreamGetId", |machine| {
            Ok(machine.streams.get(&stream.raw()).map_or(0, |stream| stream.id))
        })
    }

    fn stream_query(&self, stream: Stream, _: &DriverToken) -> Answer<bool> {
        self.stream_state(Call::StreamQuery, stream, "cuStreamQuery", |machine| {
            Ok(machine.is_idle(stream.raw()) == Some(true))
        })
    }

    fn stream_synchronize(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        let text = format!("cuStreamSynchronize({stream:?})");
        let mut machine = self.enter(Call::StreamSynchronize, || text.clone())?;
        if machine.is_idle(stream.raw()).is_none() {
            return offence(&mut machine, text, code::INVALID_HANDLE, "no such stream");
        }
        self.wait(machine, &text, |machine| machine.is_idle(stream.raw()) != Some(false)).map(drop)
    }

    fn stream_wait_event(&self, stream: Stream, event: Event, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuStreamWaitEvent({stream:?}, {event:?})");
        let mut machine = self.enter(Call::StreamWaitEvent, text)?;
        let Some(state) = machine.events.get(&event.raw()) else {
            return offence(&mut machine, text(), code::INVALID_HANDLE, "no such event");
        };
        // The record of now, whatever comes later. What was never recorded has passed.
        let record = state.record.clone().unwrap_or_else(|| Record::new(0.into()));
        self.queue_within(machine, stream, text, Op::WaitRecord(record), 0)
    }

    unsafe fn stream_write_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::Write { word: word.0 as usize, value };
        let text = || format!("cuStreamWriteValue64({stream:?}, {:#x}, {value})", word.0);
        self.queue(Call::StreamWriteValue, stream, text, op, 0)
    }

    unsafe fn stream_wait_value(
        &self,
        stream: Stream,
        word: DevicePtr,
        value: u64,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::WaitValue { word: word.0 as usize, value };
        let text = || format!("cuStreamWaitValue64({stream:?}, {:#x}, {value})", word.0);
        self.queue(Call::StreamWaitValue, stream, text, op, 0)
    }

    fn stream_capture(&self, stream: Stream, _: &DriverToken) -> Answer<Capture> {
        self.stream_state(Call::StreamCapture, stream, "cuStreamIsCapturing", |machine| {
            Ok(machine.streams.get(&stream.raw()).map_or(Capture::None, |stream| stream.capture))
        })
    }

    fn capture_begin(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.stream_state(Call::CaptureBegin, stream, "cuStreamBeginCapture", |machine| {
            machine.ids += 1;
            let number = machine.ids;
            if let Some(stream) = machine.streams.get_mut(&stream.raw()) {
                stream.capture = Capture::Active(number);
            }
            Ok(())
        })
    }

    fn capture_end(&self, stream: Stream, _: &DriverToken) -> Answer<()> {
        self.stream_state(Call::CaptureEnd, stream, "cuStreamEndCapture", |machine| {
            if let Some(stream) = machine.streams.get_mut(&stream.raw()) {
                stream.capture = Capture::None;
            }
            Ok(())
        })
    }

    fn event_create(&self, _: &DriverToken) -> Answer<Event> {
        let mut machine = self.enter(Call::EventCreate, || "cuEventCreate()".to_owned())?;
        let handle = machine.handle();
        machine.events.insert(handle, EventState::default());
        Ok(Event::new(handle))
    }

    unsafe fn event_destroy(&self, event: Event, _: &DriverToken) -> Answer<()> {
        let mut machine = self.event_state(Call::EventDestroy, event, "cuEventDestroy")?;
        machine.events.remove(&event.raw());
        Ok(())
    }

    fn event_record(&self, event: Event, stream: Stream, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuEventRecord({event:?}, {stream:?})");
        let mut machine = self.enter(Call::EventRecord, text)?;
        match machine.streams.get(&stream.raw()).map(|stream| stream.capture) {
            None => return offence(&mut machine, text(), code::INVALID_HANDLE, "no such stream"),
            // It would become part of the graph, and be no fence.
            Some(Capture::Active(_) | Capture::Invalidated) => {
                return offence(
                    &mut machine,
                    text(),
                    code::STREAM_CAPTURE_UNSUPPORTED,
                    "recorded into a graph",
                );
            }
            Some(Capture::None) => {}
        }
        let Some(state) = machine.events.get_mut(&event.raw()) else {
            return offence(&mut machine, text(), code::INVALID_HANDLE, "no such event");
        };
        let record = Record::default();
        state.record = Some(record.clone());
        machine.enqueue(stream.raw(), Op::Record(record), 0);
        drop(self.settle(machine));
        Ok(())
    }

    fn event_query(&self, event: Event, _: &DriverToken) -> Answer<bool> {
        let machine = self.event_state(Call::EventQuery, event, "cuEventQuery")?;
        Ok(machine.events.get(&event.raw()).is_some_and(|event| event.is_done()))
    }

    fn event_synchronize(&self, event: Event, _: &DriverToken) -> Answer<()> {
        let machine = self.event_state(Call::EventSynchronize, event, "cuEventSynchronize")?;
        let record = machine.events.get(&event.raw()).and_then(|event| event.record.clone());
        let passed = |_: &Machine| record.as_ref().is_none_or(|record| record.get().is_some());
        self.wait(machine, &format!("cuEventSynchronize({event:?})"), passed).map(drop)
    }

    unsafe fn copy_to_device(
        &self,
        to: DevicePtr,
        from: *const u8,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::ToDevice { to: to.0 as usize, from: from as usize, bytes };
        let text = || format!("cuMemcpyHtoDAsync({:#x}, {from:p}, {bytes}, {stream:?})", to.0);
        self.queue(Call::CopyToDevice, stream, text, op, bytes)
    }

    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::ToHost { to: to as usize, from: from.0 as usize, bytes };
        let text = || format!("cuMemcpyDtoHAsync({to:p}, {:#x}, {bytes}, {stream:?})", from.0);
        self.queue(Call::CopyToHost, stream, text, op, bytes)
    }

    unsafe fn copy_on_device(
        &self,
        to: DevicePtr,
        from: DevicePtr,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::OnDevice { to: to.0 as usize, from: from.0 as usize, bytes };
        let text = || format!("cuMemcpyDtoDAsync({:#x}, {:#x}, {bytes}, {stream:?})", to.0, from.0);
        self.queue(Call::CopyOnDevice, stream, text, op, bytes)
    }

    unsafe fn fill(
        &self,
        at: DevicePtr,
        byte: u8,
        bytes: usize,
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let op = Op::Fill { at: at.0 as usize, byte, bytes };
        let text = || format!("cuMemsetD8Async({:#x}, {byte}, {bytes}, {stream:?})", at.0);
        self.queue(Call::Fill, stream, text, op, bytes)
    }

    /// Of any text: its entries.
    fn module_load(&self, ptx: &CStr, _: &DriverToken) -> Answer<Module> {
        let text = || format!("cuModuleLoadData({} bytes of PTX)", ptx.count_bytes());
        let mut machine = self.enter(Call::ModuleLoad, text)?;
        let entries = kernels::entries(&ptx.to_string_lossy());
        if entries.is_empty() {
            return refused(text(), code::INVALID_PTX, "no entry in the text");
        }
        let handle = machine.handle();
        machine.modules.insert(handle, entries);
        Ok(Module(handle))
    }

    unsafe fn module_unload(&self, module: Module, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuModuleUnload({:#x})", module.0);
        let mut machine = self.enter(Call::ModuleUnload, text)?;
        machine.functions.retain(|_, (owner, _)| *owner != module.0);
        match machine.modules.remove(&module.0) {
            Some(_) => Ok(()),
            None => offence(&mut machine, text(), code::INVALID_HANDLE, "no such module"),
        }
    }

    fn module_function(&self, module: Module, name: &CStr, _: &DriverToken) -> Answer<Function> {
        let text = || format!("cuModuleGetFunction({:#x}, {name:?})", module.0);
        let mut machine = self.enter(Call::ModuleFunction, text)?;
        let name = name.to_string_lossy().into_owned();
        match machine.modules.get(&module.0) {
            Some(names) if names.contains(&name) => {
                let handle = machine.handle();
                machine.functions.insert(handle, (module.0, name));
                Ok(Function(handle))
            }
            Some(_) => refused(text(), code::NOT_FOUND, "no such kernel in the module"),
            None => offence(&mut machine, text(), code::INVALID_HANDLE, "no such module"),
        }
    }

    /// Of the kernels that pinyard ships ([`reduction`]).
    unsafe fn launch(
        &self,
        function: Function,
        grid: u32,
        block: u32,
        arguments: &[u64],
        stream: Stream,
        _: &DriverToken,
    ) -> Answer<()> {
        let text = || format!("cuLaunchKernel({:#x}, {grid}, {block}, {stream:?})", function.0);
        let mut machine = self.enter(Call::Launch, text)?;
        let Some((_, name)) = machine.functions.get(&function.0) else {
            return offence(&mut machine, text(), code::INVALID_HANDLE, "no such kernel");
        };
        let Some(kernel) = reduction::named(name) else {
            return refused(
                text(),
                code::NOT_SUPPORTED,
                "the simulated device knows pinyard's kernels alone",
            );
        };
        match kernels::Reduction::new(kernel, arguments).filter(|_| grid > 0 && (1..=1024).contains(&block)) {
            Some(reduction) => {
                let bytes = reduction.bytes();
                self.queue_within(machine, stream, text, Op::Reduce(reduction), bytes)
            }
            None => offence(&mut machine, text(), code::INVALID_VALUE, "not the kernel's arguments"),
        }
    }

    fn host_function(&self, stream: Stream, work: Box<dyn FnOnce() + Send>, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuLaunchHostFunc({stream:?})");
        self.queue(Call::HostFunction, stream, text, Op::HostFunction(work), 0)
    }

    fn synchronize(&self, _: &DriverToken) -> Answer<()> {
        let machine = self.enter(Call::Synchronize, || "cuCtxSynchronize()".to_owned())?;
        self.wait(machine, "cuCtxSynchronize()", Machine::all_idle).map(drop)
    }

    /// An anonymous file of the range's length: nothing to map.
    fn dma_buf(&self, at: DevicePtr, bytes: usize, _: &DriverToken) -> Answer<OwnedFd> {
        let text = || format!("cuMemGetHandleForAddressRange({:#x}, {bytes})", at.0);
        let mut machine = self.enter(Call::DmaBuf, text)?;
        if !at.0.is_multiple_of(4096)
            || !bytes.is_multiple_of(4096)
            || !machine.memory.is_memory(at.0 as usize, bytes)
        {
            return offence(&mut machine, text(), code::INVALID_VALUE, "not whole pages of device memory");
        }
        // SAFETY: a new anonymous file.
        let fd = unsafe { libc::memfd_create(c"simulated dma-buf".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return refused(text(), code::NOT_SUPPORTED, "memfd_create failed");
        }
        // SAFETY: new, and ours alone.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Of a device that is not shareable: address and length, for whoever compares.
    fn ipc_handle(&self, at: DevicePtr, _: &DriverToken) -> Answer<[u8; 64]> {
        let text = || format!("cuIpcGetMemHandle({:#x})", at.0);
        let mut machine = self.enter(Call::IpcHandle, text)?;
        let start = at.0 as usize;
        let memory = &machine.memory;
        match memory.allocations.get(&start) {
            Some(&(bytes, Kind::Device)) => {
                Ok(ipc::encode(memory.arena.as_ref(), at.0, memory.offset(start), bytes))
            }
            _ => offence(&mut machine, text(), code::INVALID_VALUE, "not an allocation of cuMemAlloc"),
        }
    }

    unsafe fn ipc_open(&self, handle: [u8; 64], _: &DriverToken) -> Answer<DevicePtr> {
        let text = || format!("cuIpcOpenMemHandle({})", ipc::describe(&handle));
        let mut machine = self.enter(Call::IpcOpen, text)?;
        let import = ipc::open(&handle).map_err(|refusal| {
            let code = if refusal.own { code::INVALID_CONTEXT } else { code::INVALID_VALUE };
            DriverError::new(text(), code, refusal.reason)
        })?;
        let at = import.start();
        machine.memory.imports.insert(at, import);
        Ok(DevicePtr(at as u64))
    }

    unsafe fn ipc_close(&self, at: DevicePtr, _: &DriverToken) -> Answer<()> {
        let text = || format!("cuIpcCloseMemHandle({:#x})", at.0);
        let machine = self.enter(Call::IpcClose, text)?;
        let mut machine = self.wait(machine, "cuIpcCloseMemHandle", Machine::all_idle)?;
        match machine.memory.imports.remove(&(at.0 as usize)) {
            Some(import) => {
                ipc::close(at.0 as usize, import);
                Ok(())
            }
            None => offence(&mut machine, text(), code::INVALID_VALUE, "no opened handle there"),
        }
    }
}
