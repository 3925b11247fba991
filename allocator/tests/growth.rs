//! While a slab is being registered: who waits, who does not, and who may come back.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{BookedSource, Books, backend, registry, wait_for};
use pinyard_allocator::Pool;
use pinyard_registry::PageRange;
use pinyard_registry::backend::{Fault, Faulty};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A pool whose nth registration first runs `run`.
fn pool(books: &Arc<Books>, nth: u64, run: impl Fn(PageRange) + Send + Sync + 'static) -> Pool {
    let run: Arc<dyn Fn(PageRange) + Send + Sync> = Arc::new(run);
    let faulty = Faulty::over(backend(books))
        .registering(move |count| (count == nth).then(|| Fault::Run(run.clone())));
    Pool::from_source(&registry(faulty), BookedSource(books.clone())).slab_bytes(2 * MIB).build().unwrap()
}

/// The pool's lock is free while the backend registers: magazines, bins and ranges
/// serve others at once.
#[test]
fn a_registration_holds_up_nobody_who_needs_none() {
    let books = Books::new();
    let (registering, finish) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let pool = pool(&books, 1, {
        let (registering, finish) = (registering.clone(), finish.clone());
        move |_| {
            registering.store(true, SeqCst);
            wait_for("the end of the stall", || finish.load(SeqCst));
        }
    });
    pool.alloc::<u8>(4096).unwrap();
    thread::scope(|scope| {
        let slow = scope.spawn(|| pool.alloc::<u8>(2 * MIB).unwrap().slab_base());
        wait_for("the registration", || registering.load(SeqCst));
        // From a magazine, from the ranges, and freed; a trim and the counters too.
        for bytes in [4096, 64, 300_000, 700_000] {
            drop(pool.alloc::<u8>(bytes).unwrap());
        }
        assert_eq!(pool.stats().live_blocks, 0);
        pool.trim();
        assert!(!slow.is_finished());
        finish.store(true, SeqCst);
        slow.join().unwrap();
    });
}

/// Threads that need a slab at the same time share the one that is coming.
#[test]
fn threads_that_need_a_slab_wait_for_the_same_one() {
    let books = Books::new();
    let waiting = Arc::new(AtomicUsize::new(0));
    let pool = pool(&books, 0, {
        let waiting = waiting.clone();
        move |_| {
            wait_for("the other threads", || waiting.load(SeqCst) == 8);
            thread::sleep(Duration::from_millis(50));
        }
    });
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                waiting.fetch_add(1, SeqCst);
                pool.alloc::<u8>(1000).unwrap();
            });
        }
    });
    assert_eq!((pool.stats().registrations, pool.stats().allocations), (1, 8));
}

/// A backend that allocates from the pool whose slab it registers gets a slab of its
/// own instead of waiting for itself.
#[test]
fn a_backend_may_allocate_from_the_pool_it_registers() {
    let books = Books::new();
    let itself: Arc<OnceLock<Pool>> = Arc::new(OnceLock::new());
    let pool = pool(&books, 0, {
        let itself = itself.clone();
        move |_| {
            let mut block = itself.get().unwrap().alloc::<u8>(5000).unwrap();
            block.fill(1);
        }
    });
    itself.set(pool.clone()).unwrap();
    pool.alloc::<u8>(1000).unwrap();
    assert_eq!((pool.stats().registrations, pool.stats().live_blocks), (2, 0));
}
