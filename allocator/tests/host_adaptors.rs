//! Adaptors around host pools, of every kind of source, alone and around each other.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, backend, builder, registry};
use parking_lot::Mutex;
use pinyard_allocator::adaptors::{
    Align, Allocate, AllocateHost, Block, Fault, HostBlock, Limit, Retry, Statistics, Traced,
};
use pinyard_allocator::trace::Kind;
use pinyard_allocator::{AllocError, AtomicFence, Builder, Fence, Pool, PoolBuf};
use pinyard_driver::Simulated;
use pinyard_registry::{Events, Registry};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;
const ANY: Align = Align(1);

/// A pool of 8 MiB at most, of host memory, pinned memory and a source of the program's own;
/// at the end nothing of it is in use.
fn over_all(scenario: impl Fn(&Pool)) {
    let books = Books::new();
    let registry = registry(backend(&Books::new()));
    let builders: [(&str, Builder); 3] = [
        ("host", Pool::host(&registry)),
        ("pinned", Pool::pinned(&registry, Simulated::new(64 * MIB).running())),
        ("custom", builder(&books, 0)),
    ];
    for (name, builder) in builders {
        println!("over {name}");
        let builder = builder.slab_bytes(2 * MIB).limit(8 * MIB).patience(Duration::ZERO);
        let pool = builder.fence_thread(false).build().unwrap();
        scenario(&pool);
        pool.poll_fences();
        let stats = pool.stats();
        assert_eq!((stats.live_blocks, stats.live_bytes, stats.deferred_blocks), (0, 0, 0));
        assert_eq!(stats.allocations, stats.frees);
    }
    books.assert_balanced();
}

#[test]
fn a_block_is_the_pools_through_any_number_of_adaptors() {
    over_all(|pool| {
        let part = Traced::new(Statistics::new(Limit::new(pool, MIB)), 10);
        let mut block = part.alloc(5000, &Align(4096)).unwrap();
        block.fill(7);
        block[4999] = 8;
        assert_eq!((block.len(), block.address() % 4096), (5000, 0));
        assert_eq!(block.buf().block_bytes() % 4096, 0);
        let inside: &PoolBuf<u8> = block.get().get().get();
        assert_eq!((inside[4998], inside[4999], inside.as_ptr()), (7, 8, block.as_ptr()));
        assert_eq!(block.buf().slab_base() + block.buf().offset_in_slab(), block.as_ptr().addr());
        assert_eq!(pool.stats().live_blocks, 1);
    });
}

/// Counted in bytes, whatever the elements; as other elements it is the same block, still
/// counted.
#[test]
fn a_block_has_the_elements_that_it_was_asked_for_with() {
    over_all(|pool| {
        let part = Statistics::new(Limit::new(pool, 8000));
        let mut doubles = part.alloc_slice::<f64>(1000).unwrap();
        doubles.fill(0.25);
        assert_eq!((doubles.len(), size_of_val(&doubles[..]), part.upstream().used()), (1000, 8000, 8000));
        assert!(matches!(part.alloc_slice::<u8>(1), Err(AllocError::Share { wanted: 1, .. })));
        let words = doubles.cast::<[u32; 5]>().unwrap();
        assert_eq!((words.len(), words[0]), (400, [0, 0x3fd0_0000, 0, 0x3fd0_0000, 0]));
        // 8000 bytes are no whole number of these: it comes back, as it was.
        let words = words.cast::<[u8; 3]>().unwrap_err();
        assert_eq!((words.len(), part.counts().frees, part.upstream().used()), (400, 0, 8000));
        drop(words);
        assert_eq!((part.counts().frees, part.counts().live_bytes, part.upstream().used()), (1, 0, 0));

        let wide = part.alloc_slice::<u128>(3).unwrap();
        assert_eq!(wide.address() % align_of::<u128>() as u64, 0);
        let empty = AllocError::Empty { elements: 0, element_bytes: 1 };
        assert_eq!(part.alloc_slice::<u16>(0).unwrap_err().to_string(), empty.to_string());
        assert!(matches!(part.alloc_slice::<()>(4), Err(AllocError::Empty { .. })));
        let most = part.alloc_slice::<u64>(usize::MAX / 8 + 1).unwrap_err();
        assert!(matches!(most, AllocError::Overflow { element_bytes: 8, .. }), "{most}");
        assert!(matches!(part.alloc(8, &Align(3)), Err(AllocError::Alignment { align: 3, .. })));
    });
}

/// Gives bytes that begin anywhere, whatever it is told.
struct Careless(Pool);

