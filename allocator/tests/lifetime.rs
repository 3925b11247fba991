//! Threads that end, pools that end, fences that pass.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, pool, wait_for};
use parking_lot::Mutex;
use pinyard_allocator::{AllocError, AtomicFence, Fence, Poll, Pool, PoolBuf};
use pinyard_registry::Access;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::thread;

const MIB: usize = 1 << 20;

#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn a_thread_that_ends_gives_its_magazines_back() {
    let pool = pool(&Books::new(), 64 * MIB);
    for _ in 0..20 {
        let pool = pool.clone();
        // Joined: a scope alone does not wait for the end of thread-locals.
        let thread = thread::spawn(move || {
            let blocks: Vec<_> = (0..100).map(|_| pool.alloc::<u8>(16_000).unwrap()).collect();
            drop(blocks);
        });
        thread.join().unwrap();
    }
    let stats = pool.stats();
    assert_eq!((stats.slabs, stats.live_blocks, stats.allocations, stats.frees), (1, 0, 2000, 2000));
    assert_eq!(pool.trim(), 2 * MIB);
}

/// Before an allocation fails, it takes back what an idle thread keeps.
#[test]
fn what_an_idle_thread_keeps_is_not_lost_to_others() {
    let pool = pool(&Books::new(), 2 * MIB);
    let (ready, is_ready) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let pool = &pool;
        let idle = scope.spawn(move || {
            let blocks: Vec<_> = (0..32).map(|_| pool.alloc::<u8>(4096).unwrap()).collect();
            drop(blocks);
            ready.send(()).unwrap();
            may_go.recv().unwrap();
            // Its magazines were taken; it goes on as if they never were.
            assert!(matches!(pool.alloc::<u8>(4096), Err(AllocError::Limit { .. })));
        });
        is_ready.recv().unwrap();
        let all = pool.alloc::<u8>(2 * MIB).unwrap();
        go.send(()).unwrap();
        idle.join().unwrap();
        drop(all);
    });
    assert_eq!(pool.stats().live_blocks, 0);
    pool.alloc::<u8>(4096).unwrap();
}

/// A thread-local value that frees its block when thread-locals are destroyed.
#[test]
fn a_block_may_be_dropped_after_the_threads_magazines_are_gone() {
    thread_local! {
        static KEPT: std::cell::RefCell<Vec<PoolBuf<u8>>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let pool = pool(&Books::new(), 64 * MIB);
    // Thread-locals go in the order of their first use, or the reverse: both are tried.
    let one = pool.clone();
    let block_second =
        thread::spawn(move || KEPT.with_borrow_mut(|kept| kept.push(one.alloc::<u8>(100).unwrap())));
    block_second.join().unwrap();
    let two = pool.clone();
    let block_first = thread::spawn(move || {
        let block = two.alloc::<u8>(100).unwrap();
        KEPT.with_borrow_mut(|kept| kept.push(block));
    });
    block_first.join().unwrap();
    assert_eq!(pool.stats().frees, 2);
    assert_eq!(pool.stats().live_blocks, 0);
}

#[test]
fn a_pool_that_is_dropped_gives_everything_back_at_once() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    drop((0..100).map(|_| pool.alloc::<u8>(100_000).unwrap()).collect::<Vec<_>>());
    let clone = pool.clone();
    drop(pool);
    assert!(books.unmaps.load(SeqCst) == 0 && clone.stats().slabs > 1);
    drop(clone);
    books.assert_balanced();
    assert!(books.maps.load(SeqCst) > 1);
}

#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn blocks_outlive_their_pool_and_their_slabs_go_once() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let mut kept: Vec<PoolBuf<u64>> = (0..8).map(|_| pool.alloc::<u64>(100_000).unwrap()).collect();
    for (n, block) in kept.iter_mut().enumerate() {
        block.fill(n as u64);
    }
    let free: Vec<_> = (0..8).map(|_| pool.alloc::<u8>(2 * MIB).unwrap()).collect();
    drop(free);
    let slabs = pool.stats().slabs;
    drop(pool);
    assert_eq!(books.unmaps.load(SeqCst), 8, "the free slabs went with the pool");
    let mut gone = 8;
    while let Some(block) = kept.pop() {
        assert!(block.iter().all(|&word| word == kept.len() as u64));
        assert_eq!(block.key().lkey, block.slab_base() as u64);
        // Two such blocks lie in a slab: with every second one a slab goes.
        let last_of_its_slab = !kept.iter().any(|other| other.slab_base() == block.slab_base());
        drop(block);
        gone += u64::from(last_of_its_slab);
        wait_for("the slab's release", || books.unmaps.load(SeqCst) == gone);
    }
    assert_eq!(gone, slabs);
    books.assert_balanced();
}

