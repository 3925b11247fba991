//! Several blocks of a host pool at a time.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, builder, pool};
use pinyard_allocator::{AllocError, AtomicFence, PoolBuf};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier};
use std::thread;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Where it begins and ends.
fn bounds(block: &PoolBuf<u8>) -> (usize, usize) {
    let start = block.as_ptr().addr();
    (start, start + block.len())
}

#[test]
fn a_batch_has_the_blocks_in_their_order_and_long_ones_side_by_side() {
    let books = Books::new();
    let pool = builder(&books, 256 * MIB).slab_bytes(64 * MIB).build().unwrap();
    pool.warmup(64 * MIB).unwrap();
    // Two ranges that each are long enough for one of them, before a longer one.
    let mut apart: Vec<_> = (0..4).map(|_| pool.alloc::<u8>(9 * MIB).unwrap()).collect();
    drop((apart.remove(2), apart.remove(0)));
    let sizes = [100, 9 * MIB, 5000, 17 * MIB / 2, 100, 9 * MIB - 1, 300 * KIB];
    let batch = pool.alloc_batch::<u8>(&sizes).unwrap();
    assert_eq!(batch.iter().map(|block| block.len()).collect::<Vec<_>>(), sizes);
    let long: Vec<_> = [1, 3, 5].map(|at| bounds(&batch[at])).into();
    assert_eq!((long[0].1, long[1].1), (long[1].0, long[2].0), "side by side");
    assert_eq!(pool.stats().slabs, 1);
    assert_eq!(pool.stats().live_blocks, 2 + 7);
    drop((apart, batch));
    assert_eq!(pool.stats().live_bytes, 0);
    pool.trim();
    drop(pool);
    books.assert_balanced();
}

#[test]
fn a_batch_is_had_whole_or_not_at_all() {
    let books = Books::new();
    let pool = pool(&books, 8 * MIB);
    let refused = pool.alloc_batch::<u8>(&[100, MIB, 5000, 4 * MIB, 4 * MIB]).unwrap_err();
    assert!(matches!(refused, AllocError::Limit { wanted, .. } if wanted == 4 * MIB), "{refused}");
    assert_eq!((pool.stats().live_blocks, pool.stats().live_bytes), (0, 0));
    let before = pool.stats();
    for bad in [vec![100, 0], vec![100, usize::MAX], vec![isize::MAX as usize; 2]] {
        assert!(pool.alloc_batch::<u8>(&bad).is_err());
    }
    let overflow = pool.alloc_batch::<u64>(&[1, usize::MAX / 4]).unwrap_err();
    assert!(matches!(overflow, AllocError::Overflow { .. }), "{overflow}");
    assert_eq!((pool.stats().frees, before.frees), (before.allocations, before.allocations));
    assert!(pool.alloc_batch::<u8>(&[]).unwrap().is_empty());
    assert!(pool.alloc_batch::<u8>(&[100, MIB, 5000, 4 * MIB]).is_ok());
    pool.trim();
    drop(pool);
    books.assert_balanced();
}

/// As one that is asked for alone.
#[test]
fn a_batch_has_what_its_thread_keeps() {
    let books = Books::new();
    let pool = pool(&books, 2 * MIB);
    let all: Vec<_> = std::iter::from_fn(|| pool.alloc::<u8>(1000).ok()).collect();
    let count = all.len();
    let places: Vec<_> = all.iter().map(bounds).collect();
    let mut all = all.into_iter();
    drop(all.by_ref().take(4).collect::<Vec<_>>());
    pool.set_limit(64 * MIB);
    let batch = pool.alloc_batch::<u8>(&[1000; 4]).unwrap();
    assert!(batch.iter().all(|block| places[..4].contains(&bounds(block))));
    assert_eq!((pool.stats().live_blocks as usize, books.maps.load(SeqCst)), (count, 1));
}

#[test]
fn a_batch_of_a_pool_that_poisons_is_looked_at() {
    let books = Books::new();
    let pool = builder(&books, 64 * MIB).poison(true).build().unwrap();
    let found = Arc::new(AtomicUsize::new(0));
    let counts = found.clone();
    pool.on_misuse(move |_| {
        counts.fetch_add(1, SeqCst);
    });
    let late: Vec<*mut u8> = {
        let mut batch = pool.alloc_batch::<u8>(&[100, MIB, 5000]).unwrap();
        batch.iter_mut().map(|block| block.as_mut_ptr()).collect()
    };
    // SAFETY: the pool's memory, which stays mapped; that it is freed is what is looked for.
    late.iter().for_each(|&at| unsafe { at.write(1) });
    drop(pool.alloc_batch::<u8>(&[100, MIB, 5000]).unwrap());
    pool.trim();
    assert_eq!(found.load(SeqCst), 3);
}

