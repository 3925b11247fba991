//! Adaptors around a device pool, alone and around each other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use pinyard_allocator::adaptors::{Allocate, Block, DeviceBlock, Fault, Limit, Retry, Statistics, Traced};
use pinyard_allocator::device::{DeviceBuf, DeviceError, DevicePool, PoolStream};
use pinyard_allocator::trace::Kind;
use pinyard_allocator::{AtomicFence, Fence};
use pinyard_driver::{Driver, DriverToken, Simulated};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn pool() -> (DevicePool, PoolStream) {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let builder = DevicePool::builder(gpu.clone()).limit(64 * MIB).patience(Duration::ZERO);
    let pool = builder.build().unwrap();
    let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap();
    (pool, stream)
}

#[test]
fn a_limit_is_of_bytes_in_use_and_exact() {
    let (pool, stream) = pool();
    let part = Limit::new(&pool, 1000);
    let one = part.alloc(600, &stream).unwrap();
    match part.alloc(401, &stream).unwrap_err() {
        DeviceError::Share { limit: 1000, wanted: 401, used: 600 } => {}
        other => panic!("{other}"),
    }
    let two = part.alloc(400, &stream).unwrap();
    assert_eq!(part.used(), 1000);
    drop(one);
    assert_eq!(part.used(), 400);
    drop(part.alloc(600, &stream).unwrap());
    two.defer_until(AtomicFence::new().at(0));
    assert_eq!(part.used(), 0);
    // What fails further in takes nothing.
    let wide = Limit::new(&pool, usize::MAX);
    wide.alloc(100 * MIB, &stream).unwrap_err();
    wide.alloc(usize::MAX, &stream).unwrap_err();
    wide.alloc(0, &stream).unwrap_err();
    assert_eq!(wide.used(), 0);
    assert!(pool.alloc(MIB, &stream).is_ok(), "the pool itself has no such limit");
}

#[test]
fn a_limit_holds_with_threads() {
    let (pool, stream) = pool();
    let part = Limit::new(pool, 10 * MIB);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let block = part.alloc(3 * MIB, &stream);
                    assert!(part.used() <= 10 * MIB);
                    drop(block);
                }
            });
        }
    });
    assert_eq!(part.used(), 0);
}

/// Gives out one block at a time; as it goes, and before its drop has returned, another
/// thread is given its memory.
struct Single(Next);

struct Only(Next);

/// What the other thread does.
type Next = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

impl Drop for Only {
    fn drop(&mut self) {
        let next = self.0.lock().unwrap().take();
        if let Some(next) = next {
            next();
        }
    }
}

impl Block for Only {
    fn address(&self) -> u64 {
        4096
    }
    fn defer_until(self, _: Fence) {}
}

impl Allocate for Single {
    type Block = Only;
    type Terms = PoolStream;
    type Error = DeviceError;
    fn alloc(&self, _: usize, _: &PoolStream) -> Result<Only, DeviceError> {
        Ok(Only(self.0.clone()))
    }
}

/// There never were two blocks, so no peak says so.
#[test]
fn the_peak_counts_no_block_whose_memory_is_another_ones_already() {
    let (_pool, stream) = pool();
    let next = Next::default();
    let counted = Arc::new(Statistics::new(Single(next.clone())));
    for deferred in [false, true] {
        let block = counted.alloc(MIB, &stream).unwrap();
        let (other, on) = (counted.clone(), stream.clone());
        *next.lock().unwrap() = Some(Box::new(move || drop(other.alloc(MIB, &on).unwrap())));
        if deferred {
            block.defer_until(AtomicFence::new().at(0));
        } else {
            drop(block);
        }
        let counts = counted.counts();
        assert_eq!((counts.peak_bytes, counts.peak_blocks, counts.live_bytes), (MIB as u64, 1, 0));
    }
    assert_eq!(counted.counts().allocations, 4);
}

#[test]
fn statistics_know_the_exact_peak_of_all_streams() {
    let (pool, stream) = pool();
    let counted = Statistics::new(&pool);
    let mut live = Vec::new();
    for _ in 0..4 {
        live.push(counted.alloc(MIB, &stream).unwrap());
    }
    live.truncate(1);
    counted.alloc(100 * MIB, &stream).unwrap_err();
    live.push(counted.alloc(5, &stream).unwrap());
    let counts = counted.counts();
    assert_eq!((counts.allocations, counts.frees, counts.failures), (5, 3, 1));
    assert_eq!(
        (counts.live_bytes, counts.peak_bytes, counts.peak_blocks),
        (MIB as u64 + 5, 4 * MIB as u64, 4)
    );
    assert_eq!(counts.total_bytes, 4 * MIB as u64 + 5);
    drop(live);
    assert_eq!((counted.counts().live_bytes, counted.counts().frees), (0, 5));
}

