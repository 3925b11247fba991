//! Host pools that are short of memory: whom they wait for, what they give back, whom they
//! tell; and deferred blocks that nobody asks after.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, builder, wait_for};
use parking_lot::Mutex;
use pinyard_allocator::{AllocError, AtomicFence, Builder, Fence, Poll, Pool};
use pinyard_driver::Simulated;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// Passes a while after somebody has begun to ask, so that whoever asks once is too early.
struct Slow {
    asked: Arc<AtomicUsize>,
    passes_at: usize,
}

impl Poll for Slow {
    fn passed(&mut self) -> bool {
        self.asked.fetch_add(1, SeqCst) >= self.passes_at
    }

    fn any_thread(&self) -> bool {
        false // so that only the allocation asks it
    }
}

fn slow(passes_at: usize) -> (Fence, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    (Fence::poll(Slow { asked: asked.clone(), passes_at }), asked)
}

/// Host memory and (simulated) pinned memory.
fn both(run: impl Fn(Builder)) {
    let books = Books::new();
    run(builder(&books, 2 * MIB));
    books.assert_balanced();
    let registry = common::registry(common::backend(&Books::new()));
    run(Pool::pinned(&registry, Simulated::new(64 * MIB).running()).slab_bytes(2 * MIB).limit(2 * MIB));
}

#[test]
fn an_allocation_at_the_limit_waits_for_a_deferred_block() {
    both(|builder| {
        let pool = builder.patience(LONG).build().unwrap();
        let (fence, asked) = slow(20);
        pool.alloc::<u8>(2 * MIB).unwrap().defer_until(fence);
        drop(pool.alloc::<u8>(2 * MIB).unwrap());
        assert_eq!((asked.load(SeqCst), pool.stats().slabs), (21, 1));
    });
}

#[test]
fn an_allocation_that_the_source_refuses_waits_for_a_deferred_block() {
    let books = Books::new();
    let pool = builder(&books, usize::MAX).patience(LONG).build().unwrap();
    books.budget.store(4 * MIB, SeqCst);
    let (fence, _) = slow(20);
    // Not the length that is wanted: the slab is traded for a longer one.
    pool.alloc::<u8>(2 * MIB).unwrap().defer_until(fence);
    drop(pool.alloc::<u8>(4 * MIB).unwrap());
    assert_eq!((pool.stats().slabs, books.unmaps.load(SeqCst)), (1, 1));
}

/// It waits for no fence longer than it needs to.
#[test]
fn a_fence_that_never_passes_holds_up_no_shortage() {
    let books = Books::new();
    let pool = builder(&books, 4 * MIB).patience(LONG).build().unwrap();
    let never = AtomicFence::new();
    let (fence, _) = slow(10);
    pool.alloc::<u8>(2 * MIB).unwrap().defer_until(never.at(1));
    pool.alloc::<u8>(2 * MIB).unwrap().defer_until(fence);
    let block = pool.alloc::<u8>(2 * MIB).unwrap();
    assert_eq!(pool.stats().deferred_blocks, 1);
    drop(block);
    never.signal(1);
}

#[test]
fn patience_ends_and_the_error_counts_what_waits() {
    both(|builder| {
        let patience = Duration::from_millis(30);
        let pool = builder.patience(patience).build().unwrap();
        let never = AtomicFence::new();
        pool.alloc::<u8>(2 * MIB).unwrap().defer_until(never.at(1));
        let began = Instant::now();
        let error = pool.alloc::<u8>(4096).unwrap_err();
        assert!(matches!(error, AllocError::Limit { deferred: 1, .. }), "{error}");
        assert!(began.elapsed() >= patience);
        never.signal(1);
    });
}