/// What it had taken goes back as it was.
#[test]
fn a_batch_that_is_refused_is_looked_at() {
    let books = Books::new();
    let pool = builder(&books, 2 * MIB).poison(true).build().unwrap();
    let found = Arc::new(AtomicUsize::new(0));
    let counts = found.clone();
    pool.on_misuse(move |_| {
        counts.fetch_add(1, SeqCst);
    });
    let at = pool.alloc::<u8>(MIB).unwrap().as_mut_ptr();
    // SAFETY: the pool's memory, which stays mapped; that it is freed is what is looked for.
    unsafe { at.write(1) };
    assert!(pool.alloc_batch::<u8>(&[MIB, 64 * MIB]).is_err());
    assert_eq!(found.load(SeqCst), 1);
}

/// Whichever threads have the blocks.
#[test]
fn a_warm_pool_needs_no_slab_for_what_it_was_warmed_for() {
    const THREADS: usize = 4;
    const EACH: usize = 25;
    let sizes = [64, 5000, 100_000, 700 * KIB, 3 * MIB];
    let books = Books::new();
    let pool = builder(&books, usize::MAX).build().unwrap();
    pool.warmup_sizes(&sizes.map(|bytes| (bytes, THREADS * EACH))).unwrap();
    let slabs = books.maps.load(SeqCst);
    assert_eq!((pool.stats().live_blocks, books.registrations.load(SeqCst)), (0, slabs));
    let all = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let blocks = sizes.map(|bytes| [(); EACH].map(|()| pool.alloc::<u8>(bytes).unwrap()));
                all.wait();
                drop(blocks);
            });
        }
    });
    assert_eq!(books.maps.load(SeqCst), slabs, "{:?}", pool.stats());
}

#[test]
fn a_warm_up_beyond_the_limit_reserves_nothing() {
    let books = Books::new();
    let pool = pool(&books, 16 * MIB);
    for sizes in [vec![(5000, 10), (MIB, 17)], vec![(usize::MAX, 1)], vec![(MIB, usize::MAX)], vec![(0, 3)]] {
        assert!(pool.warmup_sizes(&sizes).is_err(), "{sizes:?}");
    }
    assert_eq!(books.maps.load(SeqCst), 0);
    let live = pool.alloc::<u8>(4 * MIB).unwrap();
    let refused = pool.warmup_sizes(&[(MIB, 13)]).unwrap_err();
    assert!(matches!(refused, AllocError::Limit { live, .. } if live == 4 << 20), "{refused}");
    assert_eq!(books.maps.load(SeqCst), 1);
    pool.warmup_sizes(&[(MIB, 12)]).unwrap();
    // Slabs beyond a limit that was lowered serve as well.
    pool.set_limit(6 * MIB);
    pool.warmup_sizes(&[(MIB, 12)]).unwrap();
    drop(live);
}

/// Blocks that wait for a fence come back.
#[test]
fn a_warm_up_counts_no_block_whose_fence_may_pass() {
    let books = Books::new();
    let pool = builder(&books, 16 * MIB).fence_thread(false).build().unwrap();
    let fence = AtomicFence::new();
    (0..12).for_each(|_| pool.alloc::<u8>(MIB).unwrap().defer_until(fence.at(1)));
    fence.signal(1);
    pool.warmup_sizes(&[(MIB, 16)]).unwrap();
    assert_eq!((books.mapped(), pool.stats().live_blocks), (16 * MIB, 0));
}

/// More than addresses, and more than memory for their descriptors.
#[test]
fn a_warm_up_of_absurd_counts_is_refused() {
    let pool = pool(&Books::new(), usize::MAX);
    for sizes in [[(64, 1 << 41)], [(1 << 40, 1 << 10)], [(usize::MAX / 2, 2)]] {
        let refused = pool.warmup_sizes(&sizes).unwrap_err();
        assert!(matches!(refused, AllocError::Overflow { .. }), "{refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// No byte is in two blocks, and everything comes back.
    #[test]
    fn blocks_of_batches_are_apart(
        batches in prop::collection::vec(
            (prop::collection::vec((0u32..21, 0.5..1.0f64), 0..12), 0usize..4),
            1..12,
        ),
    ) {
        let books = Books::new();
        let pool = pool(&books, 64 * MIB);
        let mut live: Vec<Vec<PoolBuf<u8>>> = Vec::new();
        for (number, (sizes, drops)) in batches.into_iter().enumerate() {
            let sizes: Vec<usize> =
                sizes.into_iter().map(|(log, part)| ((1usize << log) as f64 * part) as usize + 1).collect();
            let mut batch = pool.alloc_batch::<u8>(&sizes).unwrap();
            prop_assert_eq!(batch.iter().map(|block| block.len()).collect::<Vec<_>>(), sizes);
            batch.iter_mut().for_each(|block| block.fill(number as u8));
            live.push(batch);
            for _ in 0..drops.min(live.len()) {
                let gone = live.swap_remove(number % live.len());
                let byte = gone.first().map(|block| block[0]);
                for block in gone {
                    prop_assert!(block.iter().all(|&at| Some(at) == byte));
                }
            }
            let mut all: Vec<_> = live.iter().flatten().map(bounds).collect();
            all.sort_unstable();
            prop_assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }
        drop(live);
        prop_assert_eq!(pool.stats().live_bytes, 0);
        pool.trim();
        prop_assert_eq!(pool.stats().reserved_bytes, 0);
    }
}
