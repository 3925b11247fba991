//! Device allocators beside each other in one process: the same traces, interleaved, in
//! rotating order. Allocations and frees are timed by the processor's counter, [`BATCH`]
//! of them together, as a single one may take less than reading the counter does; work of
//! the device is not.
//!
//! A sample is the mean over a whole trace, since what an allocator does rarely counts as
//! well; the 99th percentile is that of batches.
#![allow(unsafe_code)] // a block is written to by a kernel

use super::contenders::{Async, Block, Contender, Ours, token};
use super::pinned::Pinned;
use super::shim::{self, Shimmed};
use super::spin::Spin;
use super::ticks::{Clock, ticks};
use super::{Device, device, stream};
use crate::{Settings, tell};
use pinyard_benches::traces::{self, Op, STREAMS, Trace};
use pinyard_benches::turns::or_fail;
use pinyard_cli::bench::{Absence, Row, Summary, Unit};
use pinyard_driver::{DevicePtr, Event, Stream};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Operations that are timed together.
const BATCH: u32 = 32;
/// What a kernel of the whole device writes.
const WORK_BYTES: usize = 128 << 20;
/// Copies that may be under way.
const COPIES: usize = 8;
/// What it takes on the simulated device.
const WORK_NANOSECONDS: u64 = 40_000;
/// Nanoseconds of a kernel that occupies a stream alone.
const SPIN: u64 = 50_000;
/// Longer than this a contender does not replay a trace.
const LONGEST: Duration = Duration::from_secs(8);
/// What its measured rounds may take, beyond the least of them.
const ALL_ROUNDS: Duration = Duration::from_secs(6);
/// Of two rounds the median says nothing.
const LEAST_ROUNDS: usize = 3;
/// What a contender may reserve over what lives, for all of them to fit the device at once.
const SLACK: usize = 2;

/// A device with its streams, and who allocates there.
pub(super) struct Stage {
    pub(super) device: Device,
    raw: Vec<Stream>,
    written: DevicePtr,
    /// Not on the simulated device.
    spin: Option<Spin>,
    /// By stream, what was recorded after its last two kernels, the earlier first.
    spinning: RefCell<Vec<[Option<Event>; 2]>>,
    /// What was recorded after the last copies, the earliest first.
    copying: RefCell<VecDeque<Event>>,
}

impl Stage {
    /// Of `streams` streams.
    pub(super) fn new(streams: usize) -> Stage {
        let device = device();
        let driver = &device.driver;
        let raw: Vec<_> = (0..streams).map(|_| stream(driver)).collect();
        let written = or_fail(driver.mem_alloc(WORK_BYTES, &token()));
        let spin = device.cuda.as_ref().map(|cuda| Spin::load(cuda.clone()));
        let spinning = RefCell::new(vec![[None; 2]; streams]);
        Stage { device, raw, written, spin, spinning, copying: RefCell::default() }
    }

