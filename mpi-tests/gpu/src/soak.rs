//! Many operations with memory that comes and goes, contents checked each time; afterwards
//! nothing of another rank's is open that was not, and the device has the memory that it had.

use crate::bench::{Bench, Element, text};
use mpi::topology::SimpleCommunicator;
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
    if bench.rank() == 0 {
        let (lost, open) = (before.saturating_sub(free()?), bench.ranks.open_slabs());
        println!(
            "soak: {rounds} rounds, {most_open} slabs open at most, {open} in the end, {lost} bytes in use"
        );
    }
    Ok(())
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
