//! How much memory a host pool takes for what is in use. Slabs are addresses alone: nothing
//! is mapped.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod device_common;

use device_common::Random;
use pinyard_allocator::{AtomicFence, CustomSource, Pool, PoolBuf, Segment};
use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const LIVE: usize = 64;
/// Blocks that wait for copies.
const COPIES: u64 = 8;

fn pool() -> Pool {
    static END: AtomicUsize = AtomicUsize::new(1 << 44);
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    let registry = REGISTRY.get_or_init(|| {
        let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        Registry::builder().backend(backend).events(Events::NotifyOnly).budget(1 << 46).build().unwrap()
    });
    let grow =
        |bytes: usize| Ok(Segment { start: END.fetch_add(bytes.next_multiple_of(64 * MIB), SeqCst), bytes });
    // SAFETY: no address is given out twice, and the tests look at none.
    let source = unsafe { CustomSource::new("addresses", 2 * MIB, grow, |_| Ok(())) };
    Pool::from_source(registry, source).fence_thread(false).build().unwrap()
}

/// W10's use of memory, `rounds` times: 64 blocks of 4 KiB to 256 MiB, random replacement.
/// `allocate` gets a size and `free` what it returned. Returns the most bytes in use.
fn replace<B>(
    seed: u64,
    rounds: usize,
    mut allocate: impl FnMut(usize) -> B,
    mut free: impl FnMut(B),
) -> usize {
    let mut peak = 0;
    for _ in 0..rounds {
        let mut random = Random(seed);
        let mut slots: Vec<Option<(B, usize)>> = (0..LIVE).map(|_| None).collect();
        let mut live = 0;
        for step in 0..2000 {
            let slot = if step < LIVE { step } else { random.below(LIVE) };
            if let Some((block, bytes)) = slots[slot].take() {
                live -= bytes;
                free(block);
            }
            let bytes = random.size(4 * KIB, 256 * MIB);
            live += bytes;
            peak = peak.max(live);
            slots[slot] = Some((allocate(bytes), bytes));
        }
        slots.into_iter().flatten().for_each(|(block, _)| free(block));
    }
    peak
}

/// Reserved over in use, at most, of the pool after `rounds` of each of eight traces. Every
/// block that is freed waits for a copy, and eight copies are under way at any time.
fn ours(rounds: usize) -> f64 {
    let of = |seed| {
        let pool = pool();
        let (copied, mut copies) = (AtomicFence::new(), 0u64);
        let allocate = |bytes| pool.alloc::<u8>(bytes).unwrap();
        let free = |block: PoolBuf<u8>| {
            copies += 1;
            copied.signal(copies.saturating_sub(COPIES));
            block.defer_until(copied.at(copies));
        };
        let peak = replace(seed, rounds, allocate, free);
        copied.signal(u64::MAX);
        pool.stats().peak_reserved_bytes as f64 / peak as f64
    };
    (0..8).map(of).sum::<f64>() / 8.0
}

/// The same by the rules of PyTorch's cache of pinned memory: sizes are powers of two, and a
/// block serves its own size alone.
fn powers_of_two() -> f64 {
    let of = |seed| {
        let (reserved, free) = (Cell::new(0), RefCell::new(BTreeMap::<usize, usize>::new()));
        let mut copying = VecDeque::new();
        let allocate = |bytes: usize| {
            let size = bytes.next_power_of_two();
            match free.borrow_mut().get_mut(&size).filter(|count| **count > 0) {
                Some(count) => *count -= 1,
                None => reserved.set(reserved.get() + size),
            }
            size
        };
        let peak = replace(seed, 1, allocate, |size| {
            copying.push_back(size);
            let copied = if copying.len() as u64 > COPIES { copying.pop_front() } else { None };
            copied.into_iter().for_each(|size| *free.borrow_mut().entry(size).or_default() += 1);
        });
        reserved.get() as f64 / peak as f64
    };
    (0..8).map(of).sum::<f64>() / 8.0
}

/// A pool that asked fences only where nothing else fitted cut up long ranges meanwhile: 2.1
/// after one round, 3.0 after eight.
#[test]
fn long_use_does_not_fragment_a_pool() {
    let theirs = powers_of_two();
    let [first, second, eighth] = [1, 2, 8].map(ours);
    println!("reserved over in use: {first:.2}, {second:.2}, {eighth:.2}; powers of two: {theirs:.2}");
    assert!(eighth < theirs, "{eighth:.2}, powers of two {theirs:.2}");
    assert!(eighth < 1.1 * first, "{first:.2}, {second:.2}, {eighth:.2}");
}
