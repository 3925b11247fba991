//! Threads that allocate, free each other's blocks, trim and end, all at once.
//! Written to be run under ThreadSanitizer too.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, pool, wait_for};
use pinyard_allocator::{AtomicFence, Pool, PoolBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;

const MIB: usize = 1 << 20;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// 64 bytes to `64 << shifts`, log-uniform.
    fn size(&mut self, shifts: usize) -> usize {
        let base = 64 << self.below(shifts);
        base + self.below(base)
    }
}

fn mark(block: &mut PoolBuf<u64>, tag: u64) {
    let last = block.len() - 1;
    for at in [0, last / 2, last] {
        block[at] = tag;
    }
}

fn check(block: &PoolBuf<u64>, tag: u64) {
    let last = block.len() - 1;
    assert!([0, last / 2, last].iter().all(|&at| block[at] == tag), "another owner wrote here");
}

/// Allocates and frees, keeps up to 64 blocks.
fn churn(pool: &Pool, seed: u64, rounds: usize) {
    let mut random = Random(seed);
    let mut live: Vec<(PoolBuf<u64>, u64)> = Vec::new();
    for round in 0..rounds {
        if live.len() < 64 && random.below(5) < 3 {
            let mut block = pool.alloc::<u64>(random.size(11) / 8).unwrap();
            let tag = seed << 32 | round as u64;
            mark(&mut block, tag);
            live.push((block, tag));
        } else if !live.is_empty() {
            let (block, tag) = live.swap_remove(random.below(live.len()));
            check(&block, tag);
        }
    }
    live.iter().for_each(|(block, tag)| check(block, *tag));
}

#[test]
fn four_threads_churn() {
    let books = Books::new();
    let pool = pool(&books, 256 * MIB);
    thread::scope(|scope| {
        for seed in 1..=4 {
            let pool = &pool;
            scope.spawn(move || churn(pool, seed, 20_000));
        }
    });
    assert_eq!(pool.stats().live_blocks, 0);
    assert_eq!(pool.stats().allocations, pool.stats().frees);
    pool.trim();
    books.assert_balanced();
}

/// One allocates, the other frees: bins carry the blocks back.
#[test]
fn blocks_freed_by_another_thread_come_back() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let (send, receive) = mpsc::sync_channel::<(PoolBuf<u64>, u64)>(64);
    thread::scope(|scope| {
        scope.spawn(|| {
            for (block, tag) in receive {
                check(&block, tag);
            }
        });
        for tag in 0..50_000 {
            let mut block = pool.alloc::<u64>(500).unwrap();
            mark(&mut block, tag);
            send.send((block, tag)).unwrap();
        }
        drop(send);
    });
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.frees, stats.live_blocks), (50_000, 50_000, 0));
    assert_eq!(stats.slabs, 1, "what was freed elsewhere was used again");
}

/// Threads churn while another takes their magazines away, over and over.
#[test]
fn trimming_disturbs_nobody() {
    let books = Books::new();
    let pool = pool(&books, 256 * MIB);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let trimmer = scope.spawn(|| {
            let mut trims = 0;
            while !done.load(Relaxed) || trims == 0 {
                pool.trim();
                trims += 1;
                thread::yield_now();
            }
            trims
        });
        let threads: Vec<_> = (1..=3)
            .map(|seed| (seed, &pool))
            .map(|(seed, pool)| scope.spawn(move || churn(pool, seed, 10_000)))
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        done.store(true, Relaxed);
        assert!(trimmer.join().unwrap() > 0);
    });
    assert_eq!(pool.stats().live_blocks, 0);
    pool.trim();
    books.assert_balanced();
}

