//! The calls of the simulated driver, by topic.
#![allow(unsafe_code)]

mod events;
mod kernels;
mod mapping;
mod memory;
mod sharing;
mod streams;
mod work;

use super::Simulated;
use super::machine::{Machine, Op};
use super::memory::Kind;
use crate::call::Call;
use crate::driver::Driver;
use crate::error::{DriverError, code};
use crate::table::{by_own_functions, every_call};
use crate::token::DriverToken;
use crate::types::{Capture, Device, DevicePtr, Event, Function, MemInfo, Module, Physical, Stream};
use parking_lot::MutexGuard;
use std::ffi::CStr;
use std::os::fd::OwnedFd;

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

    every_call! { by_own_functions }
}
