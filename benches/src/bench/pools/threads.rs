//! Threads with a stream each: one block of a size over and over, blocks of many sizes of
//! which some live, and blocks that another thread frees. Allocations and frees are timed,
//! what the threads hand each other is not.
#![allow(unsafe_code)] // blocks are freed

use super::contenders::token;
use super::shim::{self, Foreign};
use super::ticks::{Clock, ticks};
use super::{Device, device, stream};
use crate::{Settings, tell};
use pinyard_allocator::device::{DeviceBuf, DevicePool, PoolStream};
use pinyard_benches::traces::Random;
use pinyard_benches::turns::or_fail;
use pinyard_cli::bench::row::OURS;
use pinyard_cli::bench::{Axis, Row, Summary};
use pinyard_driver::{Cuda, DevicePtr, Stream};
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The one size.
const BYTES: usize = 4 * KIB;
/// Blocks of many sizes that a thread holds.
const LIVE: usize = 32;
/// Blocks that go to another thread at once.
const HANDED: usize = 32;
/// What a turn is to take, however long a peer's lock makes each operation.
const TURN: f64 = 20e6;

/// An allocator that threads share.
trait Shared: Sync {
    /// What a thread allocates with.
    type Local;
    type Block: Send;
    fn local(&self, stream: Stream) -> Self::Local;
    fn alloc(&self, local: &Self::Local, bytes: usize) -> Self::Block;
    /// By any thread, in the order of the block's own stream.
    fn free(&self, block: Self::Block);
}

impl Shared for DevicePool {
    type Local = PoolStream;
    type Block = DeviceBuf;
    fn local(&self, stream: Stream) -> PoolStream {
        or_fail(self.stream(stream))
    }
    #[inline]
    fn alloc(&self, local: &PoolStream, bytes: usize) -> DeviceBuf {
        or_fail(local.alloc(bytes))
    }
    #[inline]
    fn free(&self, block: DeviceBuf) {
        drop(block);
    }
}

/// A block of the others': its address, its bytes and its stream.
type Raw = (u64, usize, Stream);

impl Shared for Foreign {
    type Local = Stream;
    type Block = Raw;
    fn local(&self, stream: Stream) -> Stream {
        stream
    }
    #[inline]
    fn alloc(&self, &stream: &Stream, bytes: usize) -> Raw {
        (Foreign::alloc(self, bytes, stream) as u64, bytes, stream)
    }
    #[inline]
    fn free(&self, (at, bytes, stream): Raw) {
        if at != 0 {
            // SAFETY: of `alloc`, freed once.
            unsafe { Foreign::free(self, at as *mut c_void, bytes, stream) };
        }
    }
}

impl Shared for Arc<Cuda> {
    type Local = Stream;
    type Block = Raw;
    fn local(&self, stream: Stream) -> Stream {
        stream
    }
    fn alloc(&self, &stream: &Stream, bytes: usize) -> Raw {
        (or_fail(self.alloc_async(bytes, stream, &token())).0, bytes, stream)
    }
    fn free(&self, (at, _, stream): Raw) {
        // SAFETY: of `alloc`, freed once, used by nobody.
        or_fail(unsafe { self.free_async(DevicePtr(at), stream, &token()) });
    }
}

/// Blocks that go from thread to thread.
type Batch<S> = Vec<<S as Shared>::Block>;

/// What a thread does.
#[derive(Clone, Copy)]
enum Work {
    OneBlock,
    Replace,
    HandOn,
}

const CASES: [(&str, Work); 3] = [
    ("4 KiB", Work::OneBlock),
    ("256 B to 64 MiB, 32 live a thread", Work::Replace),
    ("4 KiB, freed by another thread", Work::HandOn),
];

/// One to sixteen threads, or as many as there are cores.
pub(crate) fn run(settings: &Settings) {
    let device = device();
    let others: Vec<Foreign> =
        shim::all(&device).into_iter().filter(|foreign| foreign.streams() > 1).collect();
    let (clock, counts) = (Clock::calibrated(), settings.thread_counts());
    tell::steps(CASES.len() * counts.len());
    for (case, work) in CASES {
        for &threads in &counts {
            tell::step(format!("{case}, {threads} threads"));
            let bench = Bench {
                streams: (0..threads).map(|_| stream(&device.driver)).collect(),
                work,
                clock: &clock,
                turn: settings.pick(TURN, TURN / 20.0),
            };
            let case = format!("{case}{}", device.suffix);
            let row = Row::new("pools.threads", case).at(Axis::Threads, threads);
            tell::row(bench.row(row, &device, &others, settings.pick(9, 2)));
        }
    }
}

/// Turns of one case by so many threads as there are streams.
struct Bench<'a> {
    streams: Vec<Stream>,
    work: Work,
    clock: &'a Clock,
    turn: f64,
}

