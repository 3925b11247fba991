//! A device made of a byte budget, a virtual clock and queues.
//!
//! Its memory has real bytes, so that what is overwritten too early shows. Waits
//! move the virtual clock; a wait for something that no clock brings (a word that
//! the host must write) waits in real time, and after ten seconds is an offence, as
//! is a driver call from a host function, an unknown pointer or handle, and work on
//! memory that is not there.
#![allow(unsafe_code)]

mod calls;
mod faults;
mod ipc;
mod kernels;
mod machine;
mod memory;

pub use self::faults::Costs;
use self::machine::{Machine, Op};
use self::memory::Memory;
use crate::call::Call;
use crate::error::{DriverError, code};
use crate::token::DriverToken;
use crate::types::{Device, Stream};
use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// After this a wait is taken for a deadlock.
const PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    /// The thread runs a host function.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// A simulated device; see the module.
pub struct Simulated {
    machine: Mutex<Machine>,
    device: Device,
    costs: Costs,
    before_call: OnceLock<Box<dyn Fn(Call) + Send + Sync>>,
}

impl Simulated {
    /// A device with `bytes` of memory and an H200's costs.
    pub fn new(bytes: usize) -> Simulated {
        Simulated::with_costs(bytes, Costs::default())
    }

    /// A device with costs of its own.
    pub fn with_costs(bytes: usize, costs: Costs) -> Simulated {
        let device = Device {
            ordinal: 0,
            name: "simulated".to_owned(),
            total_bytes: bytes,
            host_node: None,
            pci: None,
            stream_values: true,
            virtual_memory: true,
            rdma_virtual_memory: true,
            dma_buf: true,
            concurrent_managed: true,
        };
        let machine = Mutex::new(Machine::new(Memory::new(bytes)));
        Simulated { machine, device, costs, before_call: OnceLock::new() }
    }

    /// A device whose memory other processes of the same user may open, as a real one's
    /// (`ipc_handle`, `ipc_open`). Where the system gives no anonymous file, one whose
    /// memory cannot be exported.
    pub fn shareable(bytes: usize) -> Simulated {
        let gpu = Simulated::new(bytes);
        gpu.machine.lock().memory = Memory::shareable(bytes);
        gpu
    }

    /// Lets the device run by itself, as a real one does: a thread moves the clock to
    /// the next piece of work, every 50 microseconds, and at least to the time since the
    /// start, and runs host functions. It ends with the device. Without it the clock moves
    /// by calls alone, always alike.
    pub fn running(self) -> Arc<Simulated> {
        let device = Arc::new(self);
        let weak = Arc::downgrade(&device);
        let began = Instant::now();
        let run = move |weak: &Weak<Simulated>| {
            while let Some(device) = weak.upgrade() {
                let mut machine = device.settle(device.machine.lock());
                let next = machine.next_time().unwrap_or(0);
                machine.now = machine.now.max(next).max(began.elapsed().as_nanos() as u64);
                drop(device.settle(machine));
                drop(device);
                std::thread::sleep(Duration::from_micros(50));
            }
        };
        // Without the thread it is a device that runs by calls alone.
        let stack = pinyard_hooks::stack_size(pinyard_hooks::THREAD_STACK);
        let _ = pinyard_worker::spawn("simulated-device", stack, weak, run, |_| ());
        device
    }

    /// Takes an ability away, for tests of those who do without; or says otherwise what it is.
    pub fn without(mut self, change: impl FnOnce(&mut Device)) -> Simulated {
        change(&mut self.device);
        self
    }

    /// Puts a kernel of `nanoseconds` on `stream`.
    pub fn kernel(&self, stream: Stream, nanoseconds: u64, _: &DriverToken) {
        self.machine.lock().enqueue(stream.raw(), Op::Kernel, nanoseconds);
    }

    /// Moves the clock.
    pub fn advance(&self, nanoseconds: u64) {
        let mut machine = self.machine.lock();
        let until = machine.now + nanoseconds;
        loop {
            machine = self.settle(machine);
            match machine.next_time().filter(|&next| next <= until) {
                Some(next) => machine.now = next,
                None => break,
            }
        }
        machine.now = until;
        drop(self.settle(machine));
    }

