//! Threads that allocate, free each other's blocks, trim and end, all at once. Also
//! run under ThreadSanitizer, which does not see into the standard library: hence
//! joined threads, a queue of our own, and `main`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, builder, pool};
use parking_lot::{Condvar, Mutex};
use pinyard_allocator::{AllocError, AtomicFence, Bound, Pool, PoolBuf};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
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

/// What one thread hands another, at most 64 at a time. `None` ends it.
struct Queue<T> {
    items: Mutex<VecDeque<Option<T>>>,
    changed: Condvar,
}

impl<T> Queue<T> {
    fn new() -> Self {
        Queue { items: Mutex::new(VecDeque::new()), changed: Condvar::new() }
    }

    fn send(&self, item: Option<T>) {
        let mut items = self.items.lock();
        self.changed.wait_while(&mut items, |items| items.len() == 64);
        items.push_back(item);
        self.changed.notify_all();
    }

    fn receive(&self) -> Option<T> {
        let mut items = self.items.lock();
        self.changed.wait_while(&mut items, |items| items.is_empty());
        self.changed.notify_all();
        items.pop_front().unwrap()
    }
}

type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

fn work<'a>(work: impl FnOnce() + Send + 'a) -> Work<'a> {
    Box::new(work)
}

/// Runs all of `threads` at once and waits for their very end.
fn run(threads: Vec<Work<'_>>) {
    thread::scope(|scope| {
        let threads: Vec<_> = threads.into_iter().map(|thread| scope.spawn(thread)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
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

fn four_threads_churn() {
    let books = Books::new();
    let pool = pool(&books, 256 * MIB);
    let pool = &pool;
    run((1..=4).map(|seed| work(move || churn(pool, seed, 20_000))).collect());
    assert_eq!(pool.stats().live_blocks, 0);
    assert_eq!(pool.stats().allocations, pool.stats().frees);
    pool.trim();
    books.assert_balanced();
}

/// Eight of them, some of whose blocks come in batches, while the limit and what is left change.
fn eight_threads_take_batches_of_a_pool_that_is_relieved() {
    const ROUNDS: usize = 300;
    let books = Books::new();
    books.total.store(256 * MIB, Relaxed);
    let marks = (Bound::Bytes(32 * MIB), Bound::Bytes(64 * MIB));
    let builder = builder(&books, usize::MAX).watermarks(marks.0, marks.1);
    // With a thread of its own the core's last drop is after a fence, which the sanitizer does not see.
    let pool = builder.fence_thread(false).build().unwrap();
    let take = |seed: u64| {
        let (pool, books) = (pool.clone(), &books);
        work(move || {
            let mut random = Random(seed);
            for round in 0..ROUNDS {
                let sizes: Vec<usize> = (0..random.below(9)).map(|_| random.size(15) / 8).collect();
                let tag = seed << 32 | round as u64;
                let mut batch = pool.alloc_batch::<u64>(&sizes).unwrap_or_default();
                batch.iter_mut().for_each(|block| mark(block, tag));
                match random.below(8) {
                    0 => books.others.store(random.below(256) * MIB, Relaxed),
                    // Some blocks fail.
                    1 => pool.set_limit((8 + random.below(24)) * MIB),
                    2 => drop(pool.relieve()),
                    3 => drop(pool.warmup_sizes(&[(100, 10), (5000, 2)])),
                    _ => drop((0..8).map(|_| pool.alloc::<u64>(random.size(11) / 8)).collect::<Vec<_>>()),
                }
                batch.iter().for_each(|block| check(block, tag));
            }
        })
    };
    run((0..8).map(take).collect());
    assert_eq!(pool.stats().live_blocks, 0);
    pool.trim();
    drop(pool);
    books.assert_balanced();
}

/// One allocates, the other frees: bins carry the blocks back.
fn blocks_freed_by_another_thread_come_back() {
    let pool = pool(&Books::new(), 64 * MIB);
    let queue = Queue::<(PoolBuf<u64>, u64)>::new();
    run(vec![
        work(|| {
            while let Some((block, tag)) = queue.receive() {
                check(&block, tag);
            }
        }),
        work(|| {
            for tag in 0..50_000 {
                let mut block = pool.alloc::<u64>(500).unwrap();
                mark(&mut block, tag);
                queue.send(Some((block, tag)));
            }
            queue.send(None);
        }),
    ]);
    let stats = pool.stats();
    assert_eq!((stats.allocations, stats.frees, stats.live_blocks), (50_000, 50_000, 0));
    assert_eq!(stats.slabs, 1, "what was freed elsewhere was used again");
}

/// Threads churn while another takes their magazines away, over and over.
fn trimming_disturbs_nobody() {
    let books = Books::new();
    let pool = pool(&books, 256 * MIB);
    let running = AtomicU64::new(3);
    let (pool, running) = (&pool, &running);
    let churn = |seed| {
        work(move || {
            churn(pool, seed, 10_000);
            running.fetch_sub(1, Relaxed);
        })
    };
    let trim = || {
        while running.load(Relaxed) > 0 {
            pool.trim();
            thread::yield_now();
        }
    };
    // Again where the scheduler let no trim come at the right moment.
    for _ in 0..10 {
        running.store(3, Relaxed);
        run(vec![churn(1), churn(2), churn(3), work(trim)]);
        assert_eq!(pool.stats().live_blocks, 0);
        if books.unmaps.load(Relaxed) > 0 {
            break;
        }
    }
    assert!(books.unmaps.load(Relaxed) > 0, "the trims had something to take");
    pool.trim();
    books.assert_balanced();
}

/// With room for half of what all want, allocations fail cleanly or succeed, and
/// nobody's block is given to somebody else.
fn threads_at_the_limit_take_from_each_other() {
    let books = Books::new();
    let pool = pool(&books, 8 * MIB);
    let refused = AtomicU64::new(0);
    let (pool, refused) = (&pool, &refused);
    let ask = |seed: u64| {
        work(move || {
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
                            assert!(matches!(error, AllocError::Limit { .. }), "{error}");
                            refused.fetch_add(1, Relaxed);
                        }
                    }
                }
                live.iter().for_each(|block| check(block, seed << 32 | round));
            }
        })
    };
    run((1..=4).map(ask).collect());
    assert!(refused.load(Relaxed) > 0, "the limit was reached");
    assert_eq!(pool.stats().live_blocks, 0);
    assert!(pool.stats().peak_reserved_bytes <= 8 * MIB as u64);
    pool.alloc::<u8>(8 * MIB).unwrap();
    pool.trim();
    books.assert_balanced();
}