/// A contender's turns: called once to warm up, it then says what an operation took.
type Turn<'a> = Box<dyn FnMut() -> f64 + 'a>;

impl Bench<'_> {
    fn row(&self, mut row: Row, device: &Device, others: &[Foreign], rounds: usize) -> Row {
        let pool = or_fail(DevicePool::builder(device.driver.clone()).build());
        others.iter().for_each(|foreign| foreign.begin(None));
        let mut turns: Vec<(&str, Turn<'_>)> = vec![(OURS, self.turns(&pool))];
        if let Some(cuda) = &device.cuda {
            or_fail(cuda.keep_async(u64::MAX, &token()));
            turns.push(("cuMemAllocAsync", self.turns(cuda)));
        }
        turns.extend(others.iter().map(|foreign| (foreign.name(), self.turns(foreign))));
        let count = turns.len();
        let mut samples = vec![Vec::new(); count];
        for round in 0..rounds {
            for at in (0..count).map(|turn| (turn + round) % count) {
                samples[at].push((turns[at].1)());
            }
        }
        for ((name, _), samples) in turns.iter().zip(samples) {
            row.enter(name, Summary::of(samples));
        }
        drop(turns);
        others.iter().for_each(Foreign::end);
        if let Some(cuda) = &device.cuda {
            or_fail(device.driver.synchronize(&token()));
            or_fail(cuda.keep_async(0, &token()));
        }
        row
    }

    fn turns<'a, S: Shared>(&'a self, shared: &'a S) -> Turn<'a> {
        // What it will take is seen in a short turn, after one that fills the caches.
        self.together(shared, HANDED);
        let each = self.together(shared, HANDED);
        let pairs = (self.turn / (2.0 * each)).clamp(HANDED as f64, 100_000.0) as usize;
        self.together(shared, pairs);
        Box::new(move || self.together(shared, pairs))
    }

    /// Nanoseconds of an operation, the mean of all threads.
    fn together<S: Shared>(&self, shared: &S, pairs: usize) -> f64 {
        let ready = Barrier::new(self.streams.len());
        // Each hands on to the next.
        let (sends, mut receives): (Vec<_>, Vec<_>) = self.streams.iter().map(|_| sync_channel(2)).unzip();
        receives.rotate_right(1);
        let each: Vec<f64> = std::thread::scope(|scope| {
            let ready = &ready;
            let links = sends.into_iter().zip(receives);
            let threads = self.streams.iter().zip(links).enumerate().map(|(number, (&stream, link))| {
                scope.spawn(move || {
                    let local = shared.local(stream);
                    ready.wait();
                    match self.work {
                        Work::OneBlock => one_block(shared, &local, pairs),
                        Work::Replace => replace(shared, &local, pairs, number as u64),
                        Work::HandOn => hand_on(shared, &local, pairs, link),
                    }
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        self.clock.nanoseconds(each.iter().sum::<f64>() / each.len() as f64)
    }
}

/// Ticks of an operation.
fn one_block<S: Shared>(shared: &S, local: &S::Local, pairs: usize) -> f64 {
    let began = ticks();
    for _ in 0..pairs {
        shared.free(black_box(shared.alloc(local, BYTES)));
    }
    (ticks() - began) as f64 / (2 * pairs) as f64
}

/// The same of random replacement among blocks of many sizes.
fn replace<S: Shared>(shared: &S, local: &S::Local, pairs: usize, seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let steps: Vec<(usize, usize)> =
        (0..pairs).map(|_| (random.below(LIVE), random.log(256, 64 * MIB))).collect();
    let mut live: [Option<S::Block>; LIVE] = std::array::from_fn(|_| None);
    let began = ticks();
    for (at, bytes) in steps {
        if let Some(block) = live[at].take() {
            shared.free(block);
        }
        live[at] = Some(shared.alloc(local, bytes));
    }
    live.into_iter().flatten().for_each(|block| shared.free(block));
    (ticks() - began) as f64 / (2 * pairs) as f64
}

/// The same of blocks that come from one thread and go to another.
fn hand_on<S: Shared>(
    shared: &S,
    local: &S::Local,
    pairs: usize,
    (next, previous): (SyncSender<Batch<S>>, Receiver<Batch<S>>),
) -> f64 {
    let (mut took, batches) = (0, pairs.div_ceil(HANDED));
    for _ in 0..batches {
        let mut batch = Vec::with_capacity(HANDED);
        let began = ticks();
        batch.extend((0..HANDED).map(|_| shared.alloc(local, BYTES)));
        took += ticks() - began;
        // Both ends live until all threads are done.
        let Ok(()) = next.send(batch) else { break };
        let Ok(mut batch) = previous.recv() else { break };
        let began = ticks();
        batch.drain(..).for_each(|block| shared.free(block));
        took += ticks() - began;
    }
    took as f64 / (2 * batches * HANDED) as f64
}