#[test]
fn a_trace_of_a_part_balances() {
    let (pool, stream) = pool();
    let part = Traced::new(&pool, 100);
    drop(pool.alloc(9, &stream).unwrap());
    let one = part.alloc(1000, &stream).unwrap();
    drop(part.alloc(2000, &stream).unwrap());
    part.alloc(100 * MIB, &stream).unwrap_err();
    drop(one);
    let events: Vec<_> =
        part.trace().events.into_iter().map(|event| (event.event, event.bytes, event.block)).collect();
    assert_eq!(
        events,
        [
            (Kind::Alloc, 1000, 1),
            (Kind::Alloc, 2000, 2),
            (Kind::Free, 2000, 2),
            (Kind::Oom, 100 * MIB as u64, 0),
            (Kind::Free, 1000, 1),
        ]
    );
}

#[test]
fn retry_asks_as_long_as_it_helps() {
    let (pool, stream) = pool();
    let spare: Mutex<Vec<DeviceBuf>> = Mutex::default();
    for _ in 0..3 {
        spare.lock().unwrap().push(pool.alloc(20 * MIB, &stream).unwrap());
    }
    let asked = AtomicUsize::new(0);
    let retry = Retry::new(&pool, |_, error: &DeviceError| {
        assert!(error.is_shortage());
        asked.fetch_add(1, Relaxed);
        spare.lock().unwrap().pop().is_some()
    });
    let block = retry.alloc(40 * MIB, &stream).unwrap();
    assert_eq!((block.len(), asked.load(Relaxed)), (40 * MIB, 2));
    // One more is freed, then there is nothing left to free.
    retry.alloc(40 * MIB, &stream).unwrap_err();
    assert_eq!(asked.load(Relaxed), 4);
    // What no memory helps is not asked about.
    retry.alloc(0, &stream).unwrap_err();
    assert_eq!(asked.load(Relaxed), 4);
}

#[test]
fn adaptors_compose_in_any_order() {
    let (pool, stream) = pool();
    // Every third allocation fails; one retry each; counted outside and inside.
    let inner = Statistics::new(Limit::new(&pool, 100 * MIB));
    let faulty = Fault::new(&inner, |number, _| number % 3 == 0);
    let tried = AtomicUsize::new(0);
    let outer = Statistics::new(Retry::new(&faulty, |_, _| tried.fetch_add(1, Relaxed) < 1000));
    let mut blocks: Vec<_> = (1..=20).map(|at| outer.alloc(at * 100, &stream).unwrap()).collect();
    assert_eq!(outer.counts().allocations, 20);
    assert_eq!((inner.counts().allocations, inner.counts().failures), (20, 0));
    assert_eq!(faulty.allocations(), 30);
    assert_eq!(tried.load(Relaxed), 10);
    assert_eq!(inner.counts().live_bytes, 21_000);
    assert_eq!(inner.upstream().used(), 21_000);
    // The innermost block is the pool's.
    let inside: &DeviceBuf = blocks[0].get().get().get();
    assert_eq!((inside.ptr(), inside.len()), (blocks[0].ptr(), blocks[0].len()));
    blocks[0].record_use(&stream);
    drop(blocks);
    assert_eq!((outer.counts().live_bytes, inner.counts().live_bytes, pool.stats().live_blocks), (0, 0, 0));
}

/// A fault without a retry reaches the caller, and nothing is counted twice.
#[test]
fn a_fault_is_told_and_costs_nothing() {
    let (pool, stream) = pool();
    let faulty = Fault::new(&pool, |_, bytes| bytes > 1000);
    match faulty.alloc(1001, &stream).unwrap_err() {
        DeviceError::Injected { number: 0, wanted: 1001 } => {}
        other => panic!("{other}"),
    }
    assert!(faulty.alloc(1000, &stream).is_ok());
    assert_eq!(pool.stats().allocations, 1);
}

#[test]
fn what_is_not_used_is_not_in_the_type() {
    // The pool's own block is two words; a limit adds what it must give back.
    assert_eq!(size_of::<DeviceBuf>(), 2 * size_of::<usize>());
    type Limited = <Limit<DevicePool> as Allocate>::Block;
    assert_eq!(size_of::<Limited>(), 4 * size_of::<usize>());
    assert_eq!(
        size_of::<<Fault<DevicePool, fn(u64, usize) -> bool> as Allocate>::Block>(),
        size_of::<DeviceBuf>()
    );
}
