//! Memory to come, of a host pool: futures and callbacks that the pool's thread answers.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod common;
mod futures;

use common::{Books, builder, wait_for};
use futures::{Count, poll};
use parking_lot::Mutex;
use pinyard_allocator::{AllocError, AtomicFence, Fence, Pool};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use tracing_subscriber::layer::SubscriberExt;

const MIB: usize = 1 << 20;

/// 64 MiB.
fn bed() -> (Arc<Books>, Pool) {
    let books = Books::new();
    let pool = builder(&books, 64 * MIB).slab_bytes(8 * MIB).build().unwrap();
    (books, pool)
}

/// The last handle is gone, and its thread has ended.
fn assert_ended(books: &Arc<Books>) {
    wait_for("the pool's end", || books.mapped() == 0);
    books.assert_balanced();
}

#[test]
fn a_future_resolves_when_memory_comes_free_in_the_order_of_asking() {
    let (books, pool) = bed();
    let count = Arc::new(Count::default());
    // There is memory: at once.
    let Poll::Ready(Ok(held)) = poll(pin!(pool.alloc_async::<u64>(6 * MIB)), &count) else {
        panic!("not at once")
    };
    let mut first = Box::pin(pool.alloc_async::<u8>(40 * MIB));
    let mut second = Box::pin(pool.alloc_async::<u16>(MIB / 2));
    assert!(poll(first.as_mut(), &count).is_pending());
    // It would fit, and waits its turn.
    assert!(poll(second.as_mut(), &count).is_pending());
    thread::sleep(Duration::from_millis(20));
    assert!(poll(second.as_mut(), &count).is_pending() && count.0.load(SeqCst) == 0);
    drop(held);
    wait_for("both", || count.0.load(SeqCst) == 2);
    let Poll::Ready(Ok(mut one)) = poll(first.as_mut(), &count) else { panic!("woken without a block") };
    let Poll::Ready(Ok(mut two)) = poll(second.as_mut(), &count) else { panic!("woken without a block") };
    one.fill(1);
    two.fill(0x0202);
    assert_eq!((one.len(), two.len(), one[40 * MIB - 1], two[0]), (40 * MIB, MIB / 2, 1, 0x0202));
    drop((one, two));
    assert_eq!(pool.stats().live_blocks, 0);
    assert!(poll(first.as_mut(), &count).is_pending(), "nothing comes twice");
    drop((first, second, pool));
    assert_ended(&books);
}

#[test]
fn what_another_thread_keeps_and_what_waits_for_a_fence_serves_a_request() {
    let (books, pool) = bed();
    let count = Arc::new(Count::default());
    let fence = AtomicFence::new();
    pool.alloc::<u8>(30 * MIB).unwrap().defer_until(fence.at(1));
    let (from_there, end) = (pool.clone(), Arc::new(AtomicBool::new(false)));
    let stays = end.clone();
    let keeper = thread::spawn(move || {
        let blocks: Vec<_> = (0..26).map(|_| from_there.alloc::<u8>(MIB).unwrap()).collect();
        drop(blocks);
        while !stays.load(SeqCst) {
            thread::yield_now();
        }
    });
    wait_for("the other thread", || pool.stats().frees >= 26);
    let mut future = Box::pin(pool.alloc_async::<u8>(56 * MIB));
    assert!(poll(future.as_mut(), &count).is_pending());
    fence.signal(1);
    wait_for("the answer", || count.0.load(SeqCst) == 1);
    let Poll::Ready(Ok(block)) = poll(future.as_mut(), &count) else { panic!("woken without a block") };
    end.store(true, SeqCst);
    keeper.join().unwrap();
    drop((block, future, pool));
    assert_ended(&books);
}

