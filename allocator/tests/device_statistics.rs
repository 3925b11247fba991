//! What a device pool says of itself against what it is: a walk over every block
//! finds the counters' sums at any time, the test's own books agree, and all of it is
//! zero in the end.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::{MIB, Random, token, wait_for};
use pinyard_allocator::device::{BlockState, DeviceBuf, DevicePool, MarkKind, PoolStream, Snapshot};
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