/// What no fence can mend is refused at once: with a patience that no test would survive.
#[test]
fn nobody_waits_in_vain() {
    let pool = builder(&Books::new(), 4 * MIB).patience(Duration::MAX).build().unwrap();
    let never = AtomicFence::new();
    pool.alloc::<u8>(4096).unwrap().defer_until(never.at(1));
    let _kept = pool.alloc::<u8>(2 * MIB).unwrap();
    // Beyond the limit; and beyond all that is not in use for good.
    assert!(matches!(pool.alloc::<u8>(6 * MIB), Err(AllocError::Limit { .. })));
    assert!(matches!(pool.alloc::<u8>(4 * MIB), Err(AllocError::Limit { .. })));
    never.signal(1);
}

#[test]
fn a_squeeze_gives_back_only_the_slabs_that_it_needs() {
    let books = Books::new();
    let pool = builder(&books, 16 * MIB).build().unwrap();
    // Seven slabs of 2 MiB, all free, and room for one more.
    drop((0..7).map(|_| pool.alloc::<u8>(2 * MIB).unwrap()).collect::<Vec<_>>());
    let long = pool.alloc::<u8>(6 * MIB).unwrap();
    assert_eq!((books.unmaps.load(SeqCst), pool.stats().slabs), (2, 6));
    drop(long);
    // The longest first: 6 and 2 MiB.
    drop(pool.alloc::<u8>(8 * MIB).unwrap());
    assert_eq!((books.unmaps.load(SeqCst), pool.stats().slabs), (4, 5));
}

/// Nobody uses the pool; the block comes back all the same.
#[test]
fn deferred_blocks_come_back_while_nobody_uses_the_pool() {
    both(|builder| {
        let pool = builder.build().unwrap();
        let word = AtomicFence::new();
        for value in 1..=3 {
            pool.alloc::<u8>(1000).unwrap().defer_until(word.at(value));
            assert_eq!(pool.stats().deferred_blocks, 1);
            word.signal(value);
            wait_for("the block's return", || pool.stats().live_blocks == 0);
        }
    });
}

/// Keeps who asks it.
struct Asked(Arc<Mutex<Vec<ThreadId>>>, bool);

impl Poll for Asked {
    fn passed(&mut self) -> bool {
        self.0.lock().push(thread::current().id());
        false
    }

    fn any_thread(&self) -> bool {
        self.1
    }
}

#[test]
fn the_pools_thread_asks_only_what_any_thread_may() {
    let pool = builder(&Books::new(), 64 * MIB).build().unwrap();
    let [mine, anybodys] = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
    pool.alloc::<u8>(1000).unwrap().defer_until(Fence::poll(Asked(mine.clone(), false)));
    // All of them together: as the strictest.
    let mixed = vec![AtomicFence::new().at(0), Fence::poll(Asked(mine.clone(), false))];
    pool.alloc::<u8>(1000).unwrap().defer_until(Fence::poll(mixed));
    pool.alloc::<u8>(1000).unwrap().defer_until(Fence::poll(Asked(anybodys.clone(), true)));
    wait_for("the pool's thread", || anybodys.lock().len() > 10);
    assert!(mine.lock().is_empty());
    pool.poll_fences();
    assert_eq!(*mine.lock(), [thread::current().id(); 2]);
}

/// A fence that panics on the pool's thread costs its own block and nobody else.
#[test]
fn a_fence_that_panics_does_not_end_the_pools_thread() {
    struct Panics(Arc<AtomicBool>);
    impl Poll for Panics {
        fn passed(&mut self) -> bool {
            self.0.store(true, SeqCst);
            panic!("a bug of the fence's")
        }
    }
    let pool = builder(&Books::new(), 64 * MIB).build().unwrap();
    let asked = Arc::new(AtomicBool::new(false));
    pool.alloc::<u8>(1000).unwrap().defer_until(Fence::poll(Panics(asked.clone())));
    wait_for("the panic", || asked.load(SeqCst) && pool.stats().deferred_blocks == 0);
    pool.alloc::<u8>(1000).unwrap().defer_until(AtomicFence::new().at(0));
    wait_for("the other block", || pool.stats().live_blocks == 1);
}

