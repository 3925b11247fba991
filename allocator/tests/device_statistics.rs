//! What a device pool says of itself against what it is: a walk over every block
//! finds the counters' sums at any time, the test's own books agree, and all of it is
//! zero in the end.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::{MIB, Random, token, wait_for};
use pinyard_allocator::device::{
    BlockState, DeviceBuf, DevicePool, MarkKind, PoolStream, Snapshot, TraceOptions,
};
use pinyard_allocator::trace::Kind;
use pinyard_driver::{Call, Driver, Simulated};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const STREAMS: usize = 3;

/// The blocks of a snapshot against its counters.
fn check(snapshot: &Snapshot) {
    let sums = snapshot.statistics.sums;
    let sum = |states: &[BlockState], of: &dyn Fn(&pinyard_allocator::device::BlockSnapshot) -> u64| -> u64 {
        snapshot.blocks.iter().filter(|block| states.contains(&block.state)).map(of).sum()
    };
    let used = [BlockState::Live, BlockState::Dropped];
    assert_eq!(sum(&used, &|block| block.bytes), sums.live_bytes);
    assert_eq!(sum(&used, &|block| block.wanted), sums.wanted_bytes);
    assert_eq!(sum(&used, &|_| 1), sums.live_blocks);
    assert_eq!(sums.allocations - sums.frees, sums.live_blocks);
    assert_eq!(sum(&[BlockState::Free, BlockState::Cached], &|block| block.bytes), sums.free_bytes);
    assert_eq!(sum(&[BlockState::Waiting], &|block| block.bytes), sums.waiting_bytes);
    assert_eq!(sum(&[BlockState::Dropped], &|_| 1), sums.waiting_blocks);
    assert!(snapshot.blocks.iter().all(|block| (block.wanted > 0) == used.contains(&block.state)));
    assert!(snapshot.blocks.iter().all(|block| block.wanted <= block.bytes));
    // Every byte of every slab is in one block, but for the rest of a span.
    for pair in snapshot.blocks.windows(2) {
        assert!(pair[0].address + pair[0].bytes <= pair[1].address, "{pair:?}");
    }
    let slabs: u64 = snapshot.slabs.iter().map(|slab| slab.bytes).sum();
    let blocks: u64 = snapshot.blocks.iter().map(|block| block.bytes).sum();
    assert!(blocks <= slabs && slabs <= sums.reserved_bytes, "{blocks} in {slabs}");
    assert_eq!(snapshot.slabs.len() as u64, sums.slabs);
    // By stream and by size it is the same.
    let statistics = &snapshot.statistics;
    let streams = &statistics.streams;
    assert_eq!(streams.iter().map(|stream| stream.live_bytes).sum::<u64>(), sums.live_bytes);
    assert_eq!(streams.iter().map(|stream| stream.wanted_bytes).sum::<u64>(), sums.wanted_bytes);
    assert_eq!(streams.iter().map(|stream| stream.allocations).sum::<u64>(), sums.allocations);
    assert_eq!(streams.iter().map(|stream| stream.frees).sum::<u64>(), sums.frees);
    for stream in streams {
        let of = |block: &&pinyard_allocator::device::BlockSnapshot| {
            used.contains(&block.state) && block.stream == Some(stream.id)
        };
        assert_eq!(
            snapshot.blocks.iter().filter(of).map(|block| block.bytes).sum::<u64>(),
            stream.live_bytes
        );
        assert!(stream.live_bytes <= stream.peak_live_bytes);
        let hits = stream.hits;
        let found = hits.cache + hits.pool + hits.settled + hits.others + hits.growth + hits.squeeze;
        assert_eq!(found, stream.allocations);
    }
    assert_eq!(statistics.sizes.iter().map(|size| size.allocations).sum::<u64>(), sums.allocations);
    assert_eq!(statistics.sizes.iter().map(|size| size.frees).sum::<u64>(), sums.frees);
    assert_eq!(statistics.sizes.iter().map(|size| size.live_bytes).sum::<u64>(), sums.live_bytes);
    assert!((0.0..=1.0).contains(&statistics.fragmentation), "{}", statistics.fragmentation);
    assert!((0.0..=1.0).contains(&statistics.efficiency), "{}", statistics.efficiency);
}