impl Allocate for Careless {
    type Block = PoolBuf<u8>;
    type Terms = Align;
    type Error = AllocError;
    fn alloc(&self, bytes: usize, _: &Align) -> Result<PoolBuf<u8>, AllocError> {
        self.0.alloc(bytes + 1)
    }
}

#[test]
fn a_block_that_does_not_fit_is_refused_and_freed() {
    over_all(|pool| {
        let part = Limit::new(Careless(pool.clone()), MIB);
        let refused = part.alloc_slice::<u64>(10).unwrap_err();
        assert!(matches!(refused, AllocError::Alignment { align: 8, .. }), "{refused}");
        assert_eq!((part.used(), pool.stats().live_blocks), (0, 0));
    });
}

#[test]
fn a_limit_is_of_bytes_in_use_and_exact() {
    over_all(|pool| {
        let part = Limit::new(pool, 1000);
        let one = part.alloc(600, &ANY).unwrap();
        match part.alloc(401, &ANY).unwrap_err() {
            AllocError::Share { limit: 1000, wanted: 401, used: 600 } => {}
            other => panic!("{other}"),
        }
        let two = part.alloc(400, &ANY).unwrap();
        assert_eq!(part.used(), 1000);
        drop(one);
        assert_eq!(part.used(), 400);
        drop(part.alloc(600, &ANY).unwrap());
        drop(two);
        // What fails further in takes nothing.
        let wide = Limit::new(pool, usize::MAX);
        assert!(matches!(wide.alloc(9 * MIB, &ANY), Err(AllocError::Limit { .. })));
        wide.alloc(usize::MAX, &ANY).unwrap_err();
        wide.alloc(0, &ANY).unwrap_err();
        assert_eq!(wide.used(), 0);
        assert!(pool.alloc::<u8>(MIB).is_ok(), "the pool itself has no such limit");
    });
}

#[test]
fn a_limit_holds_with_threads() {
    over_all(|pool| {
        let part = Limit::new(pool, 10_000);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let block = part.alloc(3000, &ANY);
                        assert!(part.used() <= 10_000);
                        drop(block);
                    }
                });
            }
        });
        assert_eq!(part.used(), 0);
    });
}

#[test]
fn statistics_know_the_exact_peak_and_count_nothing_of_what_was_refused() {
    over_all(|pool| {
        let counted = Statistics::new(pool);
        let mut live: Vec<_> = (0..4).map(|_| counted.alloc(MIB, &ANY).unwrap()).collect();
        live.truncate(1);
        counted.alloc(9 * MIB, &ANY).unwrap_err();
        live.push(counted.alloc(5, &ANY).unwrap());
        let counts = counted.counts();
        assert_eq!((counts.allocations, counts.frees, counts.failures), (5, 3, 1));
        assert_eq!((counts.live_bytes, counts.total_bytes), (MIB as u64 + 5, 4 * MIB as u64 + 5));
        assert_eq!((counts.peak_bytes, counts.peak_blocks), (4 * MIB as u64, 4));
        drop(live);
        assert_eq!((counted.counts().live_bytes, counted.counts().frees), (0, 5));
    });
}

#[test]
fn a_trace_of_a_part_balances_and_is_of_no_stream() {
    over_all(|pool| {
        let part = Traced::new(pool, 100);
        drop(pool.alloc::<u8>(9).unwrap());
        let one = part.alloc_slice::<u32>(250).unwrap();
        let at = one.as_ptr().addr() as u64;
        drop(part.alloc(2000, &ANY).unwrap());
        part.alloc(9 * MIB, &ANY).unwrap_err();
        drop(one);
        let events = part.trace().events;
        assert!(events.iter().all(|event| event.stream == 0));
        assert_eq!((events[0].address, events[4].address), (at, at));
        let events: Vec<_> = events.iter().map(|event| (event.event, event.bytes, event.block)).collect();
        assert_eq!(
            events,
            [
                (Kind::Alloc, 1000, 1),
                (Kind::Alloc, 2000, 2),
                (Kind::Free, 2000, 2),
                (Kind::Oom, 9 * MIB as u64, 0),
                (Kind::Free, 1000, 1),
            ]
        );
    });
}