/// The thread that drops a block calls neither source nor backend, even when its
/// pool is gone and the block is the last.
#[test]
fn a_dropping_thread_calls_no_driver() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let blocks: Vec<_> = (0..50).map(|_| pool.alloc::<u8>(300_000).unwrap()).collect();
    drop(pool);
    books.callers.lock().clear();
    let dropper = thread::spawn(move || {
        drop(blocks);
        thread::current().id()
    });
    let dropper = dropper.join().unwrap();
    wait_for("the release", || books.mapped.lock().is_empty());
    let callers = books.callers.lock();
    assert!(!callers.is_empty() && !callers.contains(&dropper));
    assert!(!callers.contains(&thread::current().id()));
    drop(callers);
    books.assert_balanced();
}

#[test]
fn many_threads_drop_the_last_blocks_of_a_closed_pool() {
    for _ in 0..50 {
        let books = Books::new();
        let pool = pool(&books, 64 * MIB);
        let parts: Vec<Vec<_>> =
            (0..4).map(|_| (0..20).map(|n| pool.alloc::<u8>(1000 * n + 1).unwrap()).collect()).collect();
        let threads: Vec<_> = parts.into_iter().map(|part| thread::spawn(move || drop(part))).collect();
        drop(pool);
        for thread in threads {
            thread.join().unwrap();
        }
        wait_for("the release", || books.mapped.lock().is_empty());
        books.assert_balanced();
    }
}

