//! The steps: change two buffers, register them, let the device use them, do the MPI
//! operation, and compare every byte.
#![allow(unsafe_code)]

use crate::device::Device;
use crate::faults;
use crate::memory::{Refusal, Slot};
use crate::payload::Pattern;
use crate::plan::{Hash, Plan, Step, Use};
use crate::rma;
use crate::shared::Shared;
use mpi::collective::{Root, SystemOperation};
use mpi::point_to_point::send_receive_into;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use pinyard_allocator::Pool;
use pinyard_cli::stress::progress::Word;
use pinyard_cli::stress::{Fault, Operation, Phase};
use pinyard_registry::{Access, GetError, Lease, Registry};
use std::time::{Duration, Instant};

/// Steps between two agreements on whether to go on.
const AGREE: u64 = 8;
const OUTGOING: Access = Access::REMOTE_READ;
/// What the rank's buffers and the pool's slabs are registered for.
pub(crate) const INCOMING: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
/// The pattern that a device writes before the operation, as if a rank of this number sent it.
const FROM_DEVICE: u32 = u32::MAX - 1;

/// Everything that the steps need.
pub(crate) struct Steps<'r> {
    pub(crate) shared: &'static Shared,
    pub(crate) world: &'r SimpleCommunicator,
    pub(crate) plan: Plan,
    pub(crate) registry: &'r Registry,
    pub(crate) pool: &'r Pool,
    pub(crate) device: Device,
    pub(crate) slots: Vec<Slot>,
    pub(crate) hash: Hash,
    /// Why this rank cannot go on.
    pub(crate) failed: Option<String>,
}

/// Why the steps ended.
pub(crate) enum Ended {
    /// The time or the number of steps is over.
    Completed,
    /// A rank could not go on; the cause if it is this one.
    Stopped(Option<String>),
}

