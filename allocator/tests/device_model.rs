//! Random use of a device pool against a map of all bytes: what was written by a
//! stream's work is there when its reader's turn comes, whatever was reused between.
//! And every call of the driver fails once: nothing is lost, nothing overlaps, and
//! nothing stays.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::{ALL, MIB, Over, Random, assert_one_is_left, token, wait_for};
use parking_lot::Mutex;
use pinyard_allocator::device::{DeviceBuf, DevicePool, MarkKind, PoolStream};
use pinyard_driver::{Driver, Simulated, Stream};
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone, Debug)]
enum Op {
    Alloc {
        bytes: usize,
        stream: usize,
    },
    Free(prop::sample::Index),
    UseThenFree {
        which: prop::sample::Index,
        stream: usize,
    },
    Kernel {
        stream: usize,
        microseconds: u64,
    },
    Advance {
        microseconds: u64,
    },
    Check(prop::sample::Index),
    Trim,
    /// The stream ends, and another is used instead: asked for before or after.
    Renew {
        stream: usize,
        early: bool,
    },
}

const STREAMS: usize = 4;

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let size =
        (8u32..=22, 0.0..1.0f64).prop_map(|(shift, part)| ((1 << shift) as f64 * (1.0 + part)) as usize);
    let op = prop_oneof![
        8 => (size, 0..STREAMS).prop_map(|(bytes, stream)| Op::Alloc { bytes, stream }),
        4 => any::<prop::sample::Index>().prop_map(Op::Free),
        3 => (any::<prop::sample::Index>(), 0..STREAMS).prop_map(|(which, stream)| Op::UseThenFree { which, stream }),
        3 => (0..STREAMS, 1u64..2000).prop_map(|(stream, microseconds)| Op::Kernel { stream, microseconds }),
        2 => (1u64..1000).prop_map(|microseconds| Op::Advance { microseconds }),
        2 => any::<prop::sample::Index>().prop_map(Op::Check),
        1 => Just(Op::Trim),
        2 => (0..STREAMS, any::<bool>()).prop_map(|(stream, early)| Op::Renew { stream, early }),
    ];
    prop::collection::vec(op, 1..150)
}

struct Live {
    buf: DeviceBuf,
    byte: u8,
    stream: usize,
}

/// Every byte, as the stream's work finds it when its turn comes: what is wrong is noted.
/// Before the block may be another's, since that one's work comes later.
fn check_in_order(gpu: &Simulated, live: &Live, streams: &[PoolStream], wrong: &Arc<Mutex<Vec<String>>>) {
    let (start, bytes, byte, wrong) = (live.buf.ptr().0 as usize, live.buf.len(), live.byte, wrong.clone());
    let look = move || {
        // SAFETY: the simulated device's memory is the process's own, and at this point of
        // its stream's work the block's.
        let memory =
            unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(start), bytes) };
        let pattern = [byte; 4096];
        for (at, part) in memory.chunks(pattern.len()).enumerate() {
            if part != &pattern[..part.len()] {
                wrong.lock().push(format!("{start:#x} of {bytes} bytes, in page {at}: not all {byte:#x}"));
                break;
            }
        }
    };
    gpu.host_function(streams[live.stream].stream(), Box::new(look), &token()).unwrap();
}

/// The same, now.
fn check(gpu: &Simulated, live: &Live, streams: &[PoolStream], wrong: &Arc<Mutex<Vec<String>>>) {
    check_in_order(gpu, live, streams, wrong);
    gpu.stream_synchronize(streams[live.stream].stream(), &token()).unwrap();
    assert_eq!(*wrong.lock(), Vec::<String>::new());
}

/// Another stream goes on with what `old` did, and with its blocks, whatever of it is late.
fn renew(gpu: &Simulated, pool: &DevicePool, old: &mut PoolStream, blocks: Vec<&mut DeviceBuf>, early: bool) {
    let token = token();
    let (raw, event) = (gpu.stream_create(&token).unwrap(), gpu.event_create(&token).unwrap());
    gpu.event_record(event, old.stream(), &token).unwrap();
    gpu.stream_wait_event(raw, event, &token).unwrap();
    let known = early.then(|| pool.stream(raw).unwrap());
    let (handle, ended) = (old.stream(), old.clone());
    ended.retire().unwrap();
    if !early {
        // No handle of the old one is left when the new one is asked for.
        *old = pool.stream(Stream::DEFAULT).unwrap();
    }
    *old = known.unwrap_or_else(|| pool.stream(raw).unwrap());
    blocks.into_iter().for_each(|block| block.record_use(old));
    // SAFETY: retired, and the event is waited for.
    unsafe {
        gpu.stream_destroy(handle, &token).unwrap();
        gpu.event_destroy(event, &token).unwrap();
    }
}

