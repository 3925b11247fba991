//! Threads on streams of their own and on each other's, all at once; also under
//! ThreadSanitizer, hence `main`.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::{MIB, Over, Random, wait_for};
use parking_lot::Mutex;
use pinyard_allocator::device::DeviceBuf;
use pinyard_driver::{Call, DevicePtr, Driver, DriverToken, Simulated};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const THREADS: usize = 8;

/// Blocks that are in use, by address: no two overlap.
#[derive(Default)]
struct Book(Mutex<BTreeMap<u64, u64>>);

impl Book {
    fn enter(&self, block: &DeviceBuf) {
        let (start, end) = (block.ptr().0, block.ptr().0 + block.block_bytes() as u64);
        let mut book = self.0.lock();
        if let Some((&at, &other)) = book.range(..end).next_back() {
            assert!(other <= start, "{start:#x}..{end:#x} overlaps {at:#x}..{other:#x}");
        }
        book.insert(start, end);
    }

    fn leave(&self, at: DevicePtr) {
        assert!(self.0.lock().remove(&at.0).is_some());
    }
}

fn stress(over: Over, rounds: usize) {
    let gpu = Simulated::new(1 << 30).running();
    // Never freed: ThreadSanitizer does not see the fence that orders an Arc's end.
    std::mem::forget(gpu.clone());
    let bed = device_common::Bed { driver: gpu.clone(), simulated: Some(gpu.clone()) };
    let pool = over.builder(&bed).limit(192 * MIB).patience(Duration::from_secs(5)).build().unwrap();
    let streams: Arc<Vec<_>> =
        Arc::new((0..THREADS / 2).map(|_| pool.stream(bed.stream()).unwrap()).collect());
    let book = Arc::new(Book::default());
    let passed: Arc<Mutex<Vec<DeviceBuf>>> = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (pool, streams) = (pool.clone(), streams.clone());
            let (book, passed, gpu) = (book.clone(), passed.clone(), gpu.clone());
            thread::spawn(move || {
                let mut random = Random(number as u64);
                let mut live: Vec<DeviceBuf> = Vec::new();
                for round in 0..rounds {
                    let stream = &streams[random.below(streams.len())];
                    match random.below(17) {
                        0..=6 => {
                            let size = if random.below(4) == 0 { 4 * MIB } else { 64 << 10 };
                            if let Ok(block) = pool.alloc(random.size(256, size), stream) {
                                book.enter(&block);
                                live.push(block);
                            }
                        }
                        7..=9 if !live.is_empty() => {
                            let block = live.swap_remove(random.below(live.len()));
                            book.leave(block.ptr());
                        }
                        10 | 11 if !live.is_empty() => {
                            let mut block = live.swap_remove(random.below(live.len()));
                            block.record_use(stream);
                            book.leave(block.ptr());
                        }
                        12 if !live.is_empty() => {
                            passed.lock().push(live.swap_remove(random.below(live.len())));
                        }
                        13 => {
                            if let Some(block) = passed.lock().pop() {
                                live.push(block);
                            }
                        }
                        14 => gpu.kernel(stream.stream(), 20_000, &DriverToken::at_entry()),
                        15 if round % 64 == 0 => {
                            pool.trim(Duration::ZERO);
                        }
                        // A stream that ends at once, and what is left of it.
                        16 => {
                            let token = DriverToken::at_entry();
                            let raw = gpu.stream_create(&token).unwrap();
                            let short = pool.stream(raw).unwrap();
                            for _ in 0..random.below(4) {
                                if let Ok(block) = pool.alloc(random.size(256, MIB), &short) {
                                    book.enter(&block);
                                    live.push(block);
                                }
                            }
                            gpu.kernel(raw, 5_000, &token);
                            if let Some(block) = live.first_mut() {
                                block.record_use(&short);
                            }
                            short.retire().unwrap();
                            // SAFETY: retired.
                            unsafe { gpu.stream_destroy(raw, &token) }.unwrap();
                        }
                        _ if live.len() > 24 => {
                            live.drain(..12).for_each(|block| book.leave(block.ptr()));
                        }
                        _ => {}
                    }
                }
                live.iter().for_each(|block| book.leave(block.ptr()));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    passed.lock().clear();
    wait_for("every block's return", || pool.stats().live_blocks == 0);
    let stats = pool.stats();
    assert_eq!(stats.live_bytes, 0, "{stats:?}");
    assert_eq!(stats.allocations, stats.frees);
    assert!(stats.peak_reserved_bytes <= 192 << 20);
    drop((streams, pool));
    wait_for("everything given back", || {
        let left = gpu.outstanding();
        left.ends_with(" streams") && !left.contains(',')
    });
    assert_eq!(gpu.offences(), Vec::<String>::new());
    assert!(gpu.calls(Call::MemAlloc) + gpu.calls(Call::PhysicalCreate) > 0);
    println!("{over:?}: {stats:?}");
}

fn main() {
    let rounds = std::env::var("PINYARD_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(8000);
    for over in [Over::Device, Over::DeviceEvents, Over::Virtual] {
        stress(over, rounds);
    }
    println!("test result: ok. 3 passed; 0 failed");
}
