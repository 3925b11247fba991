//! Memory is short: a large block when most of it lies in free blocks that are too small,
//! and blocks for which others must go back while another stream works.

use super::contenders::{Block, Contender};
use super::device::Stage;
use super::ticks::{Clock, ticks};
use crate::{Settings, tell};
use pinyard_cli::bench::{Row, Summary, Unit};

const MIB: usize = 1 << 20;
/// What a contender may reserve.
const CAP: usize = 8 << 30;
/// Kernels of 40 us that make 20 ms.
const LONG: u32 = 500;
/// Kernels of 50 us that do the same.
const STAMPED: usize = 400;

/// Measures both, each contender after the other.
pub(crate) fn run(settings: &Settings) {
    let stage = Stage::new(2);
    let mut contenders = stage.contenders();
    let (clock, rounds) = (Clock::calibrated(), settings.pick(5, 2));
    tell::steps(if stage.device.cuda.is_some() { 3 } else { 2 });
    tell::step("a large block");
    let cases = Cases { stage: &stage, clock: &clock, rounds };
    let large = "4 GiB of 8, 90 % of which are free blocks of 48 MiB, half of them after 20 ms of work";
    cases.rows(large, &mut contenders, large_block);
    tell::step("beside long work");
    cases.rows("longest of 100 growing blocks in 8 GiB, beside 20 ms of work", &mut contenders, longest);
    if stage.device.cuda.is_some() {
        tell::step("gaps in the long work");
        let name = "idle time of the other stream, beside 100 growing blocks in 8 GiB";
        cases.rows(name, &mut contenders, idle);
    }
}

struct Cases<'a> {
    stage: &'a Stage,
    clock: &'a Clock,
    rounds: usize,
}

/// Nanoseconds of what is measured, and allocations that failed.
type Case = fn(&Stage, &Clock, &mut dyn Contender) -> (f64, usize);

impl Cases<'_> {
    fn rows(&self, name: &str, contenders: &mut [Box<dyn Contender>], case: Case) {
        let suffix = self.stage.device.suffix;
        let mut time = Row::new("pools.shortage", format!("{name}{suffix}"));
        let mut failures = Row::new("pools.shortage", format!("{name}{suffix}: failed")).unit(Unit::Failures);
        for contender in
            contenders.iter_mut().filter(|contender| contender.heeds_cap() && contender.streams() > 1)
        {
            let (mut times, mut failed) = (Vec::new(), 0);
            for _ in 0..self.rounds {
                contender.begin(Some(CAP));
                let (took, refused) = case(self.stage, self.clock, &mut **contender);
                failed += refused;
                self.stage.settle();
                contender.end();
                times.push(took);
            }
            time.enter(contender.name(), Summary::of(times));
            failures.enter(contender.name(), Some(Summary::counted(failed as f64)));
        }
        tell::row(time);
        tell::row(failures);
    }
}

/// How long half of the memory takes when nine tenths of it are free blocks of one stream
/// that are too small, half of which its work may still use. Another stream asks.
fn large_block(stage: &Stage, clock: &Clock, contender: &mut dyn Contender) -> (f64, usize) {
    const BLOCK: usize = 48 * MIB;
    let blocks: Vec<_> = (0..CAP / 10 * 9 / BLOCK).map(|_| contender.alloc(BLOCK, 0)).collect();
    let failed = blocks.iter().filter(|block| block.is_none()).count();
    let half = blocks.len() / 2;
    let mut free = |blocks: &[Option<Block>]| {
        blocks.iter().flatten().for_each(|&block| contender.free(block));
    };
    free(&blocks[..half]);
    stage.work(0, LONG);
    free(&blocks[half..]);
    let began = ticks();
    let large = contender.alloc(CAP / 2, 1);
    let took = clock.nanoseconds((ticks() - began) as f64);
    if let Some(block) = large {
        contender.free(block);
    }
    (took, failed + usize::from(large.is_none()))
}

/// The longest allocation or free on a stream that does no work, while another one works:
/// each block is larger than what is free, so that memory goes back for it.
fn longest(stage: &Stage, clock: &Clock, contender: &mut dyn Contender) -> (f64, usize) {
    stage.work(1, LONG);
    let (longest, failed) = growing(contender);
    (clock.nanoseconds(longest as f64), failed)
}

/// The longest time that the other stream, whose work is there from the beginning, does
/// nothing.
fn idle(stage: &Stage, _: &Clock, contender: &mut dyn Contender) -> (f64, usize) {
    let stamps = stage.stamped(1, STAMPED);
    let (_, failed) = growing(contender);
    (stamps.map_or(0.0, |stamps| stamps.longest_gap()), failed)
}

/// Ticks of the longest allocation or free, and those that failed.
fn growing(contender: &mut dyn Contender) -> (u64, usize) {
    let (mut longest, mut failed) = (0, 0);
    for number in 0..100 {
        let began = ticks();
        let block = contender.alloc((64 + 20 * number) * MIB, 0);
        longest = longest.max(ticks() - began);
        let Some(block) = block else {
            failed += 1;
            continue;
        };
        let began = ticks();
        contender.free(block);
        longest = longest.max(ticks() - began);
    }
    (longest, failed)
}
