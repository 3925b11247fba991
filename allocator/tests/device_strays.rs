//! Streams that a pool does not expect: another pool's, retired ones, the per-thread one;
//! and what a pool's thread does while a stream is captured or the device is broken.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;
mod resting;

use device_common::{MIB, token};
use pinyard_allocator::device::{CopyError, DeviceError, DevicePool, MarkKind, PoolStream};
use pinyard_allocator::{AtomicFence, Fence, Poll};
use pinyard_driver::{Call, Costs, Driver as _, Simulated, Stream};
use resting::Thread;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

const HOUR: u64 = 3_600_000_000_000;
const ILLEGAL_ADDRESS: i32 = 700;
const NOT_SUPPORTED: i32 = 801;

/// One test at a time: the threads of pools are counted.
static ALONE: Mutex<()> = Mutex::new(());

fn gpu() -> (Arc<Simulated>, MutexGuard<'static, ()>) {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (Arc::new(Simulated::new(1 << 30)), alone)
}

fn pool(gpu: &Arc<Simulated>) -> (DevicePool, PoolStream) {
    let pool = DevicePool::builder(gpu.clone()).patience(Duration::from_millis(50)).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    gpu.synchronize(&token()).unwrap();
    (pool, stream)
}

fn within(time: Duration, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > time {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// It was marked by its number in its own pool, which was another stream's here.
#[test]
fn a_use_by_a_stream_of_another_pool_is_waited_for() {
    let (gpu, _alone) = gpu();
    let ((pool, own), (_other_pool, other)) = (pool(&gpu), pool(&gpu));
    let mut block = own.alloc(64 * MIB).unwrap();
    let at = block.ptr();
    gpu.kernel(other.stream(), HOUR, &token());
    block.record_use(&other);
    block.record_use(&other);
    drop(block);
    // Patience passes in vain: everything else is taken.
    let rest: Vec<_> = std::iter::from_fn(|| own.alloc(64 * MIB).ok()).collect();
    assert!(rest.len() > 2 && rest.iter().all(|block| block.ptr() != at));
    drop(rest);
    gpu.advance(2 * HOUR);
    gpu.synchronize(&token()).unwrap();
    assert!(within(Duration::from_secs(10), || pool.stats().live_blocks == 0), "{:?}", pool.stats());
    let all: Vec<_> = std::iter::from_fn(|| own.alloc(64 * MIB).ok()).collect();
    assert!(all.iter().any(|block| block.ptr() == at));
}

/// A pool of more streams: the number was of none here, and the block never came back.
#[test]
fn a_use_by_the_last_stream_of_a_larger_pool_ends() {
    let (gpu, _alone) = gpu();
    let ((pool, own), (larger, _)) = (pool(&gpu), pool(&gpu));
    let streams = [(); 5].map(|()| another(&larger, &gpu));
    let [.., last] = &streams;
    let mut block = own.alloc(MIB).unwrap();
    block.record_use(last);
    drop(block);
    let free = || {
        gpu.synchronize(&token()).unwrap();
        pool.stats().live_blocks == 0
    };
    assert!(within(Duration::from_secs(10), free), "{:?}", pool.stats());
}

#[test]
fn other_handles_of_a_retired_stream_allocate_and_copy_nothing() {
    let (gpu, _alone) = gpu();
    let (pool, stream) = pool(&gpu);
    let (clone, raw) = (stream.clone(), stream.stream());
    let (kept, mut target) = (stream.alloc(4096).unwrap(), stream.alloc(MIB).unwrap());
    stream.retire().unwrap();
    // What was free, what is dropped later, of either kind, and a row.
    drop(kept);
    for bytes in [4096, 1 << 20] {
        assert!(matches!(clone.alloc(bytes), Err(DeviceError::Retired)));
    }
    assert!(matches!(clone.alloc_batch(&[MIB, MIB]), Err(DeviceError::Retired)));
    let copied = clone.copy_to_device(vec![1u8; 64], &mut target, 0);
    assert!(matches!(copied, Err(CopyError::Retired)), "{copied:?}");
    // The end of its work is what there is to wait for; retiring it again changes nothing.
    gpu.synchronize(&token()).unwrap();
    let mut fence: Fence = clone.fence().unwrap();
    assert!(fence.passed());
    clone.retire().unwrap();
    // The stream itself may come back.
    assert!(pool.stream(raw).unwrap().alloc(4096).is_ok());
}

#[test]
fn the_per_thread_default_stream_is_refused() {
    let (gpu, _alone) = gpu();
    let (pool, _) = pool(&gpu);
    // SAFETY: the driver's own handle; no call gets it.
    let refused = pool.stream(unsafe { Stream::from_raw(2) });
    assert!(matches!(refused, Err(DeviceError::PerThread)), "{refused:?}");
}

/// Marks that nothing waits for are written all the same: a new stream's, a fence's.
#[test]
fn a_pool_that_ends_keeps_its_words_until_the_last_mark() {
    let mut costs = Costs::default();
    costs.free_waits = false;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let gpu = Arc::new(Simulated::with_costs(1 << 30, costs));
    let raw = gpu.stream_create(&token()).unwrap();
    gpu.kernel(raw, HOUR, &token());
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    drop(pool.stream(raw).unwrap());
    drop(pool);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(gpu.calls(Call::HostUnregister), 0);
    gpu.advance(2 * HOUR);
    gpu.synchronize(&token()).unwrap();
    assert!(within(Duration::from_secs(10), || gpu.calls(Call::HostUnregister) == 1));
    assert_eq!(gpu.offences(), Vec::<String>::new());
}

/// What cannot be marked now is asked for ever more seldom: every 5 ms in the end, by a few
/// calls each time.
#[test]
fn a_captured_stream_with_a_dropped_block_costs_few_calls() {
    const LOOKS: u64 = 40;
    let (gpu, _alone) = gpu();
    let before = workers();
    let (pool, own) = pool(&gpu);
    let worker = worker(&before);
    let other = another(&pool, &gpu);
    let raw = other.stream();
    let mut block = own.alloc(MIB).unwrap();
    block.record_use(&other);
    gpu.capture_begin(raw, &token()).unwrap();
    drop(block);
    // From 50 us on, twice as long each time.
    worker.time_of(10);
    let before = gpu.all_calls();
    let took = worker.time_of(LOOKS);
    let calls = gpu.all_calls() - before;
    assert!((1..2 * LOOKS).contains(&calls), "{calls} calls of the driver in {LOOKS} looks");
    // A few sleeps may be of another kind, as for a lock. On a slow machine they last longer.
    assert!(took >= Duration::from_millis(5) * (LOOKS as u32 - 10), "{LOOKS} looks within {took:?}");
    gpu.capture_end(raw, &token()).unwrap();
    assert!(within(Duration::from_secs(10), || pool.stats().live_blocks == 0));
}

/// Runs the test with a pool of each kind of marks.
fn with_each_kind(test: impl Fn(&Arc<Simulated>, DevicePool)) {
    for marks in [MarkKind::Best, MarkKind::Events] {
        let (gpu, _alone) = gpu();
        test(&gpu, DevicePool::builder(gpu.clone()).marks(marks).build().unwrap());
    }
}

fn another(pool: &DevicePool, gpu: &Simulated) -> PoolStream {
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    gpu.synchronize(&token()).unwrap();
    stream
}

/// Nothing runs on a broken device: what waited for it is free, and the pool's thread ends.
#[test]
fn a_broken_device_leaves_no_pool_waiting() {
    let (gpu, _alone) = gpu();
    let (pool, own) = pool(&gpu);
    let other = another(&pool, &gpu);
    let mut block = own.alloc(MIB).unwrap();
    block.record_use(&other);
    gpu.fail_always(ILLEGAL_ADDRESS);
    drop(block);
    assert!(within(Duration::from_secs(10), || pool.stats().live_blocks == 0), "{:?}", pool.stats());
    drop((own, other));
    drop(pool);
    assert!(within(Duration::from_secs(10), || Arc::strong_count(&gpu) == 1), "the pool's thread goes on");
}

/// A reset takes from under the pools what the driver allocated, that of the host's too.
#[test]
fn a_device_that_was_reset_is_not_touched_again() {
    with_each_kind(|gpu, pool| {
        let (own, other) = (another(&pool, gpu), another(&pool, gpu));
        let mut blocks: Vec<_> = (0..8).map(|_| own.alloc(MIB).unwrap()).collect();
        blocks.iter_mut().for_each(|block| block.record_use(&other));
        gpu.kernel(other.stream(), HOUR, &token());
        // Some wait for the other stream, some are free, some in use.
        blocks.truncate(6);
        drop(own.alloc(4 * MIB).unwrap());
        gpu.reset();
        blocks.truncate(3);
        let error = own.alloc(512 * MIB).unwrap_err();
        let cause = match &error {
            DeviceError::Driver(cause) => cause.is_context_lost(),
            other => other.to_string().contains("709"),
        };
        assert!(cause, "{error}");
        drop((blocks, own, other, pool));
        assert!(within(Duration::from_secs(10), || Arc::strong_count(gpu) == 1), "a pool's thread goes on");
        assert_eq!(gpu.offences(), Vec::<String>::new());
    });
}

/// A mark that was made before the reset is not written any more.
#[test]
fn a_reset_frees_what_waited_for_a_mark() {
    with_each_kind(|gpu, pool| {
        let (own, other) = (another(&pool, gpu), another(&pool, gpu));
        let mut block = own.alloc(MIB).unwrap();
        block.record_use(&other);
        gpu.kernel(other.stream(), HOUR, &token());
        drop(block);
        let marked = || gpu.calls(Call::StreamWriteValue) + gpu.calls(Call::EventRecord) > 0;
        assert!(within(Duration::from_secs(10), marked), "the pool's thread marks the other stream");
        assert!(within(Duration::from_secs(10), || pool.stats().waiting_blocks == 1), "{:?}", pool.stats());
        gpu.reset();
        assert!(within(Duration::from_secs(10), || pool.stats().waiting_blocks == 0), "{:?}", pool.stats());
        drop((own, other, pool));
        assert!(within(Duration::from_secs(10), || Arc::strong_count(gpu) == 1), "a pool's thread goes on");
        assert_eq!(gpu.offences(), Vec::<String>::new());
    });
}

/// No block waits, so the pool's thread sleeps. The call of `passed` must notice the reset.
#[test]
fn a_reset_passes_a_fence() {
    with_each_kind(|gpu, pool| {
        let own = another(&pool, gpu);
        gpu.kernel(own.stream(), HOUR, &token());
        let mut fence = own.fence().unwrap();
        assert!(!fence.passed());
        gpu.reset();
        let mut asked = 0;
        assert!(
            within(Duration::from_secs(10), || {
                asked += 1;
                fence.passed()
            }),
            "asked {asked} times"
        );
        assert_eq!(gpu.offences(), Vec::<String>::new());
    });
}

/// Where the driver pins no memory of the process's, streams are marked by events.
#[test]
fn a_pool_without_words_does_with_events() {
    let (gpu, _alone) = gpu();
    gpu.fail_next(Call::HostRegister, 1, NOT_SUPPORTED);
    let (pool, own) = pool(&gpu);
    let other = another(&pool, &gpu);
    let mut block = own.alloc(MIB).unwrap();
    block.record_use(&other);
    gpu.kernel(other.stream(), 1000, &token());
    drop(block);
    gpu.synchronize(&token()).unwrap();
    assert!(within(Duration::from_secs(10), || pool.stats().waiting_blocks == 0), "{:?}", pool.stats());
    assert_eq!(gpu.calls(Call::StreamWriteValue), 0);
    assert!(gpu.calls(Call::EventRecord) > 0);
}

/// A block that outlives its pool: the thread sleeps, and the block's drop still ends it.
#[test]
fn a_closed_pool_with_a_block_left_sleeps() {
    let (gpu, _alone) = gpu();
    let before = workers();
    let (pool, own) = pool(&gpu);
    let worker = worker(&before);
    let block = own.alloc(MIB).unwrap();
    drop((own, pool));
    // From 50 us on, twice as long each time, to a quarter of a second.
    worker.time_of(14);
    let took = worker.time_of(3);
    assert!(took >= Duration::from_millis(500), "three looks within {took:?}");
    drop(block);
    assert!(within(Duration::from_secs(10), || gpu.used_bytes() == 0));
}

/// The threads of pools.
fn workers() -> BTreeSet<Thread> {
    Thread::all("pinyard-device").into_iter().collect()
}

/// The thread of a pool that was made since.
fn worker(before: &BTreeSet<Thread>) -> Thread {
    let new = || workers().difference(before).next().cloned();
    assert!(within(Duration::from_secs(10), || new().is_some()));
    new().unwrap()
}

/// It ended the pool's thread, with the blocks of others in its hands.
#[test]
fn a_fence_that_panics_takes_its_own_block_alone() {
    struct Panics;
    impl Poll for Panics {
        fn passed(&mut self) -> bool {
            panic!("a bug of the fence's")
        }
    }
    let (gpu, _alone) = gpu();
    let (pool, own) = pool(&gpu);
    let word = AtomicFence::new();
    own.alloc(MIB).unwrap().defer_until(word.at(1));
    own.alloc(MIB).unwrap().defer_until(Fence::poll(Panics));
    own.alloc(MIB).unwrap().defer_until(word.at(1));
    assert!(within(Duration::from_secs(30), || pool.stats().waiting_blocks == 2), "{:?}", pool.stats());
    word.signal(1);
    assert!(within(Duration::from_secs(30), || pool.stats().waiting_blocks == 0), "{:?}", pool.stats());
    assert_eq!(pool.stats().live_blocks, 1);
}

/// Who gathers from all streams had looked whether they are retired a while before.
#[test]
fn a_stream_that_is_retired_is_used_by_no_other_thread() {
    let (gpu, _alone) = gpu();
    let pool = DevicePool::builder(gpu.clone()).limit(256 * MIB).patience(Duration::ZERO).build().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (pool, gpu, stop) = (&pool, &gpu, &stop);
            scope.spawn(move || {
                let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
                let mut live = Vec::new();
                for step in 0_usize.. {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    live.extend(stream.alloc((1 + (step * 7 + seed) % 13) * MIB / 2));
                    if live.len() > 12 {
                        live.swap_remove(step % 12);
                    }
                }
            });
        }
        for _ in 0..300 {
            let raw = gpu.stream_create(&token()).unwrap();
            let stream = pool.stream(raw).unwrap();
            let clone = stream.clone();
            let other = scope.spawn(move || {
                (1..).map(|step| clone.alloc((1 + step % 13) * MIB)).find_map(|block| match block {
                    Err(DeviceError::Retired) => Some(()),
                    _ => None,
                })
            });
            for megabytes in 1..4 {
                drop(stream.alloc(megabytes * MIB));
            }
            stream.retire().unwrap();
            // SAFETY: nobody uses it any more.
            unsafe { gpu.stream_destroy(raw, &token()) }.unwrap();
            other.join().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(gpu.offences(), Vec::<String>::new());
}
