//! Many operations with memory that comes and goes, contents checked each time; afterwards
//! nothing of another rank's is open that was not, and the device has the memory that it had.

use crate::bench::{Bench, Element, text};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives};
use pinyard_allocator::DriverToken;
use pinyard_mpi::{DeviceBuf, DeviceCommunicator, Gpu, Reduction, SettledMut};
use std::time::Duration;

/// The same numbers at every rank (Knuth's multiplier, a 64-bit linear congruence).
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    /// As many of a few bytes as of many.
    fn length(&mut self) -> usize {
        let magnitude = self.below(22);
        1 + self.below(1 << magnitude)
    }
}

/// Slabs of each rank that others may have open: what is kept, and what the pool keeps.
const SLABS: usize = 64;

pub(crate) fn all(bench: &Bench, rounds: usize) -> Result<(), String> {
    let token = DriverToken::at_entry();
    let free = || bench.gpu.driver().mem_info(&token).map(|info| info.free).map_err(text);
    let before = free()?;
    let mut dice = Dice(0x5eed);
    let mut kept: Vec<DeviceBuf<u32>> = Vec::new();
    let mut most_open = 0;
    for round in 0..rounds {
        let length = dice.length();
        let root = dice.below(bench.size());
        let buffer = match dice.below(3) {
            0 => broadcast(bench, round, length, root)?,
            1 => reduction(bench, round, length)?,
            _ => message(bench, round, length, root)?,
        };
        if dice.below(4) == 0 {
            kept.push(buffer);
        }
        if kept.len() > 24 {
            kept.swap_remove(dice.below(24));
        }
        if dice.below(8) == 0 {
            bench.gpu.pool().trim(Duration::from_millis(50));
        }
        most_open = most_open.max(bench.ranks.open_slabs());
    }
    bench
        .check(most_open <= SLABS * bench.size(), || format!("{most_open} slabs of other ranks are open"))?;
    drop(kept);
    growing(bench)?;
    let left = lifetimes(bench)?;
    if bench.rank() == 0 {
        println!("soak: {} communicators, {left} bytes of the device left with them", lifetimes_of(bench));
        let (lost, open) = (before.saturating_sub(free()?), bench.ranks.open_slabs());
        println!(
            "soak: {rounds} rounds, {most_open} slabs open at most, {open} in the end, {lost} bytes in use"
        );
    }
    Ok(())
}

/// Communicators one after the other, each with a device of its own pools: on a real one, and on a
/// simulated one, which copies as the host does.
const LIFETIMES: [usize; 2] = [8, 2];
/// Of a driver's own in each process of a device: it keeps some memory of what it is given back,
/// however often that is.
const OWN: usize = 24 << 20;
/// Bytes of buffers: within a slab with others, most of one, and more than one has.
const LENGTHS: [usize; 3] = [1 << 20, 48 << 20, 80 << 20];

fn lifetimes_of(bench: &Bench) -> usize {
    LIFETIMES[usize::from(bench.simulated.is_some())]
}

/// A slab that another rank still has mapped does not go when its own rank frees it, whoever counts
/// what: so the device's free memory, as the driver tells it, is as before when each communicator has
/// gone. How much is not.
fn lifetimes(bench: &Bench) -> Result<usize, String> {
    let world = SimpleCommunicator::world();
    let token = DriverToken::at_entry();
    let mut before = 0;
    // Of one node they see the same devices, by the same numbers.
    let node = world.split_shared(world.rank());
    let mut devices = vec![0; node.size() as usize];
    let device = bench.gpu.device().ordinal;
    node.all_gather_into(&device, &mut devices[..]);
    let own = OWN * devices.iter().filter(|&&of| of == device).count();
    // The first one's kernels and streams are the process's.
    let last = lifetimes_of(bench);
    for lifetime in 0..=last {
        let gpu = Gpu::new(bench.gpu.driver().clone()).map_err(text)?;
        let ranks = DeviceCommunicator::builder(&gpu).build(&world).map_err(text)?;
        for (number, bytes) in LENGTHS.into_iter().enumerate() {
            one_of(bench, &ranks, lifetime * LENGTHS.len() + number, bytes)?;
        }
        drop(ranks);
        gpu.pool().trim(Duration::from_secs(5));
        drop(gpu);
        // Nobody goes on before all have looked: ranks may share a device.
        world.barrier();
        let free = bench.gpu.driver().mem_info(&token).map_err(text)?.free;
        world.barrier();
        if lifetime == 0 {
            before = free;
        }
        let left = before.saturating_sub(free);
        bench.check(left <= own, || {
            format!("{left} bytes of the device are left of {lifetime} communicators")
        })?;
        if lifetime == last {
            return Ok(left);
        }
    }
    Ok(0)
}