/// An observer of shortages that frees blocks has the allocation succeed: nobody else is
/// asked. One that has nothing left to free is helped out by who is asked then.
#[test]
fn retry_asks_when_observers_did_not_help() {
    over_all(|pool| {
        let kept: Arc<Mutex<Vec<PoolBuf<u8>>>> = Arc::default();
        let spare: Mutex<Vec<PoolBuf<u8>>> = Mutex::default();
        for _ in 0..2 {
            kept.lock().push(pool.alloc(2 * MIB).unwrap());
            spare.lock().push(pool.alloc(2 * MIB).unwrap());
        }
        let frees = Arc::downgrade(&kept);
        pool.on_shortage(move |_| drop(frees.upgrade().and_then(|kept| kept.lock().pop())));
        let asked = AtomicUsize::new(0);
        let retry = Retry::new(pool, |bytes, error: &AllocError| {
            assert!(bytes == 2 * MIB && error.is_shortage());
            asked.fetch_add(1, Relaxed);
            spare.lock().pop().is_some()
        });
        let blocks = [(); 2].map(|_| retry.alloc(2 * MIB, &ANY).unwrap());
        assert_eq!((asked.load(Relaxed), kept.lock().len()), (0, 0));
        let more = [(); 2].map(|_| retry.alloc(2 * MIB, &ANY).unwrap());
        assert_eq!((asked.load(Relaxed), spare.lock().len()), (2, 0));
        // All are in use by this program: asked once more, in vain.
        assert!(matches!(retry.alloc(2 * MIB, &ANY), Err(AllocError::Limit { .. })));
        assert_eq!(asked.load(Relaxed), 3);
        // What no memory helps is not asked about.
        retry.alloc(0, &ANY).unwrap_err();
        retry.alloc(8, &Align(3)).unwrap_err();
        assert_eq!(asked.load(Relaxed), 3);
        drop((blocks, more));
    });
}

/// The registry's budget is used up, and a freed block's slab is what makes room.
#[test]
fn retry_asks_when_no_registration_is_to_be_had() {
    let books = Books::new();
    let registry = Registry::builder()
        .backend(backend(&books))
        .events(Events::NotifyOnly)
        .budget(2 * MIB)
        .build()
        .unwrap();
    let pool = Pool::host(&registry).slab_bytes(2 * MIB).fence_thread(false).build().unwrap();
    let spare = Mutex::new(Some(pool.alloc::<u8>(2 * MIB).unwrap()));
    let retry = Retry::new(&pool, |_, error| {
        assert!(matches!(error, AllocError::Registration { .. }), "{error}");
        spare.lock().take().is_some()
    });
    drop(retry.alloc(2 * MIB, &ANY).unwrap());
    assert!(spare.lock().is_none());
    // Longer than the budget: asked, since it cannot be known, and refused.
    retry.alloc(4 * MIB, &ANY).unwrap_err();
    assert_eq!(pool.stats().live_blocks, 0);
}

#[test]
fn a_fault_is_told_and_costs_nothing_and_the_next_call_works() {
    over_all(|pool| {
        let faulty = Fault::new(Statistics::new(pool), |number, _| number == 2);
        let blocks = [(); 2].map(|_| faulty.alloc(100, &ANY).unwrap());
        let before = pool.stats();
        match faulty.alloc(100, &ANY).unwrap_err() {
            AllocError::Injected { number: 2, wanted: 100 } => {}
            other => panic!("{other}"),
        }
        assert_eq!(pool.stats(), before);
        drop(faulty.alloc(100, &ANY).unwrap());
        drop(blocks);
        let counts = faulty.upstream().counts();
        assert_eq!((faulty.allocations(), counts.allocations, counts.failures), (4, 3, 0));
    });
}

/// A limit outside counts what a fault inside refuses as little as one inside a retry.
#[test]
fn adaptors_compose_in_any_order() {
    over_all(|pool| {
        // Every third allocation fails; one retry each; counted outside and inside.
        let inner = Statistics::new(Limit::new(pool, MIB));
        let faulty = Fault::new(&inner, |number, _| number % 3 == 0);
        let tried = AtomicUsize::new(0);
        let outer = Statistics::new(Retry::new(&faulty, |_, _| tried.fetch_add(1, Relaxed) < 1000));
        let blocks: Vec<_> = (1..=20).map(|at| outer.alloc(at * 100, &ANY).unwrap()).collect();
        assert_eq!((outer.counts().allocations, outer.counts().failures), (20, 0));
        assert_eq!((inner.counts().allocations, inner.counts().failures), (20, 0));
        assert_eq!((faulty.allocations(), tried.load(Relaxed)), (30, 10));
        assert_eq!((inner.counts().live_bytes, inner.upstream().used()), (21_000, 21_000));
        drop(blocks);
        assert_eq!((outer.counts().live_bytes, inner.upstream().used()), (0, 0));

        // The same the other way round: the share is taken first, and comes back.
        let counted = Statistics::new(pool);
        let shared = Limit::new(Fault::new(&counted, |number, _| number % 2 == 0), 1000);
        let traced = Traced::new(&shared, 10);
        assert!(matches!(traced.alloc(1000, &ANY), Err(AllocError::Injected { .. })));
        assert_eq!((shared.used(), counted.counts().allocations), (0, 0));
        let block = traced.alloc(1000, &ANY).unwrap();
        assert!(matches!(traced.alloc(1, &ANY), Err(AllocError::Share { .. })));
        // Refused by the limit: the fault was not asked.
        assert_eq!(shared.upstream().allocations(), 2);
        drop(block);
        let kinds: Vec<_> = traced.trace().events.iter().map(|event| event.event).collect();
        assert_eq!(kinds, [Kind::Oom, Kind::Alloc, Kind::Oom, Kind::Free]);
        assert_eq!((shared.used(), counted.counts().failures, counted.counts().frees), (0, 0, 1));
    });
}