impl Steps<'_> {
    /// Runs steps until all ranks agree to end. `Err` if this one cannot even take part
    /// in that.
    pub(crate) fn run(&mut self) -> Result<Ended, String> {
        let words = self.shared.words;
        let mut injected = false;
        for number in 0..self.shared.options.steps.unwrap_or(u64::MAX) {
            if number % AGREE == 0 {
                words.enter(Phase::Agree);
                match self.agree() {
                    0 => {}
                    1 => return Ok(Ended::Completed),
                    _ => return Ok(Ended::Stopped(self.failed.take())),
                }
            }
            injected = faults::inject(self.shared, injected)?;
            let step = self.plan.step(number);
            words.set(Word::Operation, step.operation.code());
            words.set(Word::Bytes, step.bytes as u64);
            let time = self.step(&step)?;
            self.hash.add(&step);
            self.shared.with(|state| {
                let one = state.rank.operations.entry(step.operation).or_default();
                one.count += 1;
                one.bytes += step.bytes as u64;
                one.seconds += time.as_secs_f64();
            });
            words.set(Word::Milliseconds, (self.shared.seconds() * 1e3) as u64);
            words.add(Word::Steps, 1);
        }
        Ok(match self.agree() {
            2 => Ended::Stopped(self.failed.take()),
            _ => Ended::Completed,
        })
    }

    /// 0: go on. 1: rank 0's time is over. 2: a rank cannot go on.
    fn agree(&self) -> u8 {
        let time_is_over = self.shared.rank == 0 && self.shared.seconds() >= self.shared.options.time as f64;
        let own = if self.failed.is_some() { 2 } else { u8::from(time_is_over) };
        let mut all = 0u8;
        self.world.all_reduce_into(&own, &mut all, SystemOperation::max());
        all
    }

    /// One step; the time spent in the MPI operation.
    fn step(&mut self, step: &Step) -> Result<Duration, String> {
        let (rank, ranks, seed) = (self.shared.rank, self.world.size() as u32, self.shared.options.seed);
        let side = self.plan.side(step, rank);
        let (above, below) = ((rank + step.distance) % ranks, (rank + ranks - step.distance) % ranks);
        let from = |sender| Pattern::of(seed, step.number, sender);
        let (sent, expected) = match step.operation {
            Operation::Bcast => return self.broadcast(step),
            Operation::Allreduce => {
                (Pattern::summand(seed, step.number, rank), Pattern::sum(seed, step.number, ranks))
            }
            Operation::Sendrecv | Operation::Put => (from(rank), from(below)),
            Operation::Get => (from(rank), from(above)),
        };
        let outgoing = self.outgoing(step, side.outgoing, sent)?;
        let incoming = self.incoming(step, side.incoming)?;
        self.shared.words.enter(Phase::Operation);
        let world = self.world;
        let slots = self.slots.get_disjoint_mut([side.outgoing.slot, side.incoming.slot]);
        let [send, receive] = slots.map_err(|error| format!("the plan's buffers: {error}"))?;
        let send = send.bytes(side.outgoing.offset, step.bytes);
        let receive = receive.bytes(side.incoming.offset, step.bytes);
        let (to, of) = (world.process_at_rank(above as i32), world.process_at_rank(below as i32));
        let began = Instant::now();
        match step.operation {
            Operation::Allreduce => {
                let aligned = |error| format!("the plan's offsets: {error}");
                let send: &[u64] = bytemuck::try_cast_slice(send).map_err(aligned)?;
                let receive: &mut [u64] = bytemuck::try_cast_slice_mut(receive).map_err(aligned)?;
                world.all_reduce_into(send, receive, SystemOperation::sum());
            }
            Operation::Put => rma::put(world, receive, send, above as i32)?,
            Operation::Get => rma::get(world, send, receive, above as i32, self.plan.longest_get())?,
            Operation::Sendrecv | Operation::Bcast => {
                send_receive_into(&*send, &to, receive, &of);
            }
        }
        let time = began.elapsed();
        drop(outgoing);
        self.received(step, side.incoming, expected, incoming);
        Ok(time)
    }

    fn broadcast(&mut self, step: &Step) -> Result<Duration, String> {
        let side = self.plan.side(step, self.shared.rank);
        let sent = Pattern::of(self.shared.options.seed, step.number, step.root);
        let is_root = self.shared.rank == step.root;
        let (one, lease) = match is_root {
            true => (side.outgoing, self.outgoing(step, side.outgoing, sent)?),
            false => (side.incoming, self.incoming(step, side.incoming)?),
        };
        self.shared.words.enter(Phase::Operation);
        let bytes = self.slots[one.slot].bytes(one.offset, step.bytes);
        let began = Instant::now();
        self.world.process_at_rank(step.root as i32).broadcast_into(bytes);
        let time = began.elapsed();
        if !is_root {
            self.received(step, one, sent, lease);
        }
        Ok(time)
    }
}