#[test]
fn a_future_that_is_dropped_loses_nothing_and_holds_up_nobody() {
    let (books, pool) = bed();
    let count = Arc::new(Count::default());
    let held = pool.alloc::<u8>(48 * MIB).unwrap();
    {
        // Withdrawn while it waits: the next is served.
        let mut gone = Box::pin(pool.alloc_async::<u8>(50 * MIB));
        assert!(poll(gone.as_mut(), &count).is_pending());
        let mut next = pin!(pool.alloc_async::<u8>(8 * MIB));
        assert!(poll(next.as_mut(), &count).is_pending());
        drop(gone);
        wait_for("the next", || count.0.load(SeqCst) == 1);
        // Dropped with its answer in it.
    }
    assert_eq!(pool.stats().live_blocks, 1);
    // Never polled, never asked.
    let before = pool.stats().allocations;
    drop(pool.alloc_async::<u8>(8 * MIB));
    assert_eq!(pool.stats().allocations, before);
    // A request that waits keeps the pool, and one that is withdrawn keeps it no longer.
    let mut last = Box::pin(pool.alloc_async::<u8>(50 * MIB));
    assert!(poll(last.as_mut(), &count).is_pending());
    drop((pool, held));
    wait_for("the answer", || count.0.load(SeqCst) == 2);
    assert!(books.mapped() > 0);
    drop(last);
    assert_ended(&books);
}

#[test]
fn callbacks_are_called_once_without_a_lock_and_hopeless_requests_fail() {
    let (books, pool) = bed();
    let held = pool.alloc::<u8>(48 * MIB).unwrap();
    let got = Arc::new(Mutex::new(Vec::new()));
    for number in 0..3 {
        let (got, inner) = (got.clone(), pool.clone());
        pool.alloc_then::<u8>(20 * MIB, move |block| {
            // With no lock held: the pool may be used.
            assert!(inner.stats().live_blocks >= 1);
            drop(block.unwrap());
            drop(inner.alloc::<u8>(1000).unwrap());
            got.lock().push(number);
        });
    }
    assert!(got.lock().is_empty());
    drop(held);
    wait_for("three callbacks", || got.lock().len() == 3);
    assert_eq!(*got.lock(), [0, 1, 2]);
    // One that panics does not end the pool's thread.
    let held = pool.alloc::<u8>(48 * MIB).unwrap();
    pool.alloc_then::<u8>(40 * MIB, |_| panic!("on purpose"));
    let after = Arc::new(AtomicBool::new(false));
    let told = after.clone();
    pool.alloc_then::<u8>(MIB, move |block| told.store(block.is_ok(), SeqCst));
    drop(held);
    wait_for("the callback after", || after.load(SeqCst));
    // What no free mends, at once; and observers hear of what is short.
    let (short, failed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let heard = short.clone();
    pool.on_shortage(move |_| _ = heard.fetch_add(1, SeqCst));
    for bytes in [0, 65 * MIB, usize::MAX] {
        let failed = failed.clone();
        pool.alloc_then::<u8>(bytes, move |block| {
            assert!(block.is_err());
            failed.fetch_add(1, SeqCst);
        });
    }
    assert_eq!((failed.load(SeqCst), short.load(SeqCst)), (3, 1));
    // The source refuses, and nothing is in use: nobody will give anything back.
    pool.trim();
    books.budget.store(4 * MIB, SeqCst);
    let refused = Arc::new(Mutex::new(None));
    let error = refused.clone();
    pool.alloc_then::<u8>(20 * MIB, move |block| *error.lock() = block.err());
    assert!(matches!(*refused.lock(), Some(AllocError::Source { .. })), "{:?}", refused.lock());
    drop(pool);
    assert_ended(&books);
}

/// The pool's handle goes where its callback is dropped: on the pool's own thread.
#[test]
fn the_last_handle_may_go_on_the_pools_thread() {
    let (books, pool) = bed();
    let held = pool.alloc::<u8>(48 * MIB).unwrap();
    let kept = Arc::new(Mutex::new(None));
    let to = kept.clone();
    pool.alloc_then::<u8>(40 * MIB, move |block| *to.lock() = block.ok());
    drop(pool);
    assert!(kept.lock().is_none());
    drop(held);
    wait_for("the callback", || kept.lock().is_some());
    assert!(books.mapped() > 0, "a block is in use");
    drop(kept);
    assert_ended(&books);
}

#[test]
fn many_requests_beside_threads_that_allocate_end_all() {
    const REQUESTS: usize = 200;
    let (books, pool) = bed();
    let served = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for seed in 0..3usize {
            let (pool, served) = (&pool, &served);
            scope.spawn(move || {
                for round in 0..REQUESTS {
                    let bytes = 1 + (round * 7919 + seed * 104_729) % (30 * MIB);
                    let served = served.clone();
                    pool.alloc_then::<u8>(bytes, move |block| {
                        drop(block.unwrap());
                        served.fetch_add(1, SeqCst);
                    });
                    drop(pool.alloc::<u8>(1 + bytes % (4 * MIB)));
                }
            });
        }
    });
    wait_for("all requests", || served.load(SeqCst) == 3 * REQUESTS);
    assert_eq!(pool.stats().live_blocks, 0);
    drop(pool);
    assert_ended(&books);
}