    /// The allocators of device memory.
    pub(super) fn contenders(&self) -> Vec<Box<dyn Contender>> {
        let Stage { device, raw, .. } = self;
        let driver = &device.driver;
        let ours = |virtual_memory| Ours::new(driver.clone(), raw.clone(), virtual_memory);
        let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(ours(false)), Box::new(ours(true))];
        if let Some(cuda) = &device.cuda {
            or_fail(cuda.keep_async(u64::MAX, &token()));
            contenders.push(Box::new(Async { cuda: cuda.clone(), raw: raw.clone(), event: None, calls: 0 }));
        }
        for foreign in shim::all(device) {
            contenders.push(Box::new(Shimmed { foreign, raw: raw.clone() }));
        }
        contenders
    }

    /// Those of pinned host memory.
    pub(super) fn pinned(&self) -> Vec<Box<dyn Contender>> {
        let Stage { device, raw, .. } = self;
        let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(Pinned::new(&device.driver, raw))];
        for foreign in shim::pinned(device) {
            contenders.push(Box::new(Shimmed { foreign, raw: raw.clone() }));
        }
        contenders
    }

    /// Copies host memory to the device, once no more than a few copies are left to do.
    fn copy(&self, from: *const u8, bytes: usize, at: u16) {
        let (driver, stream) = (&self.device.driver, self.raw[at as usize]);
        let mut copying = self.copying.borrow_mut();
        let event = if copying.len() < COPIES {
            or_fail(driver.event_create(&token()))
        } else {
            let first = copying.pop_front().unwrap_or_else(|| or_fail(driver.event_create(&token())));
            while !or_fail(driver.event_query(first, &token())) {
                std::hint::spin_loop();
            }
            first
        };
        for offset in (0..bytes).step_by(WORK_BYTES) {
            let (from, part) = (from.wrapping_add(offset), WORK_BYTES.min(bytes - offset));
            // SAFETY: both are as long; the source is freed in the order of this stream.
            or_fail(unsafe { driver.copy_to_device(self.written, from, part, stream, &token()) });
        }
        or_fail(driver.event_record(event, stream, &token()));
        copying.push_back(event);
    }

    /// Sees to it that the stream has two kernels before it, the first of which may have
    /// begun.
    fn busy(&self, at: u16) {
        let (driver, stream) = (&self.device.driver, self.raw[at as usize]);
        let events = &mut self.spinning.borrow_mut()[at as usize];
        for _ in 0..events.len() {
            let event = match events[0] {
                Some(event) if !or_fail(driver.event_query(event, &token())) => return,
                Some(event) => event,
                None => or_fail(driver.event_create(&token())),
            };
            match (&self.spin, &self.device.simulated) {
                (Some(spin), _) => spin.launch(stream, SPIN),
                (None, Some(simulated)) => simulated.kernel(stream, SPIN, &token()),
                (None, None) => {}
            }
            or_fail(driver.event_record(event, stream, &token()));
            *events = [events[1], Some(event)];
        }
    }

    /// Gives the stream work of `kernels` kernels, some 40 us each.
    pub(super) fn work(&self, at: u16, kernels: u32) {
        let stream = self.raw[at as usize];
        if let Some(simulated) = &self.device.simulated {
            return simulated.kernel(stream, u64::from(kernels) * WORK_NANOSECONDS, &token());
        }
        for _ in 0..kernels {
            // SAFETY: a block of the benchmark's own.
            or_fail(unsafe { self.device.driver.fill(self.written, 1, WORK_BYTES, stream, &token()) });
        }
    }

    /// Gives the stream `kernels` kernels that say when they ran, if there is a GPU.
    pub(super) fn stamped(&self, at: u16, kernels: usize) -> Option<Stamps<'_>> {
        let spin = self.spin.as_ref()?;
        let stamps = Stamps { stage: self, at: self.written, kernels };
        for kernel in 0..kernels {
            let place = DevicePtr(stamps.at.0 + (kernel * size_of::<[u64; 2]>()) as u64);
            // SAFETY: within the benchmark's own block, which goes once all work is done.
            unsafe { spin.launch_stamped(self.raw[at as usize], SPIN, place) };
        }
        Some(stamps)
    }

    /// Waits until all of the work is done.
    pub(super) fn settle(&self) {
        or_fail(self.device.driver.synchronize(&token()));
    }
}

/// When each of a stream's kernels ran.
pub(super) struct Stamps<'a> {
    stage: &'a Stage,
    at: DevicePtr,
    kernels: usize,
}