impl<'r> Steps<'r> {
    /// Makes a buffer ready to be sent from: the device must see what the program wrote.
    fn outgoing(&mut self, step: &Step, one: Use, sent: Pattern) -> Result<Option<Lease<'r>>, String> {
        self.change(step, one)?;
        let slot = &mut self.slots[one.slot];
        let before = slot.held.replace(sent);
        sent.fill(slot.bytes(one.offset, step.bytes));
        let lease = self.register(step, one, OUTGOING);
        if let Some(lease) = &lease {
            self.device_sees(step, one, lease, sent, before, "before it was sent");
        }
        Ok(lease)
    }

    /// Makes a buffer ready to be received into: the program must see what the device wrote.
    fn incoming(&mut self, step: &Step, one: Use) -> Result<Option<Lease<'r>>, String> {
        self.change(step, one)?;
        let lease = self.register(step, one, INCOMING);
        let Some(held) = lease.as_ref().filter(|_| self.device.is_there()) else { return Ok(lease) };
        self.shared.words.enter(Phase::Device);
        let slot = &mut self.slots[one.slot];
        let pattern = Pattern::of(self.shared.options.seed, step.number, FROM_DEVICE);
        let before = slot.held.replace(pattern);
        let bytes = slot.bytes(one.offset, step.bytes);
        // SAFETY: the lease lives until this function's end.
        match unsafe { self.device.write(held.key(), bytes, pattern) } {
            Err(error) => self.failed = Some(error),
            Ok(()) => {
                let seen = pattern.check(bytes, before);
                let what = "what the device wrote to its registration is not what the program sees";
                self.judge(step, one, seen.map_err(|how| format!("{what}: {how}")));
            }
        }
        Ok(lease)
    }

    /// After the operation: the program, and the device, must see what was sent.
    fn received(&mut self, step: &Step, one: Use, expected: Pattern, lease: Option<Lease<'r>>) {
        let words = self.shared.words;
        words.enter(Phase::Check);
        let slot = &mut self.slots[one.slot];
        let before = slot.held.replace(expected);
        let bytes = slot.bytes(one.offset, step.bytes);
        if self.shared.options.corrupt == Some(step.number)
            && self.shared.rank + 1 == self.world.size() as u32
        {
            bytes[step.bytes / 2] ^= 1;
        }
        words.add(Word::Messages, 1);
        words.add(Word::Checked, step.bytes as u64);
        if let Err(how) = expected.check(bytes, before) {
            let what = format!("{} into {:?} memory: {how}", step.operation.name(), slot.kind());
            self.shared.wrong(Word::Corrupt, step.number, what);
            return;
        }
        if let Some(lease) = &lease {
            self.device_sees(step, one, lease, expected, before, "after it was received");
        }
    }

    fn change(&mut self, step: &Step, one: Use) -> Result<(), String> {
        self.shared.words.enter(Phase::Change);
        let slot = &mut self.slots[one.slot];
        let effects = match slot.change(one.change, one.offset + step.bytes, self.pool) {
            Ok(effects) => effects,
            Err(Refusal::Pool(text)) => {
                let kind = if text.contains("RLIMIT_MEMLOCK") { "memlock" } else { "pool" };
                self.refuse(kind, text);
                Default::default()
            }
            Err(Refusal::Call(text)) => return Err(text),
        };
        let kind = one.slot % 4;
        self.shared.with(|state| {
            state.changes[kind][one.change as usize] += 1;
            let counts = &mut state.rank.counts;
            counts.same_address += u64::from(effects.same_address);
            counts.forks += u64::from(effects.forked);
            counts.children_without_pages += u64::from(effects.without_pages);
        });
        Ok(())
    }

    /// As an MPI library does; without a registration the operation goes on all the same.
    fn register(&mut self, step: &Step, one: Use, access: Access) -> Option<Lease<'r>> {
        self.shared.words.enter(Phase::Register);
        let bytes = self.slots[one.slot].bytes(one.offset, step.bytes);
        match self.registry.get(&*bytes, access) {
            Ok(lease) => Some(lease),
            Err(error) => {
                let kind = match &error {
                    GetError::Memlock { .. } => "memlock",
                    GetError::Budget { .. } => "budget",
                    _ => "other",
                };
                self.refuse(kind, error.to_string());
                None
            }
        }
    }

    fn refuse(&mut self, kind: &str, text: String) {
        let expected = match self.shared.options.fault {
            Some(Fault::Memlock) => matches!(kind, "memlock" | "budget"),
            _ => false,
        };
        if !expected && self.failed.is_none() {
            self.failed = Some(text.clone());
        }
        self.shared.refused(kind, text);
    }

    fn device_sees(
        &mut self,
        step: &Step,
        one: Use,
        lease: &Lease<'_>,
        expected: Pattern,
        before: Option<Pattern>,
        when: &str,
    ) {
        if !self.device.is_there() {
            return;
        }
        self.shared.words.enter(Phase::Device);
        let bytes = &*self.slots[one.slot].bytes(one.offset, step.bytes);
        // SAFETY: the caller holds the lease.
        match unsafe { self.device.see(lease.key(), bytes) } {
            Err(error) => self.failed = Some(error),
            Ok(seen) => {
                let seen = expected.check(seen, before);
                let what = |how| format!("the device does not see the program's bytes {when}: {how}");
                self.judge(step, one, seen.map_err(what));
            }
        }
    }

    fn judge(&mut self, step: &Step, one: Use, seen: Result<(), String>) {
        self.shared.with(|state| state.rank.counts.device_checks += 1);
        if let Err(how) = seen {
            let name = one.change.name(self.slots[one.slot].kind());
            self.shared.wrong(Word::Stale, step.number, format!("{}, {name}: {how}", step.operation.name()));
        }
    }
}