#[derive(Clone, Debug)]
enum Op {
    Alloc { bytes: usize, stream: usize },
    Batch { sizes: Vec<usize>, stream: usize },
    Free(prop::sample::Index),
    UseThenFree { which: prop::sample::Index, stream: usize },
    Kernel { stream: usize },
    Advance,
    Trim,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let size =
        (4u32..=22, 0.0..1.0f64).prop_map(|(shift, part)| ((1 << shift) as f64 * (1.0 + part)) as usize);
    let op = prop_oneof![
        8 => (size, 0..STREAMS).prop_map(|(bytes, stream)| Op::Alloc { bytes, stream }),
        2 => (prop::collection::vec(20_000usize..2 << 20, 1..6), 0..STREAMS)
            .prop_map(|(sizes, stream)| Op::Batch { sizes, stream }),
        5 => any::<prop::sample::Index>().prop_map(Op::Free),
        2 => (any::<prop::sample::Index>(), 0..STREAMS).prop_map(|(which, stream)| Op::UseThenFree { which, stream }),
        2 => (0..STREAMS).prop_map(|stream| Op::Kernel { stream }),
        1 => Just(Op::Advance),
        1 => Just(Op::Trim),
    ];
    prop::collection::vec(op, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn the_counters_are_a_walk_over_the_heap(ops in ops(), virtual_memory: bool, events: bool) {
        let gpu = Arc::new(Simulated::new(1 << 30));
        let builder = if virtual_memory {
            DevicePool::virtual_memory(gpu.clone(), false).unwrap()
        } else {
            DevicePool::builder(gpu.clone())
        };
        let marks = if events { MarkKind::Events } else { MarkKind::Best };
        let builder = builder.slab_bytes(8 * MIB).limit(48 * MIB).patience(Duration::from_micros(200));
        let pool = builder.marks(marks).build().unwrap();
        let streams: Vec<PoolStream> =
            (0..STREAMS).map(|_| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap()).collect();
        let mut live: Vec<DeviceBuf> = Vec::new();
        let (mut allocations, mut failures, mut used) = (0, 0, 0);
        let mut peak = 0;
        for (step, op) in ops.into_iter().enumerate() {
            match op {
                Op::Alloc { bytes, stream } => match pool.alloc(bytes, &streams[stream]) {
                    Ok(buf) => {
                        allocations += 1;
                        live.push(buf);
                    }
                    Err(_) => failures += 1,
                },
                // One that fails gives back what it had; how much it had is not told.
                Op::Batch { sizes, stream } => {
                    let before = pool.stats();
                    match pool.alloc_batch(&sizes, &streams[stream]) {
                        Ok(batch) => live.extend(batch),
                        Err(_) => failures += 1,
                    }
                    allocations += pool.stats().allocations - before.allocations;
                }
                Op::Free(which) if !live.is_empty() => {
                    live.swap_remove(which.index(live.len()));
                }
                Op::UseThenFree { which, stream } if !live.is_empty() => {
                    let mut buf = live.swap_remove(which.index(live.len()));
                    buf.record_use(&streams[stream]);
                    used += 1;
                }
                Op::Kernel { stream } => gpu.kernel(streams[stream].stream(), 100_000, &token()),
                Op::Advance => gpu.advance(50_000),
                Op::Trim => { pool.trim(Duration::ZERO); }
                Op::Free(_) | Op::UseThenFree { .. } => {}
            }
            let sums = if step % 4 == 0 {
                let snapshot = pool.snapshot();
                check(&snapshot);
                snapshot.statistics.sums
            } else {
                pool.stats()
            };
            prop_assert_eq!(sums.allocations, allocations);
            prop_assert_eq!(sums.hits.failures, failures);
            let blocks = live.iter().map(|buf| (buf.len() as u64, buf.block_bytes() as u64));
            let (wanted, bytes) = blocks.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            peak = peak.max(bytes);
            prop_assert!(sums.peak_live_bytes >= peak && sums.live_bytes >= bytes);
            // Those that others use count until these have passed.
            if used == 0 {
                prop_assert_eq!((sums.wanted_bytes, sums.live_bytes), (wanted, bytes));
            }
        }
        drop(live);
        wait_for("all free", || {
            gpu.advance(1_000_000);
            pool.stats().live_blocks == 0
        });
        let statistics = pool.statistics();
        check(&pool.snapshot());
        let sums = statistics.sums;
        prop_assert_eq!((sums.live_bytes, sums.wanted_bytes, sums.frees), (0, 0, allocations));
        // But for the ends of spans that no block of their class fills.
        prop_assert!(sums.free_bytes + sums.waiting_bytes <= sums.reserved_bytes);
        prop_assert!(statistics.sizes.iter().all(|size| size.allocations == size.frees && size.wanted_bytes == 0));
        wait_for("all given back", || {
            gpu.advance(1_000_000);
            pool.trim(Duration::ZERO);
            pool.stats().reserved_bytes == 0
        });
        let snapshot = pool.snapshot();
        prop_assert!(snapshot.blocks.is_empty() && snapshot.slabs.is_empty(), "{:?}", snapshot);
        // What the pool asked the driver for.
        let calls = pool.statistics().driver_calls;
        for call in [Call::MemAlloc, Call::MemFree, Call::PhysicalCreate, Call::PhysicalRelease,
                     Call::StreamWriteValue, Call::StreamWaitValue, Call::EventRecord, Call::HostAlloc] {
            prop_assert_eq!(calls.get(&call.to_string()).copied().unwrap_or(0), gpu.calls(call), "{}", call);
        }
    }
}

#[test]
fn a_snapshot_is_of_one_moment_whatever_threads_do() {
    let gpu = Simulated::new(1 << 30).running();
    let pool = DevicePool::builder(gpu.clone()).slab_bytes(4 * MIB).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4)
        .map(|seed| {
            let (pool, gpu, stop) = (pool.clone(), gpu.clone(), stop.clone());
            thread::spawn(move || {
                let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
                let mut random = Random(seed);
                let mut live: Vec<DeviceBuf> = Vec::new();
                while !stop.load(Relaxed) {
                    if live.len() > 40 {
                        live.swap_remove(random.below(live.len()));
                    }
                    live.push(pool.alloc(random.size(100, 200_000), &stream).unwrap());
                }
            })
        })
        .collect();
    for _ in 0..80 {
        let snapshot = pool.snapshot();
        let sums = snapshot.statistics.sums;
        let of = |state| snapshot.blocks.iter().filter(move |block| block.state == state);
        assert_eq!(of(BlockState::Live).map(|block| block.bytes).sum::<u64>(), sums.live_bytes);
        assert_eq!(of(BlockState::Live).map(|block| block.wanted).sum::<u64>(), sums.wanted_bytes);
        assert_eq!(of(BlockState::Live).count() as u64, sums.live_blocks);
        let free = of(BlockState::Free).chain(of(BlockState::Cached));
        assert_eq!(free.map(|block| block.bytes).sum::<u64>(), sums.free_bytes);
        for pair in snapshot.blocks.windows(2) {
            assert!(pair[0].address + pair[0].bytes <= pair[1].address, "{pair:?}");
        }
    }
    stop.store(true, Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let snapshot = pool.snapshot();
    check(&snapshot);
    assert_eq!((snapshot.statistics.sums.live_bytes, snapshot.statistics.sums.wanted_bytes), (0, 0));
}

#[test]
fn what_busy_streams_share_is_counted_where_it_lies() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let builder = DevicePool::builder(gpu.clone()).stall(Duration::from_secs(3600));
    let pool = builder.trace(TraceOptions::default()).build().unwrap();
    let [one, other, third] = [0; 3].map(|_| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap());
    for stream in [&one, &other] {
        stream.fence().unwrap();
        gpu.stream_synchronize(stream.stream(), &token()).unwrap();
    }
    let block = one.alloc(64 * MIB).unwrap();
    gpu.kernel(one.stream(), 5_000_000, &token());
    drop(block);
    let mut live = vec![other.alloc(16 * MIB).unwrap()];
    // By now it waits for the hub: what follows is taken there under the pool's lock.
    live.push(other.alloc(8 * MIB).unwrap());
    live.extend(other.alloc_batch(&[2 * MIB, 3 * MIB]).unwrap());
    // One that has not waited yet, and need not lend.
    live.push(third.alloc(4 * MIB).unwrap());
    let snapshot = pool.snapshot();
    check(&snapshot);
    let statistics = &snapshot.statistics;
    assert_eq!((statistics.sums.growths, statistics.sums.holds), (1, 1), "{statistics:?}");
    assert_eq!(statistics.sums.free_bytes, (64 - 33) * MIB as u64);
    let of = |id| statistics.streams.iter().find(|stream| stream.id == id).unwrap();
    assert_eq!((of(other.id()).hits.others, of(other.id()).allocations), (4, 4));
    assert_eq!((of(third.id()).hits.others, of(third.id()).allocations), (1, 1));
    // The rest is the hub's, a stream that allocates nothing.
    let [hub] = statistics.streams.iter().filter(|stream| stream.kept_bytes > 0).collect::<Vec<_>>()[..]
    else {
        panic!("{statistics:?}")
    };
    assert!(hub.id != one.id() && hub.id != other.id() && hub.allocations == 0, "{statistics:?}");
    let free = snapshot.blocks.iter().filter(|block| block.state == BlockState::Free);
    assert!(free.clone().count() > 0 && free.clone().all(|block| block.stream == Some(hub.id)));
    let count = |kind| pool.trace().events.iter().filter(|event| event.event == kind).count();
    assert_eq!((count(Kind::Alloc), count(Kind::Wait), count(Kind::Free)), (6, 2, 1));
    drop(live);
    assert_eq!(count(Kind::Free), 6);
    assert_eq!((pool.stats().live_bytes, pool.stats().wanted_bytes), (0, 0));
}