/// With no lock held, and once per shortage; what it frees is found.
#[test]
fn observers_of_a_shortage_can_mend_it() {
    let pool = builder(&Books::new(), 2 * MIB).build().unwrap();
    let cache = Arc::new(Mutex::new(Some(pool.alloc::<u8>(2 * MIB).unwrap())));
    let seen = Arc::new(Mutex::new(Vec::new()));
    pool.on_shortage({
        let (cache, seen, pool) = (cache.clone(), seen.clone(), pool.clone());
        move |shortage| {
            assert_eq!(pool.stats().live_blocks, shortage.stats.live_blocks);
            seen.lock().push((shortage.wanted, shortage.limit, shortage.stats.live_bytes));
            drop(cache.lock().take());
        }
    });
    let block = pool.alloc::<u8>(MIB).unwrap();
    assert_eq!(*seen.lock(), [(MIB, 2 * MIB, 2 * MIB as u64)]);
    assert!(pool.alloc::<u8>(2 * MIB).is_err());
    assert_eq!(seen.lock().len(), 2);
    drop(block);
}

/// `warmup` of more than there can be reserves nothing.
#[test]
fn a_warm_up_beyond_the_limit_or_the_address_space_is_refused_at_once() {
    let books = Books::new();
    let limited = builder(&books, 8 * MIB).build().unwrap();
    for bytes in [8 * MIB + 1, usize::MAX / 2, usize::MAX] {
        assert!(matches!(limited.warmup(bytes), Err(AllocError::Limit { .. })), "{bytes}");
    }
    let unlimited = builder(&books, usize::MAX).build().unwrap();
    for bytes in [usize::MAX / 2, usize::MAX - 1, usize::MAX] {
        assert!(unlimited.warmup(bytes).is_err(), "{bytes}");
    }
    assert_eq!(books.maps.load(SeqCst), 0);
}

#[test]
fn sizes_at_the_end_of_the_address_space_are_refused() {
    for limit in [8 * MIB, usize::MAX] {
        let pool = builder(&Books::new(), limit).build().unwrap();
        for bytes in [isize::MAX as usize, usize::MAX - 4095, usize::MAX - (2 << 20), usize::MAX] {
            assert!(pool.alloc::<u8>(bytes).is_err(), "{bytes}");
            assert!(pool.alloc_aligned::<u8>(bytes, 2 * MIB).is_err(), "{bytes}");
        }
        assert_eq!((pool.stats().slabs, pool.stats().reserved_bytes), (0, 0));
    }
}

/// Each of them was taken for news, and tried again.
#[test]
fn the_patience_ends_though_other_threads_fences_pass_all_the_time() {
    let pool =
        builder(&Books::new(), MIB).limit(4 * MIB).patience(Duration::from_millis(50)).build().unwrap();
    let stop = AtomicBool::new(false);
    let _held = pool.alloc::<u8>(4096).unwrap();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    if let Ok(block) = pool.alloc::<u8>(4096) {
                        block.defer_until(AtomicFence::new().at(0));
                    }
                }
            });
        }
        let (told, heard) = std::sync::mpsc::channel();
        let pool = pool.clone();
        thread::spawn(move || told.send(pool.alloc::<u8>(4 * MIB).is_err()));
        let refused = heard.recv_timeout(LONG);
        stop.store(true, SeqCst);
        assert_eq!(refused, Ok(true));
    });
}

/// Thirty-two that any thread may ask were asked first, and no other.
#[test]
fn fences_that_only_the_program_may_ask_do_not_starve_behind_others() {
    struct Passed;
    impl Poll for Passed {
        fn passed(&mut self) -> bool {
            true
        }
        fn any_thread(&self) -> bool {
            false
        }
    }
    let pool = builder(&Books::new(), 64 * MIB).slab_bytes(4 * MIB).build().unwrap();
    let never = AtomicFence::new();
    for _ in 0..40 {
        pool.alloc::<u8>(4096).unwrap().defer_until(never.at(1));
    }
    for _ in 0..200 {
        pool.alloc::<u8>(MIB).unwrap().defer_until(Fence::poll(Passed));
    }
    assert!(pool.stats().slabs < 10, "{:?}", pool.stats());
    never.signal(1);
}
