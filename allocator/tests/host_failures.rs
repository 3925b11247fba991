//! Every call of the driver fails once under a host pool, of pinned and of managed memory, beside
//! a device pool whose copies and streams its blocks serve: errors are errors, nothing
//! stays but what the one call should have given back, and the pool works once the driver does.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::{MIB, assert_one_is_left, token, wait_for};
use pinyard_allocator::device::{DevicePool, MarkKind};
use pinyard_allocator::{AtomicFence, ManagedSource, Pool, PoolBuf};
use pinyard_driver::{Call, Driver, Simulated};
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::sync::Arc;
use std::time::Duration;

const SLAB: usize = 4 * MIB;
const LIMIT: usize = 6 * SLAB;

#[derive(Clone, Copy, Debug)]
enum Memory {
    Pinned,
    Managed,
}

/// A short life of a pool: how many streams were made for it, and how many allocations worked.
fn script(gpu: &Arc<Simulated>, memory: Memory, marks: MarkKind, patience: Duration) -> (usize, usize) {
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    let builder = match memory {
        Memory::Pinned => Pool::pinned(&registry, gpu.clone()),
        Memory::Managed => Pool::from_source(&registry, ManagedSource::new(gpu.clone(), LIMIT).unwrap()),
    };
    let builder = builder.slab_bytes(SLAB).limit(LIMIT).patience(patience);
    let pool = builder.build().unwrap();
    // What its blocks are for; without it they are used by nobody else.
    let device = DevicePool::builder(gpu.clone()).slab_bytes(SLAB).marks(marks).build().ok();
    let raw = gpu.stream_create(&token()).ok();
    let stream = device.as_ref().zip(raw).and_then(|(device, raw)| device.stream(raw).ok());
    let mut target = stream.as_ref().and_then(|stream| stream.alloc(SLAB).ok());
    let mut live: Vec<(PoolBuf<u8>, u8)> = Vec::new();
    let mut worked = 0;
    for step in 0..48 {
        if live.len() > 5 {
            let (block, byte) = live.swap_remove(step * 7 % live.len());
            let ends = [block[0], block[block.len() - 1]];
            assert_eq!(ends, [byte; 2], "another's bytes at step {step}");
            match (step % 4, &stream, &mut target) {
                (0, Some(stream), Some(target)) => _ = stream.copy_to_device(block, target, 0),
                (1, Some(stream), _) => match stream.fence() {
                    Ok(fence) => block.defer_until(fence),
                    Err(_) => drop(block),
                },
                (2, ..) => block.defer_until(AtomicFence::new().at(0)),
                _ => drop(block),
            }
        }
        if step % 16 == 15 {
            live.clear();
            pool.trim();
        }
        let bytes = [100, 3 * MIB, 40_000, 500_000, 2 * SLAB, MIB][step % 6];
        if let Ok(mut block) = pool.alloc::<u8>(bytes) {
            let last = block.len() - 1;
            (block[0], block[last]) = (step as u8, step as u8);
            live.push((block, step as u8));
            worked += 1;
        }
    }
    drop(live);
    if gpu.failed_at().is_some() {
        // It works again.
        wait_for("the blocks' return", || {
            pool.trim();
            pool.stats().live_blocks == 0 && pool.stats().reserved_bytes == 0
        });
        // Managed memory that was not freed counts.
        let bytes = if gpu.failed_at() == Some(Call::MemFree) { SLAB } else { LIMIT };
        drop(pool.alloc::<u8>(bytes).unwrap());
    }
    (usize::from(raw.is_some()), worked)
}

#[test]
fn every_call_of_the_driver_may_fail_under_a_host_pool() {
    for memory in [Memory::Pinned, Memory::Managed] {
        for marks in [MarkKind::Best, MarkKind::Events] {
            let gpu = Simulated::new(1 << 30).running();
            assert_eq!(script(&gpu, memory, marks, Duration::from_secs(10)), (1, 48), "{memory:?}");
            assert_one_is_left(&gpu, 1, 0, "nothing");
            // Not only out of memory: codes of every kind.
            let mut codes = [2, 1, 999, 700, 400].into_iter().cycle();
            // Until no call is left that has the number.
            for number in 0.. {
                let gpu = Simulated::new(1 << 30).running();
                gpu.fail_at(number, codes.next().unwrap());
                let (streams, _) = script(&gpu, memory, marks, Duration::from_millis(5));
                assert_one_is_left(
                    &gpu,
                    streams,
                    6 * SLAB,
                    &format!("call {number} of {memory:?}, {marks:?}"),
                );
                if gpu.failed_at().is_none() {
                    assert!(number > 20, "{number} calls");
                    break;
                }
            }
        }
    }
}