impl Stamps<'_> {
    /// The longest time between two of them, in nanoseconds, once all work is done.
    pub(super) fn longest_gap(self) -> f64 {
        let Stamps { stage, at, kernels } = self;
        stage.settle();
        let mut times = vec![[0u64; 2]; kernels];
        let (to, bytes) = (times.as_mut_ptr().cast(), size_of_val(times.as_slice()));
        // SAFETY: both are as long, and the copy has passed before they are looked at.
        or_fail(unsafe { stage.device.driver.copy_to_host(to, at, bytes, stage.raw[0], &token()) });
        stage.settle();
        times.windows(2).map(|pair| pair[1][0].saturating_sub(pair[0][1])).max().unwrap_or(0) as f64
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // SAFETY: nothing uses it once the work is done, for which the driver waits.
        or_fail(unsafe { self.device.driver.mem_free(self.written, &token()) });
    }
}

/// Replays `traces`, a row for each.
pub(crate) fn run(settings: &Settings, benchmark: &str, traces: Vec<Trace>) {
    let stage = Stage::new(STREAMS);
    let contenders = stage.contenders();
    replays(settings, benchmark, &stage, contenders, traces);
}

/// The same of pinned host memory.
pub(crate) fn run_pinned(settings: &Settings, benchmark: &str) {
    let stage = Stage::new(1);
    let (contenders, traces) = (stage.pinned(), traces::copies(settings.quick, stage.device.cuda.is_some()));
    replays(settings, benchmark, &stage, contenders, traces);
}

fn replays(
    settings: &Settings,
    benchmark: &str,
    stage: &Stage,
    mut contenders: Vec<Box<dyn Contender>>,
    traces: Vec<Trace>,
) {
    let (clock, rounds) = (Clock::calibrated(), settings.pick(5, 2));
    tell::steps(traces.len());
    for trace in traces {
        tell::step(trace.name.clone());
        let mut able: Vec<&mut Box<dyn Contender>> =
            contenders.iter_mut().filter(|contender| contender.streams() >= trace.streams()).collect();
        let results = measure(stage, &mut able, &trace, &clock, rounds);
        let names = able.iter().map(|contender| contender.name());
        rows(benchmark, &trace, stage.device.suffix, names.zip(results));
    }
}

/// What a contender's rounds came to.
#[derive(Default)]
struct Measured {
    means: Vec<f64>,
    /// Of batches, in each round.
    p99s: Vec<f64>,
    failed: usize,
    peak_reserved: Option<u64>,
}

fn measure(
    stage: &Stage,
    contenders: &mut [&mut Box<dyn Contender>],
    trace: &Trace,
    clock: &Clock,
    rounds: usize,
) -> Vec<Measured> {
    let count = contenders.len();
    let fits = trace.peak_live() * SLACK * count < stage.device.driver.device().total_bytes;
    // The first round is the warm-up.
    let turns: Vec<(usize, usize)> = if !fits {
        (0..count).flat_map(|at| (0..=rounds).map(move |round| (round, at))).collect()
    } else {
        (0..=rounds).flat_map(|round| (0..count).map(move |turn| (round, (turn + round) % count))).collect()
    };
    let mut results: Vec<Measured> = contenders.iter().map(|_| Measured::default()).collect();
    let (mut times, mut rounds_of) = (Vec::new(), vec![rounds; count]);
    for (round, at) in turns {
        if round > rounds_of[at] {
            continue;
        }
        let (contender, result) = (&mut **contenders[at], &mut results[at]);
        if round == 0 {
            contender.begin(trace.cap);
        }
        let began = Instant::now();
        let replayed = replay(contender, trace, stage, &mut times);
        stage.settle();
        let Some(failed) = replayed else {
            let why = format!("{:?} took more than {LONGEST:?}", trace.name);
            tell::peer(contender.name(), Err(Absence::new(why, "")));
            contender.end();
            // No further turn, and no figure.
            (rounds_of[at], *result) = (0, Measured::default());
            continue;
        };
        if round == 0 {
            let most = ALL_ROUNDS.as_secs_f64() / began.elapsed().as_secs_f64();
            rounds_of[at] = rounds.min((most as usize).max(LEAST_ROUNDS));
            continue;
        }
        let (ticks, operations) =
            times.iter().fold((0.0, 0), |(ticks, operations), batch| (ticks + batch.0, operations + batch.1));
        result.means.push(clock.nanoseconds(ticks / f64::from(operations.max(1))));
        let each = times.iter().map(|&(ticks, operations)| clock.nanoseconds(ticks / f64::from(operations)));
        result.p99s.extend(Summary::of(each.collect()).map(|batches| batches.p99));
        result.failed = failed;
        if round == rounds_of[at] {
            result.peak_reserved = contender.peak_reserved();
            contender.end();
        }
    }
    results
}