/// A broadcast from every rank, and a sum, of which the ends are looked at.
fn one_of(bench: &Bench, ranks: &DeviceCommunicator, round: usize, bytes: usize) -> Result<(), String> {
    let stream = ranks.gpu().stream().map_err(text)?;
    let length = bytes / size_of::<u32>();
    let mut buffer: DeviceBuf<u32> = ranks.gpu().alloc(length, &stream).map_err(text)?;
    let mut mine = vec![0; length];
    for root in 0..bench.size() {
        (mine[0], mine[length - 1]) = (of(round, 0, bench.rank()), of(round, length, bench.rank()));
        buffer.write(&mine).map_err(text)?;
        ranks.broadcast_into(root as i32, &mut buffer.settle_mut().map_err(text)?).map_err(text)?;
        let is = buffer.to_vec().map_err(text)?;
        let right = (is[0], is[length - 1]) == (of(round, 0, root), of(round, length, root));
        bench.check(right, || format!("a broadcast of {bytes} bytes from {root}"))?;
    }
    ranks.all_reduce_in_place(&mut buffer.settle_mut().map_err(text)?, Reduction::Sum).map_err(text)
}

/// One buffer at a time, each longer than the one before, of which all together are many times
/// the device: what was broadcast from and given back is there for the next.
fn growing(bench: &Bench) -> Result<(), String> {
    if bench.simulated.is_none() {
        return Ok(());
    }
    let gpu = Gpu::simulated(256 << 20).map_err(text)?;
    let ranks = DeviceCommunicator::builder(&gpu).build(&SimpleCommunicator::world()).map_err(text)?;
    let stream = gpu.stream().map_err(text)?;
    for trims in [false, true] {
        for (round, mib) in (20..80).step_by(2).enumerate() {
            let buffer = gpu.alloc(mib << 20, &stream);
            let mut buffer = buffer.map_err(|error| format!("{mib} MiB after {round} others: {error}"))?;
            let last = buffer.len() - 1;
            let mut settled: SettledMut<'_, u8> = buffer.settle_mut().map_err(text)?;
            ranks.broadcast_into(round as i32 % ranks.size(), &mut settled).map_err(text)?;
            let mut end = settled.slice_mut(last..);
            ranks.all_reduce_in_place(&mut end, Reduction::Max).map_err(text)?;
            bench.check(ranks.open_slabs() <= bench.size(), || {
                format!("{} slabs are open for one buffer", ranks.open_slabs())
            })?;
            drop(buffer);
            if trims {
                gpu.pool().trim(Duration::from_millis(50));
            }
        }
    }
    Ok(())
}

fn of(round: usize, at: usize, rank: usize) -> u32 {
    u32::of(at * 7 + round * 31 + rank)
}

fn filled(bench: &Bench, length: usize, round: usize, rank: usize) -> Result<DeviceBuf<u32>, String> {
    let mut buffer: DeviceBuf<u32> = bench.gpu.alloc(length, &bench.stream).map_err(text)?;
    buffer.write(&(0..length).map(|at| of(round, at, rank)).collect::<Vec<_>>()).map_err(text)?;
    Ok(buffer)
}

fn holds(
    bench: &Bench,
    buffer: &DeviceBuf<u32>,
    what: &str,
    round: usize,
    is: impl Fn(usize) -> u32,
) -> Result<(), String> {
    let all = buffer.to_vec().map_err(text)?;
    bench.check(all.iter().enumerate().all(|(at, &element)| element == is(at)), || {
        format!("round {round}: {what} of {} elements", all.len())
    })
}

fn broadcast(bench: &Bench, round: usize, length: usize, root: usize) -> Result<DeviceBuf<u32>, String> {
    let mut buffer = filled(bench, length, round, bench.rank())?;
    bench.ranks.broadcast_into(root as i32, &mut buffer.settle_mut().map_err(text)?).map_err(text)?;
    holds(bench, &buffer, "bcast", round, |at| of(round, at, root))?;
    Ok(buffer)
}

fn reduction(bench: &Bench, round: usize, length: usize) -> Result<DeviceBuf<u32>, String> {
    let mut buffer = filled(bench, length, round, bench.rank())?;
    let mut settled = buffer.settle_mut().map_err(text)?;
    bench.ranks.all_reduce_in_place(&mut settled, Reduction::Sum).map_err(text)?;
    holds(bench, &buffer, "allreduce", round, |at| {
        (0..bench.size()).map(|rank| of(round, at, rank)).fold(0, u32::wrapping_add)
    })?;
    Ok(buffer)
}

/// From `from` to the rank behind it.
fn message(bench: &Bench, round: usize, length: usize, from: usize) -> Result<DeviceBuf<u32>, String> {
    let to = (from + 1) % bench.size();
    let mut buffer = filled(bench, length, round, bench.rank())?;
    if to != from && bench.rank() == from {
        bench.ranks.send(to as i32, 5, &buffer.settle().map_err(text)?).map_err(text)?;
    } else if to != from && bench.rank() == to {
        let mut settled = buffer.settle_mut().map_err(text)?;
        bench.ranks.receive_into(from as i32, 5, &mut settled).map_err(text)?;
    }
    let sender = if bench.rank() == to { from } else { bench.rank() };
    holds(bench, &buffer, "a message", round, |at| of(round, at, sender))?;
    Ok(buffer)
}