/// Asked by the program's threads alone; counts who asked.
struct OfTheProgram {
    passes: Arc<AtomicBool>,
    program: thread::ThreadId,
    elsewhere: Arc<AtomicUsize>,
}

impl pinyard_allocator::Poll for OfTheProgram {
    fn passed(&mut self) -> bool {
        if thread::current().id() != self.program {
            self.elsewhere.fetch_add(1, SeqCst);
        }
        self.passes.load(SeqCst)
    }

    fn any_thread(&self) -> bool {
        false
    }
}

#[test]
fn a_fence_of_the_programs_threads_is_not_asked_by_the_pools_for_a_request() {
    let (books, pool) = bed();
    let (passes, elsewhere) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let program = thread::current().id();
    let fence = OfTheProgram { passes: passes.clone(), program, elsewhere: elsewhere.clone() };
    pool.alloc::<u8>(40 * MIB).unwrap().defer_until(Fence::poll(fence));
    let served = Arc::new(AtomicBool::new(false));
    let told = served.clone();
    pool.alloc_then::<u8>(40 * MIB, move |block| told.store(block.is_ok(), SeqCst));
    passes.store(true, SeqCst);
    thread::sleep(Duration::from_millis(30));
    assert_eq!((served.load(SeqCst), elsewhere.load(SeqCst)), (false, 0));
    assert_eq!(pool.poll_fences(), 1);
    wait_for("the answer", || served.load(SeqCst));
    drop(pool);
    assert_ended(&books);
}

#[test]
fn a_fence_that_panics_loses_no_request() {
    struct Panics;
    impl pinyard_allocator::Poll for Panics {
        fn passed(&mut self) -> bool {
            panic!("on purpose")
        }
    }
    let (books, pool) = bed();
    let held = pool.alloc::<u8>(40 * MIB).unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let request = || {
        let served = served.clone();
        pool.alloc_then::<u8>(40 * MIB, move |block| {
            _ = served.fetch_add(usize::from(block.is_ok()), SeqCst)
        });
    };
    request();
    // On the pool's thread, which serves on. The block stays in use.
    pool.alloc::<u8>(MIB).unwrap().defer_until(Fence::poll(Panics));
    wait_for("the panic", || pool.stats().deferred_blocks == 0);
    request();
    drop(held);
    wait_for("both", || served.load(SeqCst) == 2);
    assert_eq!(pool.stats().live_blocks, 1);
    drop((pool, books));
}

#[test]
fn a_report_of_leaks_that_panics_ends_the_pool_all_the_same() {
    let books = Books::new();
    for fence_thread in [false, true] {
        let builder = builder(&books, 64 * MIB).fence_thread(fence_thread);
        let pool = builder.on_leak(|_| panic!("on purpose")).build().unwrap();
        // Whole pages: no thread has magazines that would keep the pool.
        let mut block = pool.alloc::<u8>(33 * MIB).unwrap();
        drop(pool);
        block.fill(7);
        drop(block);
        assert_ended(&books);
    }
}