fn fill(gpu: &Simulated, at: &DeviceBuf, byte: u8, stream: &PoolStream) {
    // SAFETY: the block stands until the stream has passed, or is told of its use.
    unsafe { gpu.fill(at.ptr(), byte, at.len(), stream.stream(), &token()) }.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn as_a_map_of_bytes(ops in ops(), virtual_memory: bool, events: bool, limit_mib in 24usize..96) {
        let gpu = Arc::new(Simulated::new(1 << 30));
        let builder = if virtual_memory {
            DevicePool::virtual_memory(gpu.clone(), false).unwrap()
        } else {
            DevicePool::builder(gpu.clone())
        };
        let marks = if events { MarkKind::Events } else { MarkKind::Best };
        // The clock stands still while an allocation waits, so it waits in vain.
        let patience = Duration::from_micros(200);
        let builder = builder.slab_bytes(8 * MIB).limit(limit_mib * MIB).patience(patience);
        let pool = builder.marks(marks).build().unwrap();
        let mut streams: Vec<PoolStream> =
            (0..STREAMS).map(|_| pool.stream(gpu.stream_create(&token()).unwrap()).unwrap()).collect();
        let mut live: Vec<Live> = Vec::new();
        let wrong = Arc::default();
        for (step, op) in ops.into_iter().enumerate() {
            match op {
                Op::Alloc { bytes, stream } => if let Ok(buf) = pool.alloc(bytes, &streams[stream]) {
                    let range = buf.ptr().0..buf.ptr().0 + buf.block_bytes() as u64;
                    for other in &live {
                        let start = other.buf.ptr().0;
                        prop_assert!(range.end <= start || start + other.buf.block_bytes() as u64 <= range.start);
                    }
                    let byte = step as u8;
                    fill(&gpu, &buf, byte, &streams[stream]);
                    live.push(Live { buf, byte, stream });
                },
                Op::Free(which) if !live.is_empty() => {
                    let gone = live.swap_remove(which.index(live.len()));
                    check_in_order(&gpu, &gone, &streams, &wrong);
                }
                Op::UseThenFree { which, stream } if !live.is_empty() => {
                    let gone = live.swap_remove(which.index(live.len()));
                    check(&gpu, &gone, &streams, &wrong);
                    let Live { mut buf, .. } = gone;
                    // Written late, and by a stream that is not its own: were the block
                    // another's by then, that one's bytes would be wrong.
                    fill(&gpu, &buf, 0xee, &streams[stream]);
                    buf.record_use(&streams[stream]);
                }
                Op::Kernel { stream, microseconds } => {
                    gpu.kernel(streams[stream].stream(), microseconds * 1000, &token());
                }
                Op::Advance { microseconds } => gpu.advance(microseconds * 1000),
                Op::Check(which) if !live.is_empty() => check(&gpu, &live[which.index(live.len())], &streams, &wrong),
                Op::Trim => { pool.trim(Duration::ZERO); }
                Op::Renew { stream, early } => {
                    let of_stream = live.iter_mut().filter(|live| live.stream == stream);
                    let blocks = of_stream.map(|live| &mut live.buf).collect();
                    renew(&gpu, &pool, &mut streams[stream], blocks, early);
                }
                Op::Free(_) | Op::UseThenFree { .. } | Op::Check(_) => {}
            }
            prop_assert!(pool.stats().reserved_bytes <= (limit_mib * MIB) as u64);
            prop_assert!(pool.stats().live_blocks >= live.len() as u64);
        }
        for block in &live {
            check(&gpu, block, &streams, &wrong);
        }
        gpu.advance(1_000_000_000);
        prop_assert_eq!(&*wrong.lock(), &Vec::<String>::new());
        drop((live, streams, pool));
        wait_for("everything given back", || {
            gpu.advance(1_000_000);
            gpu.outstanding() == "4 streams"
        });
        prop_assert_eq!(gpu.offences(), Vec::<String>::new());
        prop_assert_eq!(gpu.used_bytes(), 0);
    }
}

