//! Threads with a stream each, one size.
#![allow(unsafe_code)] // a shim's functions are called

use super::contenders::Torch;
use super::{device, stream, torch_shim};
use crate::{Settings, tell};
use pinyard_allocator::device::DevicePool;
use pinyard_bench_report::row::OURS;
use pinyard_bench_report::{Axis, Row};
use pinyard_benches::turns::{Turns, or_fail};
use pinyard_driver::Stream;
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

const BYTES: usize = 4096;

/// One to sixteen threads, or as many as there are cores.
pub(crate) fn run(settings: &Settings) {
    let device = device();
    let pairs = settings.pick(100_000, 1000);
    let pool = or_fail(DevicePool::builder(device.driver.clone()).build());
    let torch = torch_shim(&device).map(|shim| Torch::load(&shim, Vec::new(), 1));
    let ours = |at: Stream, ready: &Barrier| {
        let at = or_fail(pool.stream(at));
        drop(or_fail(at.alloc(BYTES)));
        timed(ready, || (0..pairs).for_each(|_| drop(black_box(or_fail(at.alloc(BYTES))))))
    };
    let theirs = |torch: &Torch, at: Stream, ready: &Barrier| {
        let (alloc, free) = (torch.alloc, torch.free);
        // SAFETY: the shim's functions; each block is freed once.
        let pair = || unsafe { free(black_box(alloc(BYTES, at.raw() as *mut c_void))) };
        pair();
        timed(ready, || (0..pairs).for_each(|_| pair()))
    };
    let counts = settings.thread_counts();
    tell::steps(counts.len());
    for threads in counts {
        tell::step(format!("{threads} threads"));
        let streams: Vec<Stream> = (0..threads).map(|_| stream(&device.driver)).collect();
        let (mut turns, mut torch_turns) = (Turns::new(), Turns::new());
        for _ in 0..settings.pick(9, 2) {
            together(&streams, 2 * pairs, &mut turns, &ours);
            if let Some(torch) = &torch {
                together(&streams, 2 * pairs, &mut torch_turns, &|at, ready| theirs(torch, at, ready));
            }
        }
        let case = format!("4 KiB{}", device.suffix);
        let mut row = Row::new("pools.threads", case).at(Axis::Threads, threads);
        row.enter(OURS, turns.summary());
        row.enter(torch.as_ref().map_or("PyTorch", |torch| torch.name), torch_turns.summary());
        tell::row(row);
    }
}

/// Nanoseconds of `work`, once all threads are there.
fn timed(ready: &Barrier, work: impl FnOnce()) -> f64 {
    ready.wait();
    let began = Instant::now();
    work();
    began.elapsed().as_nanos() as f64
}

/// A turn of as many threads as there are streams: the mean of what each took.
fn together(
    streams: &[Stream],
    operations: usize,
    turns: &mut Turns,
    body: &(dyn Fn(Stream, &Barrier) -> f64 + Sync),
) {
    let barrier = Barrier::new(streams.len());
    let each: Vec<f64> = std::thread::scope(|scope| {
        let ready = &barrier;
        let threads: Vec<_> =
            streams.iter().map(|&stream| scope.spawn(move || body(stream, ready))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    turns.add(each.iter().sum::<f64>() / each.len() as f64, operations, false);
}
