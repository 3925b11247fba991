//! What looks into a host pool: counters, the snapshot, who holds what.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, builder, pool};
use pinyard_allocator::{AtomicFence, PoolLeaks, PoolSnapshot, SizeUse};
use std::sync::{Arc, Mutex};
use std::thread;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// All that a snapshot says adds up.
fn assert_sound(snapshot: &PoolSnapshot) {
    let PoolSnapshot { stats, slabs, sizes, .. } = snapshot;
    assert_eq!(slabs.iter().map(|slab| slab.bytes).sum::<u64>(), stats.reserved_bytes);
    assert_eq!(slabs.iter().map(|slab| slab.free_bytes).sum::<u64>(), stats.free_bytes);
    let bytes = |blocks: fn(&SizeUse) -> u64| -> u64 {
        sizes.iter().map(|size| blocks(size) * size.block_bytes).sum()
    };
    assert_eq!(bytes(|size| size.live_blocks), stats.live_bytes, "{snapshot:?}");
    assert_eq!(bytes(|size| size.free_blocks), stats.cached_bytes, "{snapshot:?}");
    assert_eq!(stats.live_bytes + stats.cached_bytes + stats.free_bytes, stats.reserved_bytes);
    assert_eq!(sizes.iter().map(|size| size.live_blocks).sum::<u64>(), stats.live_blocks);
    assert!(snapshot.largest_free_bytes <= stats.free_bytes);
}

#[test]
fn a_snapshot_adds_up_by_slab_and_by_size() {
    let books = Books::new();
    let pool = builder(&books, 256 * MIB).slab_bytes(8 * MIB).build().unwrap();
    assert_eq!(pool.snapshot(), PoolSnapshot::default());
    let small: Vec<_> = (0..100).map(|_| pool.alloc::<u8>(4 * KIB).unwrap()).collect();
    let pages: Vec<_> = (0..3).map(|_| pool.alloc::<u8>(3 * MIB).unwrap()).collect();
    // What another thread keeps is free as well, and what waits for a fence is not.
    let from_there = pool.clone();
    thread::scope(|scope| {
        scope.spawn(|| drop((0..40).map(|_| from_there.alloc::<u8>(KIB).unwrap()).collect::<Vec<_>>()));
    });
    let fence = AtomicFence::new();
    pool.alloc::<u8>(4 * KIB).unwrap().defer_until(fence.at(1));
    let snapshot = pool.snapshot();
    assert_sound(&snapshot);
    let of = |bytes: usize| *snapshot.sizes.iter().find(|size| size.block_bytes == bytes as u64).unwrap();
    assert_eq!((of(4 * KIB).live_blocks, of(3 * MIB).live_blocks), (101, 3));
    assert!(!snapshot.sizes.iter().any(|size| size.block_bytes == KIB as u64), "all free: a range again");
    assert_eq!(snapshot.slabs.len() as u64, snapshot.stats.slabs);
    assert_eq!(snapshot.stats.deferred_blocks, 1);
    drop((small, pages));
    fence.signal(1);
    pool.poll_fences();
    let snapshot = pool.snapshot();
    assert_sound(&snapshot);
    assert!(snapshot.sizes.is_empty() && snapshot.stats.live_blocks == 0);
    assert_eq!(snapshot.largest_free_bytes, 8 * MIB as u64);
    assert_eq!(snapshot.fragmentation, 1.0 - 1.0 / snapshot.slabs.len() as f64);
    pool.trim();
    assert_eq!(pool.snapshot().fragmentation, 0.0);
    drop(pool);
    books.assert_balanced();
}

#[test]
fn the_peak_of_blocks_covers_the_peak_in_use() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    assert_eq!((pool.stats().hit_rate(), pool.stats().efficiency()), (0.0, 0.0));
    let blocks: Vec<_> = (0..10).map(|_| pool.alloc::<u8>(MIB).unwrap()).collect();
    let (live, peak) = (pool.stats().live_bytes, pool.stats().peak_block_bytes);
    assert!(live >= 10 * MIB as u64 && peak >= live && peak <= live + 2 * MIB as u64, "{peak} of {live}");
    assert!(pool.stats().efficiency() > 0.5 && pool.stats().efficiency() <= 1.0);
    drop(blocks);
    pool.trim();
    assert_eq!((pool.stats().peak_block_bytes, pool.stats().live_bytes), (peak, 0));
}