/// Ticks and operations of each batch go to `times`; returns the allocations that failed,
/// or nothing where it takes too long: the blocks that live then are freed.
pub(super) fn replay(
    contender: &mut dyn Contender,
    trace: &Trace,
    stage: &Stage,
    times: &mut Vec<(f64, u32)>,
) -> Option<usize> {
    let started = Instant::now();
    let mut blocks: Vec<Option<Block>> = vec![None; trace.ids];
    let (mut failed, mut batch, mut began) = (0, 0, ticks());
    times.clear();
    for &op in &trace.ops {
        match op {
            Op::Alloc { id, bytes, stream } => {
                let block = contender.alloc(bytes, stream);
                failed += usize::from(block.is_none());
                blocks[id as usize] = block;
            }
            Op::Free { id } => {
                if let Some(block) = blocks[id as usize].take() {
                    contender.free(block);
                }
            }
            Op::Use { id, stream } => {
                if let Some(block) = blocks[id as usize] {
                    contender.record_use(block, stream);
                }
            }
            Op::Busy { .. } | Op::Work { .. } | Op::Copy { .. } => {}
        }
        let works = matches!(op, Op::Busy { .. } | Op::Work { .. } | Op::Copy { .. });
        // A use is a part of the free that follows.
        batch += u32::from(matches!(op, Op::Alloc { .. } | Op::Free { .. }));
        if batch == BATCH || works {
            if batch > 0 {
                times.push(((ticks() - began) as f64, batch));
            }
            match op {
                Op::Busy { stream } => stage.busy(stream),
                Op::Work { stream } => stage.work(stream, 1),
                Op::Copy { id } => {
                    if let Some(block) = blocks[id as usize] {
                        stage.copy(contender.address(block), block.bytes, block.stream);
                    }
                }
                _ => {}
            }
            if started.elapsed() > LONGEST {
                blocks.into_iter().flatten().for_each(|block| contender.free(block));
                return None;
            }
            (batch, began) = (0, ticks());
        }
    }
    if batch > 0 {
        times.push(((ticks() - began) as f64, batch));
    }
    Some(failed)
}

/// The time, the bytes reserved over those that lived at most, and failures where there
/// were any.
fn rows(
    benchmark: &str,
    trace: &Trace,
    suffix: &str,
    results: impl Iterator<Item = (&'static str, Measured)>,
) {
    let row = |case: String| {
        let row = Row::new(benchmark, case);
        trace.at.map_or(row.clone(), |(axis, value)| row.at(axis, value))
    };
    let mut time = row(format!("{}{suffix}", trace.name));
    let mut reserved = row(format!("{}{suffix}: reserved over live", trace.name)).unit(Unit::Times);
    let mut failures = row(format!("{}{suffix}: failed", trace.name)).unit(Unit::Failures);
    let live = trace.peak_live() as f64;
    for (name, measured) in results {
        let p99 = Summary::of(measured.p99s).map(|p99s| p99s.median);
        let summary = Summary::of(measured.means).zip(p99).map(|(means, p99)| Summary { p99, ..means });
        time.enter(name, summary);
        reserved.enter(name, measured.peak_reserved.map(|bytes| Summary::counted(bytes as f64 / live)));
        failures.enter(name, Some(Summary::counted(measured.failed as f64)));
    }
    tell::row(time);
    tell::row(reserved);
    if failures.of.iter().any(|of| of.summary.median > 0.0) {
        tell::row(failures);
    }
}