/// With room for half of what all want, allocations fail cleanly or succeed, and
/// nobody's block is given to somebody else.
#[test]
fn threads_at_the_limit_take_from_each_other() {
    let books = Books::new();
    let pool = pool(&books, 8 * MIB);
    let refused = AtomicU64::new(0);
    thread::scope(|scope| {
        for seed in 1..=4 {
            let (pool, refused) = (&pool, &refused);
            scope.spawn(move || {
                let mut random = Random(seed);
                for round in 0..300 {
                    let mut live = Vec::new();
                    for _ in 0..16 {
                        match pool.alloc::<u64>(random.size(14) / 8) {
                            Ok(mut block) => {
                                mark(&mut block, seed << 32 | round);
                                live.push(block);
                            }
                            Err(error) => {
                                assert!(
                                    matches!(error, pinyard_allocator::AllocError::Limit { .. }),
                                    "{error}"
                                );
                                refused.fetch_add(1, Relaxed);
                            }
                        }
                    }
                    live.iter().for_each(|block| check(block, seed << 32 | round));
                }
            });
        }
    });
    assert_eq!(pool.stats().live_blocks, 0);
    assert!(pool.stats().peak_reserved_bytes <= 8 * MIB as u64);
    pool.alloc::<u8>(8 * MIB).unwrap();
    pool.trim();
    books.assert_balanced();
}

/// A fence stands for each batch; a device thread signals them in order.
#[test]
fn deferred_blocks_are_not_reused_before_the_device_is_done() {
    let books = Books::new();
    let pool = pool(&books, 32 * MIB);
    let word = AtomicFence::new();
    // What the device reads: address, tag, sequence number.
    let (submit, work) = mpsc::sync_channel::<(usize, u64, u64)>(32);
    thread::scope(|scope| {
        scope.spawn(|| {
            for (address, tag, sequence) in work {
                let place = std::ptr::with_exposed_provenance::<u64>(address);
                assert_eq!(device_read(place), tag, "reused before the fence passed");
                word.signal(sequence);
            }
        });
        for sequence in 1..=20_000u64 {
            let mut block = pool.alloc::<u64>(1000).unwrap();
            mark(&mut block, sequence);
            submit.send((block.as_ptr().expose_provenance(), sequence, sequence)).unwrap();
            block.defer_until(word.at(sequence));
        }
        drop(submit);
    });
    pool.poll_fences();
    assert_eq!((pool.stats().frees, pool.stats().live_blocks), (20_000, 0));
}

#[allow(unsafe_code)]
fn device_read(place: *const u64) -> u64 {
    // SAFETY: the block is deferred until the caller signals, so its memory stands
    // and nobody writes it.
    unsafe { place.read() }
}

/// The property that pools are for: whatever the sizes and threads, nothing is
/// registered after warm-up.
#[test]
fn nothing_is_registered_after_warm_up() {
    let books = Books::new();
    let pool = pool(&books, usize::MAX);
    let step = |seed: u64| {
        thread::scope(|scope| {
            for thread in 0..2 {
                let pool = &pool;
                scope.spawn(move || churn(pool, seed * 2 + thread, 3_000));
            }
        });
    };
    pool.warmup(48 * MIB).unwrap();
    let after_warm_up = books.registrations.load(Relaxed);
    for seed in 0..20 {
        step(seed);
    }
    assert_eq!(books.registrations.load(Relaxed), after_warm_up);
    assert_eq!(books.deregistrations.load(Relaxed), 0);
}

/// The pool goes while threads still free: each slab is released once.
#[test]
fn a_pool_that_goes_during_churn() {
    for seed in 0..30 {
        let books = Books::new();
        let first = pool(&books, 64 * MIB);
        let threads: Vec<_> = (0..3)
            .map(|n| {
                let pool = first.clone();
                thread::spawn(move || {
                    churn(&pool, seed * 3 + n, 500);
                    let kept: Vec<_> = (0..10).map(|_| pool.alloc::<u8>(3000).unwrap()).collect();
                    drop(pool);
                    kept
                })
            })
            .collect();
        drop(first);
        for thread in threads {
            drop(thread.join().unwrap());
        }
        wait_for("the release", || books.mapped.lock().unwrap().is_empty());
        books.assert_balanced();
    }
}