#[test]
fn an_allocation_without_the_lock_is_a_hit() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    drop(pool.alloc::<u8>(KIB).unwrap());
    let slow = pool.stats().slow_allocations;
    assert_eq!((slow, pool.stats().hit_rate()), (1, 0.0));
    (0..99).for_each(|_| drop(pool.alloc::<u8>(KIB).unwrap()));
    assert_eq!((pool.stats().slow_allocations, pool.stats().hit_rate()), (1, 0.99));
    // Whole pages always take it.
    drop(pool.alloc::<u8>(16 * MIB).unwrap());
    assert_eq!(pool.stats().slow_allocations, 2);
}

/// What a pool's end has told of.
fn told(poison: bool, work: impl FnOnce(&pinyard_allocator::Pool)) -> Vec<PoolLeaks> {
    let books = Books::new();
    let told: Arc<Mutex<Vec<PoolLeaks>>> = Arc::default();
    let to = told.clone();
    let builder = builder(&books, 64 * MIB).poison(poison);
    let pool = builder.on_leak(move |leaks| to.lock().unwrap().push(leaks.clone())).build().unwrap();
    let other = pool.clone();
    work(&pool);
    drop(other);
    assert!(told.lock().unwrap().is_empty(), "a handle is left");
    drop(pool);
    std::mem::take(&mut told.lock().unwrap())
}

#[test]
fn blocks_that_outlive_their_pool_are_told_by_size() {
    assert!(told(false, |pool| drop(pool.alloc::<u8>(100).unwrap())).is_empty());
    let fence = AtomicFence::new();
    let mut kept = Vec::new();
    let leaks = told(false, |pool| {
        kept.extend((0..3).map(|_| pool.alloc::<u8>(4 * KIB).unwrap()));
        kept.push(pool.alloc::<u8>(5 * MIB).unwrap());
        pool.alloc::<u8>(64).unwrap().defer_until(fence.at(1));
    });
    let [leaks] = &leaks[..] else { panic!("told {} times", leaks.len()) };
    assert_eq!((leaks.blocks, leaks.deferred), (5, 1));
    assert_eq!(leaks.bytes, (5 * MIB + 3 * 4 * KIB + 64) as u64);
    let of: Vec<_> = leaks.holders.iter().map(|holder| (holder.block_bytes, holder.blocks)).collect();
    assert_eq!(of, [(5 * MIB as u64, 1), (4 * KIB as u64, 3), (64, 1)]);
    let text = leaks.to_string();
    assert!(text.starts_with("5 blocks of 5255232 bytes are in use, 1 of them given up"), "{text}");
    assert!(text.contains("\n3 of 4096 bytes each"), "{text}");
    fence.signal(1);
    // A fence that has passed leaves nothing behind.
    assert!(told(false, |pool| pool.alloc::<u8>(64).unwrap().defer_until(fence.at(1))).is_empty());
}

#[test]
fn a_pool_that_poisons_says_where_they_were_allocated() {
    #[inline(never)]
    fn the_culprit(pool: &pinyard_allocator::Pool) -> pinyard_allocator::PoolBuf<u8> {
        pool.alloc::<u8>(1000).unwrap()
    }
    let mut kept = Vec::new();
    let leaks = told(true, |pool| {
        drop(pool.alloc::<u8>(1000).unwrap());
        // From one place, in optimised code too.
        for _ in 0..std::hint::black_box(2) {
            kept.push(the_culprit(pool));
        }
    });
    let [leaks] = &leaks[..] else { panic!("told {} times", leaks.len()) };
    assert_eq!((leaks.blocks, leaks.holders.len()), (2, 1));
    let text = leaks.to_string();
    assert!(text.contains("2 of 1024 bytes each, the first by thread "), "{text}");
    assert!(text.contains("the_culprit"), "{text}");
}