#[test]
fn other_threads_drop_and_defer_what_one_has_allocated() {
    over_all(|pool| {
        let part = Statistics::new(Limit::new(pool, 8 * MIB));
        let blocks: Vec<_> = (1..=64).map(|at| part.alloc_slice::<u64>(at * 10).unwrap()).collect();
        assert_eq!(part.upstream().used(), part.counts().live_bytes as usize);
        thread::scope(|scope| {
            for (at, mut block) in blocks.into_iter().enumerate() {
                scope.spawn(move || {
                    block.fill(at as u64);
                    if at % 2 == 0 {
                        block.defer_until(AtomicFence::new().at(0));
                    } else {
                        drop(block);
                    }
                });
            }
        });
        let counts = part.counts();
        assert_eq!((counts.allocations, counts.frees, counts.live_bytes), (64, 64, 0));
        assert_eq!(part.upstream().used(), 0);
    });
}

/// For adaptors it is freed when it is given up, for the pool when its fence has passed.
#[test]
fn a_deferred_block_is_given_back_once() {
    over_all(|pool| {
        let part = Traced::new(Statistics::new(Limit::new(pool, 2 * MIB)), 10);
        let fence = AtomicFence::new();
        let block = part.alloc(2 * MIB, &ANY).unwrap();
        let at = block.as_ptr();
        block.defer_until(fence.at(1));
        let limit = part.upstream().upstream();
        assert_eq!((limit.used(), part.upstream().counts().live_bytes), (0, 0));
        assert_eq!((pool.stats().deferred_blocks, pool.stats().live_blocks), (1, 1));
        let other = part.alloc(2 * MIB, &ANY).unwrap();
        assert_ne!(other.as_ptr(), at, "the fence has not passed");
        fence.signal(1);
        assert_eq!(pool.poll_fences(), 1);
        assert_eq!(pool.stats().live_blocks, 1);
        other.defer_until(Fence::poll(vec![fence.at(1)]));
        assert_eq!((limit.used(), part.upstream().counts().frees), (0, 2));
        let kinds: Vec<_> = part.trace().events.iter().map(|event| event.event).collect();
        assert_eq!(kinds, [Kind::Alloc, Kind::Free, Kind::Alloc, Kind::Free]);
    });
}

/// Blocks outlive the adaptors and the pool, and give everything back.
#[test]
fn a_block_outlives_its_adaptors() {
    let books = Books::new();
    let part = Statistics::new(Limit::new(builder(&books, 8 * MIB).build().unwrap(), MIB));
    let mut block = part.alloc_slice::<u32>(1000).unwrap();
    drop(part);
    block.fill(9);
    assert_eq!(books.unmaps.load(SeqCst), 0);
    drop(block);
    common::wait_for("the release", || books.mapped.lock().is_empty());
    books.assert_balanced();
}

/// What is generic over memory of the host has any of it.
#[test]
fn a_part_of_a_program_need_not_know_its_adaptors() {
    fn squares(memory: &impl AllocateHost) -> u32 {
        let mut block = memory.alloc_slice::<u32>(10).unwrap();
        block.iter_mut().zip(0..).for_each(|(word, n)| *word = n * n);
        block.iter().sum()
    }
    over_all(|pool| {
        let part = Limit::new(pool, 40);
        assert_eq!((squares(pool), squares(&part), squares(&Statistics::new(&part))), (285, 285, 285));
    });
}

#[test]
fn what_is_not_used_is_not_in_the_type() {
    type Limited = <Limit<Pool> as Allocate>::Block;
    type Faulty = <Fault<Pool, fn(u64, usize) -> bool> as Allocate>::Block;
    let words = |bytes: usize| bytes / size_of::<usize>();
    assert_eq!(words(size_of::<PoolBuf<u8>>()), 3);
    assert_eq!((words(size_of::<Limited>()), words(size_of::<Faulty>())), (5, 3));
    // A block of other elements is the block.
    assert_eq!(size_of::<<Limited as HostBlock>::Of<f64>>(), size_of::<Limited>());
}