/// A short life of a pool: how many streams were made for it, and how many allocations worked.
fn script(gpu: &Arc<Simulated>, over: Over, patience: Duration) -> (usize, usize) {
    let token = token();
    let raw: Vec<_> = (0..2).filter_map(|_| gpu.stream_create(&token).ok()).collect();
    let Ok(builder) = over.try_builder(gpu.clone()) else { return (raw.len(), 0) };
    let builder = builder.limit(24 * MIB).slab_bytes(4 * MIB).patience(patience);
    let Ok(pool) = builder.build() else { return (raw.len(), 0) };
    let streams: Vec<PoolStream> = raw.iter().filter_map(|&raw| pool.stream(raw).ok()).collect();
    let mut random = Random(3);
    let mut live: Vec<DeviceBuf> = Vec::new();
    let mut worked = 0;
    for step in 0..60 {
        let Some(stream) = streams.get(step % 2) else { continue };
        if live.len() > 6 {
            let mut block = live.swap_remove(random.below(live.len()));
            if step % 3 == 0
                && let Some(other) = streams.get((step + 1) % 2)
            {
                block.record_use(other);
            }
            if step % 4 == 1
                && let Ok(fence) = stream.fence()
            {
                block.defer_until(fence);
            }
        }
        if step == 40 {
            live.truncate(2);
            pool.trim(Duration::from_millis(1));
        }
        if let Ok(block) = pool.alloc(random.size(1000, 6 * MIB), stream) {
            for other in &live {
                let (one, two) = (block.ptr().0, other.ptr().0);
                assert!(one + block.block_bytes() as u64 <= two || two + other.block_bytes() as u64 <= one);
            }
            worked += 1;
            live.push(block);
        }
    }
    drop(live);
    // The pool works once the driver does. A call that is still to fail is one of its end.
    if let Some(stream) = streams.first()
        && gpu.failed_at().is_some()
    {
        wait_for("the blocks' return", || pool.stats().live_bytes == 0);
        pool.trim(Duration::from_millis(50));
        pool.alloc(20 * MIB, stream).unwrap();
    }
    (raw.len(), worked)
}

#[test]
fn every_call_of_the_driver_may_fail() {
    for over in ALL {
        let gpu = Simulated::new(1 << 30).running();
        assert_eq!(script(&gpu, over, Duration::from_secs(10)), (2, 60));
        // Not only out of memory: codes of every kind. Until no call is left that has the number.
        for (number, code) in (0..).zip([2, 1, 999, 700, 400].into_iter().cycle()) {
            let gpu = Simulated::new(1 << 30).running();
            gpu.fail_at(number, code);
            let (streams, _) = script(&gpu, over, Duration::from_millis(5));
            assert_one_is_left(&gpu, streams, 8 * MIB, &format!("call {number} over {over:?} with {code}"));
            if gpu.failed_at().is_none() {
                assert!(number > 20, "{over:?}: {number} calls");
                break;
            }
        }
    }
}

#[test]
fn a_warm_pool_calls_no_driver() {
    let gpu = Arc::new(Simulated::new(8 << 30));
    for virtual_memory in [false, true] {
        let builder = if virtual_memory {
            DevicePool::virtual_memory(gpu.clone(), false).unwrap()
        } else {
            DevicePool::builder(gpu.clone())
        };
        let pool = builder.build().unwrap();
        let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
        let round = || {
            let mut random = Random(11);
            let mut live: Vec<DeviceBuf> = Vec::new();
            for _ in 0..20_000 {
                if live.len() == 128 {
                    live.swap_remove(random.below(128));
                }
                live.push(pool.alloc(random.size(256, 16 * MIB), &stream).unwrap());
            }
        };
        // Until fragmentation has settled.
        (0..4).for_each(|_| round());
        let before = gpu.all_calls();
        round();
        assert_eq!(gpu.all_calls(), before);
    }
}