/// A fence stands for each batch; a device thread signals them in order.
fn deferred_blocks_are_not_reused_before_the_device_is_done() {
    let pool = pool(&Books::new(), 32 * MIB);
    let word = AtomicFence::new();
    // What the device reads: address, tag and sequence number at once.
    let submitted = Queue::<(usize, u64)>::new();
    run(vec![
        work(|| {
            while let Some((address, sequence)) = submitted.receive() {
                let place = std::ptr::with_exposed_provenance::<u64>(address);
                assert_eq!(device_read(place), sequence, "reused before the fence passed");
                word.signal(sequence);
            }
        }),
        work(|| {
            for sequence in 1..=20_000u64 {
                let mut block = pool.alloc::<u64>(1000).unwrap();
                mark(&mut block, sequence);
                submitted.send(Some((block.as_ptr().expose_provenance(), sequence)));
                block.defer_until(word.at(sequence));
            }
            submitted.send(None);
        }),
    ]);
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
fn nothing_is_registered_after_warm_up() {
    let books = Books::new();
    let pool = pool(&books, usize::MAX);
    pool.warmup(48 * MIB).unwrap();
    let after_warm_up = books.registrations.load(Relaxed);
    for step in 0..20 {
        let pool = &pool;
        run((0..2).map(|thread| work(move || churn(pool, step * 2 + thread, 3_000))).collect());
    }
    assert_eq!(books.registrations.load(Relaxed), after_warm_up);
    assert_eq!(books.deregistrations.load(Relaxed), 0);
}

/// A harness of its own: the standard one's threads and channels are in the library
/// that the sanitizer cannot see into.
fn main() {
    let only = std::env::args().nth(1).filter(|argument| !argument.starts_with('-'));
    let tests: [(&str, fn()); 7] = [
        ("four_threads_churn", four_threads_churn),
        (
            "eight_threads_take_batches_of_a_pool_that_is_relieved",
            eight_threads_take_batches_of_a_pool_that_is_relieved,
        ),
        ("blocks_freed_by_another_thread_come_back", blocks_freed_by_another_thread_come_back),
        ("trimming_disturbs_nobody", trimming_disturbs_nobody),
        ("threads_at_the_limit_take_from_each_other", threads_at_the_limit_take_from_each_other),
        (
            "deferred_blocks_are_not_reused_before_the_device_is_done",
            deferred_blocks_are_not_reused_before_the_device_is_done,
        ),
        ("nothing_is_registered_after_warm_up", nothing_is_registered_after_warm_up),
    ];
    let chosen = |name: &str| only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let mut passed = 0;
    for (name, test) in tests.into_iter().filter(|(name, _)| chosen(name)) {
        test();
        println!("test {name} ... ok");
        passed += 1;
    }
    let left_out = tests.len() - passed;
    println!("\ntest result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; {left_out} filtered out");
}