/// A request tries every few milliseconds: it is one allocation all the same.
#[test]
fn a_request_counts_once_however_often_it_tries() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let builder = DevicePool::builder(gpu.clone()).limit(64 * MIB).patience(Duration::from_micros(200));
    let pool = builder.trace(TraceOptions::default()).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let held = stream.alloc(48 * MIB).unwrap();
    let served = Arc::new(AtomicBool::new(false));
    let tell = served.clone();
    stream.alloc_then(40 * MIB, move |block| tell.store(block.is_ok(), Relaxed));
    thread::sleep(Duration::from_millis(60));
    let count = |kind| pool.trace().events.iter().filter(|event| event.event == kind).count();
    let waits = pool.stats();
    assert_eq!((waits.hits.failures, waits.squeezes, waits.allocations), (0, 0, 1), "{waits:?}");
    assert_eq!((count(Kind::Wait), count(Kind::Oom), count(Kind::Alloc)), (1, 0, 1));
    drop(held);
    wait_for("the request", || {
        gpu.advance(10_000);
        served.load(Relaxed) && pool.stats().live_blocks == 0
    });
    check(&pool.snapshot());
    assert_eq!((count(Kind::Wait), count(Kind::Oom), count(Kind::Alloc), count(Kind::Free)), (1, 0, 2, 2));
    // Hopeless: refused at once, which is a failure, and one.
    stream.alloc_then(65 * MIB, |block| assert!(block.is_err()));
    assert_eq!((pool.stats().hits.failures, count(Kind::Oom)), (1, 1));
    assert!(stream.alloc(65 * MIB).is_err());
    assert_eq!((pool.stats().hits.failures, count(Kind::Oom)), (2, 2));
}

#[test]
fn a_snapshot_survives_json() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let _blocks: Vec<_> = [100, 40_000, 3 * MIB].map(|bytes| pool.alloc(bytes, &stream).unwrap()).into();
    let snapshot = pool.snapshot();
    let text = serde_json::to_string_pretty(&snapshot).unwrap();
    assert!(text.contains("\"format\": \"pinyard-snapshot\"") && text.contains("\"version\": 1"));
    assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
    let wanted: Vec<u64> =
        snapshot.blocks.iter().map(|block| block.wanted).filter(|&bytes| bytes > 0).collect();
    assert_eq!(wanted.iter().sum::<u64>(), (100 + 40_000 + 3 * MIB) as u64);
    assert!(snapshot.statistics.fragmentation > 0.0, "{:?}", snapshot.statistics);
}