/// The pool goes while threads still allocate and free: each slab is released once.
#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn a_pool_that_goes_while_threads_use_it() {
    for _ in 0..30 {
        let books = Books::new();
        let first = pool(&books, 64 * MIB);
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let pool = first.clone();
                thread::spawn(move || {
                    for n in 0..300 {
                        drop(pool.alloc::<u8>(100 * n + 1).unwrap());
                    }
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
        wait_for("the release", || books.mapped.lock().is_empty());
        books.assert_balanced();
    }
}

/// A transport still has a lease of the slab: its pages do not become other memory, whose
/// device may write to them.
#[test]
fn a_slab_that_somebody_leases_is_not_unmapped() {
    let books = Books::new();
    let registry = common::registry(common::backend(&books));
    for pool_goes_first in [false, true] {
        let source = common::BookedSource(books.clone());
        let pool = Pool::from_source(&registry, source).slab_bytes(2 << 20).build().unwrap();
        let block = pool.alloc::<u8>(100_000).unwrap();
        let lease = registry.get(&block[..], Access::LOCAL_WRITE).unwrap();
        assert_eq!(lease.key(), block.key());
        drop(block);
        assert_eq!((pool.trim(), pool.trim()), (0, 0));
        assert_eq!((pool.stats().reserved_bytes, books.mapped.lock().len()), (2 << 20, 1));
        drop(pool.alloc::<u8>(100_000).unwrap());
        assert_eq!(books.mapped.lock().len(), 2);
        if pool_goes_first {
            drop(pool);
            assert_eq!(books.mapped.lock().len(), 1, "the other slab is gone");
            drop(lease);
            wait_for("the slab", || books.mapped.lock().is_empty());
        } else {
            drop(lease);
            assert_eq!((pool.trim(), pool.stats().reserved_bytes), (4 << 20, 0));
        }
    }
    books.assert_balanced();
}

#[test]
fn a_deferred_block_is_reused_only_after_its_fence() {
    let pool = pool(&Books::new(), 2 * MIB);
    let word = AtomicFence::new();
    let block = pool.alloc::<u8>(258_048).unwrap();
    let at = block.as_ptr().addr();
    block.defer_until(word.at(1));
    assert_eq!((pool.stats().live_blocks, pool.stats().deferred_blocks), (1, 1));
    for _ in 0..10 {
        assert_ne!(pool.alloc::<u8>(258_048).unwrap().as_ptr().addr(), at);
    }
    assert_eq!(pool.poll_fences(), 0);
    word.signal(1);
    assert_eq!(pool.poll_fences(), 1);
    assert_eq!((pool.stats().live_blocks, pool.stats().deferred_blocks), (0, 0));
    let blocks: Vec<_> = (0..7).map(|_| pool.alloc::<u8>(258_048).unwrap()).collect();
    assert!(blocks.iter().any(|block| block.as_ptr().addr() == at));
}

/// An allocation that would fail asks the fences first, without being told.
#[test]
fn a_passed_fence_saves_an_allocation_from_the_limit() {
    let pool = pool(&Books::new(), 2 * MIB);
    let word = AtomicFence::new();
    pool.alloc::<u8>(2 * MIB).unwrap().defer_until(word.at(1));
    let error = pool.alloc::<u8>(2 * MIB).unwrap_err();
    assert!(matches!(error, AllocError::Limit { deferred: 1, .. }), "{error}");
    word.signal(1);
    pool.alloc::<u8>(2 * MIB).unwrap();
}

/// One fence that never passes holds up none of a hundred others.
#[test]
fn fences_do_not_wait_for_each_other() {
    let pool = pool(&Books::new(), 64 * MIB);
    let (slow, fast) = (AtomicFence::new(), AtomicFence::new());
    for n in 0..200 {
        let word = if n % 2 == 0 { &slow } else { &fast };
        pool.alloc::<u8>(1000).unwrap().defer_until(word.at(1));
    }
    fast.signal(1);
    assert_eq!(pool.poll_fences(), 100);
    assert_eq!(pool.stats().deferred_blocks, 100);
    slow.signal(1);
    assert_eq!(pool.poll_fences(), 100);
    assert_eq!(pool.stats().live_blocks, 0);
}

/// Records who asks it, and that it is not asked again.
struct Asked {
    by: Arc<Mutex<Vec<thread::ThreadId>>>,
    answers: Vec<bool>,
}

impl Poll for Asked {
    fn passed(&mut self) -> bool {
        self.by.lock().push(thread::current().id());
        self.answers.pop().expect("asked again after it had passed")
    }
}

#[test]
fn deferring_and_dropping_ask_no_fence() {
    let pool = pool(&Books::new(), 64 * MIB);
    let by = Arc::new(Mutex::new(Vec::new()));
    let blocks: Vec<_> = (0..50).map(|_| pool.alloc::<u8>(1000).unwrap()).collect();
    let dropper = thread::spawn({
        let by = by.clone();
        move || {
            for block in blocks {
                block.defer_until(Fence::poll(Asked { by: by.clone(), answers: vec![true] }));
            }
        }
    });
    let id = dropper.thread().id();
    dropper.join().unwrap();
    assert!(by.lock().is_empty());
    assert_eq!(pool.poll_fences(), 50);
    assert!(!by.lock().contains(&id));
}

/// A fence may itself use the pool: no lock is held while it is asked.
#[test]
fn a_fence_may_allocate_from_the_pool_that_asks_it() {
    struct Allocates(pinyard_allocator::Pool);
    impl Poll for Allocates {
        fn passed(&mut self) -> bool {
            drop(self.0.alloc::<u8>(5000).unwrap());
            self.0.stats().deferred_blocks == 1
        }
    }
    let pool = pool(&Books::new(), 64 * MIB);
    pool.alloc::<u8>(1000).unwrap().defer_until(Fence::poll(Allocates(pool.clone())));
    assert_eq!(pool.poll_fences(), 1);
}

/// A fence that panics costs its own block, which is never reused, and no other.
#[test]
fn a_fence_that_panics_frees_nothing_and_keeps_the_others() {
    struct Panics;
    impl Poll for Panics {
        fn passed(&mut self) -> bool {
            panic!("a bug of the fence's")
        }
    }
    let pool = pool(&Books::new(), 64 * MIB);
    let word = AtomicFence::new();
    pool.alloc::<u8>(1000).unwrap().defer_until(word.at(1));
    pool.alloc::<u8>(1000).unwrap().defer_until(Fence::poll(Panics));
    pool.alloc::<u8>(1000).unwrap().defer_until(word.at(1));
    assert_eq!(pool.poll_fences(), 0);
    word.signal(1);
    assert_eq!(pool.poll_fences(), 2);
    assert_eq!(pool.stats().live_blocks, 1);
}

/// The memory of a deferred block stays while its pool goes, until the fence passes.
#[test]
fn a_closed_pool_waits_for_its_fences() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let word = AtomicFence::new();
    let asked = Arc::new(AtomicU64::new(0));
    struct Counted(Arc<AtomicU64>, AtomicFence);
    impl Poll for Counted {
        fn passed(&mut self) -> bool {
            self.0.fetch_add(1, SeqCst);
            self.1.value() > 0
        }
    }
    pool.alloc::<u8>(1000).unwrap().defer_until(Fence::poll(Counted(asked.clone(), word.clone())));
    let after = pool.alloc::<u8>(1000).unwrap();
    drop(pool);
    wait_for("two looks at the fence", || asked.load(SeqCst) > 2);
    after.defer_until(word.at(2));
    assert_eq!(books.unmaps.load(SeqCst), 0);
    word.signal(1);
    wait_for("the first fence", || Arc::strong_count(&asked) == 1);
    assert_eq!(books.unmaps.load(SeqCst), 0);
    word.signal(2);
    wait_for("the release", || books.unmaps.load(SeqCst) == 1);
    books.assert_balanced();
}