    /// The clock, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.machine.lock().now
    }

    /// How often a function was called.
    pub fn calls(&self, call: Call) -> u64 {
        self.machine.lock().faults.counts[call as usize]
    }

    /// How many functions were called.
    pub fn all_calls(&self) -> u64 {
        self.machine.lock().faults.all
    }

    /// Lets the call with this number, counted from the device's first, fail with
    /// `code`, and no other.
    pub fn fail_at(&self, number: u64, code: i32) {
        self.machine.lock().faults.at = Some((number, code));
    }

    /// What the call that [`fail_at`](Simulated::fail_at) named was, once it was made.
    pub fn failed_at(&self) -> Option<Call> {
        self.machine.lock().faults.failed_at
    }

    /// Lets the next `times` calls of a function fail with `code`.
    pub fn fail_next(&self, call: Call, times: u64, code: i32) {
        self.machine.lock().faults.next.push((call, times, code));
    }

    /// Runs `hook` at the beginning of each call from now on, on the calling thread and
    /// without a lock of the device: a test can hold one call up while other threads go on.
    /// The first hook stays.
    pub fn before_call(&self, hook: impl Fn(Call) + Send + Sync + 'static) {
        let _ = self.before_call.set(Box::new(hook));
    }

    /// Lets every call fail as one does whose context was destroyed
    /// (`CUDA_ERROR_CONTEXT_IS_DESTROYED`).
    pub fn lose_context(&self) {
        self.fail_always(code::CONTEXT_IS_DESTROYED);
    }

    /// Resets the device as `cuDevicePrimaryCtxReset` does under those who use it: its work ends,
    /// its memory goes, that of the host's too that it allocated (whoever touches any of it ends in
    /// a segmentation fault), and every call fails as with
    /// [`lose_context`](Simulated::lose_context). Memory that was registered stays its owner's.
    /// There is no way back, and a host function that runs must have returned.
    pub fn reset(&self) {
        let mut machine = self.machine.lock();
        machine.faults.always = Some(code::CONTEXT_IS_DESTROYED);
        machine.reset();
    }

    /// Lets every call fail with `code`, as after a fault of a kernel.
    pub fn fail_always(&self, code: i32) {
        self.machine.lock().faults.always = Some(code);
    }

    /// Lets nothing fail any more.
    pub fn fail_never(&self) {
        let mut machine = self.machine.lock();
        machine.faults.at = None;
        machine.faults.always = None;
        machine.faults.next.clear();
    }

    /// What was done wrong, one line each. Empty if nothing was.
    pub fn offences(&self) -> Vec<String> {
        self.machine.lock().offences.clone()
    }

    /// Bytes of device memory in use.
    pub fn used_bytes(&self) -> usize {
        self.machine.lock().memory.used
    }

    /// What was made and not given back; empty if all was.
    pub fn outstanding(&self) -> String {
        let machine = self.settle(self.machine.lock());
        let memory = &machine.memory;
        let streams = machine.streams.keys().filter(|&&handle| handle != 0).count();
        let counts = [
            ("allocations", memory.allocations.len()),
            ("mappings", memory.mapped.len()),
            ("physical pieces", memory.physical.len()),
            ("host registrations", memory.registered.len()),
            ("opened handles", memory.imports.len()),
            ("events", machine.events.len()),
            ("modules", machine.modules.len()),
            ("streams", streams),
        ];
        let left: Vec<String> =
            counts.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n} {what}")).collect();
        left.join(", ")
    }

    /// Enters a call: moves the clock, does what is due, and fails if asked to.
    fn enter(
        &self,
        call: Call,
        text: impl FnOnce() -> String,
    ) -> Result<MutexGuard<'_, Machine>, DriverError> {
        if let Some(hook) = self.before_call.get() {
            hook(call);
        }
        let mut machine = self.machine.lock();
        if IN_HOST_FUNCTION.get() {
            let text = text();
            machine.offences.push(format!("{text} from a host function"));
            return Err(DriverError::new(text, code::NOT_PERMITTED, "called from a host function"));
        }
        machine.now += self.costs.of(call);
        let failure = machine.faults.count(call);
        let machine = self.settle(machine);
        match failure {
            Some(code) => Err(DriverError::new(text(), code, "a failure that was asked for")),
            None => Ok(machine),
        }
    }

    /// Does what is due; host functions run with the machine unlocked.
    fn settle<'a>(&'a self, mut machine: MutexGuard<'a, Machine>) -> MutexGuard<'a, Machine> {
        while let Some((stream, work)) = machine.run() {
            drop(machine);
            let before = IN_HOST_FUNCTION.replace(true);
            work();
            IN_HOST_FUNCTION.set(before);
            machine = self.machine.lock();
            machine.returned(stream);
        }
        machine
    }

    /// Waits until `done`, by moving the clock, or in real time where the host must
    /// act.
    fn wait<'a>(
        &'a self,
        mut machine: MutexGuard<'a, Machine>,
        what: &str,
        done: impl Fn(&Machine) -> bool,
    ) -> Result<MutexGuard<'a, Machine>, DriverError> {
        let began = Instant::now();
        loop {
            machine = self.settle(machine);
            if done(&machine) {
                return Ok(machine);
            }
            if let Some(next) = machine.next_time() {
                machine.now = next;
                continue;
            }
            if began.elapsed() > PATIENCE {
                machine.offences.push(format!("{what} waits for ever"));
                return Err(DriverError::new(what, code::TIMEOUT, "waits for what never comes"));
            }
            drop(machine);
            std::thread::sleep(Duration::from_micros(50));
            machine = self.machine.lock();
        }
    }
}