#[test]
fn a_request_that_waits_has_no_slab_registered_anew() {
    let (books, pool) = bed();
    let held = pool.alloc::<u8>(48 * MIB).unwrap();
    drop(pool.alloc::<u8>(6 * MIB).unwrap());
    let served = Arc::new(AtomicBool::new(false));
    let told = served.clone();
    pool.alloc_then::<u8>(40 * MIB, move |block| told.store(block.is_ok(), SeqCst));
    let before = pool.stats().registrations;
    for _ in 0..20 {
        // Whole pages of a slab that is free in between, and would not suffice.
        drop(pool.alloc::<u8>(6 * MIB).unwrap());
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!((pool.stats().registrations, served.load(SeqCst)), (before, false));
    drop(held);
    wait_for("the answer", || served.load(SeqCst));
    drop(pool);
    assert_ended(&books);
}

#[test]
fn what_an_observer_frees_serves_a_request_at_once() {
    let (books, pool) = bed();
    let cached = Arc::new(Mutex::new(vec![pool.alloc::<u8>(40 * MIB).unwrap()]));
    let of = cached.clone();
    pool.on_shortage(move |_| of.lock().clear());
    let count = Arc::new(Count::default());
    let mut future = Box::pin(pool.alloc_async::<u8>(48 * MIB));
    assert!(matches!(poll(future.as_mut(), &count), Poll::Ready(Ok(_))));
    drop((future, pool));
    assert_ended(&books);
}

#[test]
fn those_that_were_withdrawn_are_forgotten_behind_one_that_waits_and_the_impossible_does_not_queue() {
    let (books, pool) = bed();
    let count = Arc::new(Count::default());
    let held = pool.alloc::<u8>(48 * MIB).unwrap();
    let mut first = Box::pin(pool.alloc_async::<u8>(40 * MIB));
    assert!(poll(first.as_mut(), &count).is_pending());
    for _ in 0..100 {
        let mut gone = Box::pin(pool.alloc_async::<u8>(MIB));
        assert!(poll(gone.as_mut(), &count).is_pending());
    }
    let too_much = poll(pin!(pool.alloc_async::<u8>(65 * MIB)), &count);
    assert!(matches!(too_much, Poll::Ready(Err(AllocError::Limit { .. }))), "{too_much:?}");
    drop(held);
    wait_for("the first", || count.0.load(SeqCst) == 1);
    drop((first, pool));
    // None of them holds a handle.
    assert_ended(&books);
}

/// Runs the ignored test `name` in a process of its own; its output.
fn child(name: &str) -> (bool, String) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--ignored", "--exact", name, "--nocapture"]).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// A block that is freed between the attempt and the look whether one can be: what tells of the
/// shortage frees it, and with it all that the pool has.
#[test]
fn what_is_freed_after_the_attempt_is_not_missed() {
    struct Frees(Mutex<Option<pinyard_allocator::PoolBuf<u8>>>);
    impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Frees {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            if *event.metadata().level() == tracing::Level::WARN {
                drop(self.0.lock().take());
            }
        }
    }
    let (books, pool) = bed();
    let held = pool.alloc::<u8>(48 * MIB).unwrap();
    let subscriber = tracing_subscriber::registry().with(Frees(Mutex::new(Some(held))));
    let (served, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
    let (told, error) = (served.clone(), failed.clone());
    tracing::subscriber::with_default(subscriber, || {
        pool.alloc_then::<u8>(40 * MIB, move |block| match block {
            Ok(_) => told.store(true, SeqCst),
            Err(refused) => *error.lock() = Some(refused),
        });
    });
    wait_for("an answer", || served.load(SeqCst) || failed.lock().is_some());
    assert!(served.load(SeqCst), "{:?}", failed.lock());
    drop(pool);
    assert_ended(&books);
}

static AT_EXIT: OnceLock<Pool> = OnceLock::new();

extern "C" fn trims() {
    let pool = AT_EXIT.get().unwrap();
    println!("trimmed: {}", pool.trim() > 0);
    println!("allocated: {}", pool.alloc::<u8>(3 * MIB).is_ok());
}

#[test]
#[ignore = "started by another"]
fn uses_a_pool_at_exit() {
    let (_, pool) = bed();
    AT_EXIT.set(pool).unwrap();
    // SAFETY: a plain function; were it refused, nothing would be printed.
    assert_eq!(unsafe { libc::atexit(trims) }, 0);
    let exits = thread::spawn(|| {
        drop(AT_EXIT.get().unwrap().alloc::<u8>(20 * MIB).unwrap());
        std::process::exit(0)
    });
    exits.join().unwrap();
}

/// On a thread whose locals are gone.
#[test]
fn a_pool_serves_what_runs_at_exit() {
    let (ok, text) = child("uses_a_pool_at_exit");
    assert!(ok && text.contains("trimmed: true") && text.contains("allocated: true"), "{text}");
}
