//! What every pool of memory that the host uses must do, over every source: host, pinned
//! (of the simulated device, or with `PINYARD_TEST_DRIVER=cuda` of a real one) and the
//! program's own. Shortages and deferred blocks besides: `shortage.rs`.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod common;
mod device_common;

use common::{Books, backend, registry, wait_for};
use device_common::{Bed, MIB, Random};
use pinyard_allocator::{
    AllocError, AtomicFence, Builder, CustomSource, DeviceSource, HostSource, ManagedSource, PinnedSource,
    Pool, PoolBuf, Segment, Source, VirtualSource,
};
use pinyard_driver::DriverToken;
use pinyard_registry::backend::{Fault, Faulty};
use pinyard_registry::{MemoryKey, Registry, backend::Custom};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::thread;

/// Bytes that are registered, and registrations so far.
#[derive(Default)]
struct Registered {
    bytes: AtomicUsize,
    ever: AtomicU64,
}

fn counting(counts: &Arc<Registered>) -> Custom {
    let (one, two) = (counts.clone(), counts.clone());
    Custom::new(
        "counting",
        move |range, _| {
            one.bytes.fetch_add(range.len(), SeqCst);
            let number = one.ever.fetch_add(1, SeqCst);
            Ok(MemoryKey { lkey: range.start as u64, rkey: number, handle: 0 })
        },
        move |_, range| {
            two.bytes.fetch_sub(range.len(), SeqCst);
            Ok(())
        },
    )
}

/// Memory by two closures, as a program brings it.
fn custom() -> CustomSource {
    let inner = Arc::new(HostSource::new());
    let (granularity, shrinks) = (inner.granularity(), inner.clone());
    let grow = move |bytes: usize| inner.grow(bytes, &DriverToken::at_entry());
    // SAFETY: what `grow` gave, back once.
    let shrink = move |segment: Segment| unsafe { shrinks.shrink(segment, &DriverToken::at_entry()) };
    // SAFETY: HostSource's memory.
    unsafe { CustomSource::new("custom", granularity, grow, shrink) }
}

/// Runs a scenario over every source, and checks that nothing is left.
fn over_all(scenario: impl Fn(&dyn Fn() -> Builder, &Registered)) {
    over_all_with(counting, scenario);
}

fn over_all_with<B: pinyard_registry::backend::Backend + 'static>(
    backend: impl Fn(&Arc<Registered>) -> B,
    scenario: impl Fn(&dyn Fn() -> Builder, &Registered),
) {
    type Make = fn(&Registry, &Bed) -> Builder;
    let sources: [(&str, Make); 3] = [
        ("host", |registry, _| Pool::host(registry)),
        ("pinned", |registry, bed| {
            Pool::from_source(registry, PinnedSource::new(bed.driver.clone()).threads(2))
        }),
        ("custom", |registry, _| Pool::from_source(registry, custom())),
    ];
    for (name, make) in sources {
        println!("over {name}");
        let (bed, counts) = (Bed::new(64 * MIB), Arc::new(Registered::default()));
        let registry = registry(backend(&counts));
        scenario(&|| make(&registry, &bed).slab_bytes(4 * MIB), &counts);
        wait_for("deregistration", || counts.bytes.load(SeqCst) == 0);
        bed.assert_clean();
    }
}

fn write(block: &mut PoolBuf<u8>, byte: u8) {
    block.fill(byte);
}

fn assert_filled(block: &PoolBuf<u8>, byte: u8) {
    assert!(block.iter().all(|&other| other == byte), "not all {byte:#x} in {block:?}");
}

#[test]
fn random_use_keeps_every_byte_and_wastes_an_eighth_at_most() {
    over_all(|builder, _| {
        let pool = builder().limit(96 * MIB).build().unwrap();
        let mut random = Random(7);
        let mut live: BTreeMap<usize, (PoolBuf<u8>, u8)> = BTreeMap::new();
        for step in 0..2000 {
            if live.len() > 30 {
                let at = *live.keys().nth(random.below(live.len())).unwrap();
                let (block, byte) = live.remove(&at).unwrap();
                assert_filled(&block, byte);
            }
            let bytes = random.size(64, MIB);
            let mut block = pool.alloc::<u8>(bytes).unwrap();
            let (start, end) = (block.as_ptr().addr(), block.as_ptr().addr() + block.block_bytes());
            if let Some((&at, (other, _))) = live.range(..end).next_back() {
                assert!(at + other.block_bytes() <= start, "step {step} overlaps");
            }
            assert!(
                (block.block_bytes() - bytes) * 8 <= bytes.max(PAGES),
                "{bytes} in {}",
                block.block_bytes()
            );
            assert_eq!(block.key().lkey, block.slab_base() as u64);
            assert!(block.offset_in_slab() + block.block_bytes() <= block.slab_bytes());
            write(&mut block, step as u8);
            live.insert(start, (block, step as u8));
        }
        live.values().for_each(|(block, byte)| assert_filled(block, *byte));
        drop(live);
        let stats = pool.stats();
        assert_eq!((stats.live_blocks, stats.live_bytes, stats.allocations), (0, 0, stats.frees));
    });
}

/// A block outside every class is whole pages.
const PAGES: usize = 8 * 4096;

#[test]
fn alignments_hold_up_to_the_sources_own() {
    over_all(|builder, _| {
        let pool = builder().build().unwrap();
        for shift in 0..=21 {
            let blocks: Vec<_> = [1, 100, 5000, 300_000]
                .map(|bytes| pool.alloc_aligned::<u8>(bytes, 1 << shift).unwrap())
                .into();
            assert!(blocks.iter().all(|block| block.as_ptr().addr() % (1 << shift) == 0), "{shift}");
        }
        assert!(matches!(pool.alloc_aligned::<u8>(1, 1 << 40), Err(AllocError::Alignment { .. })));
    });
}

#[test]
fn a_warm_pool_registers_nothing() {
    over_all(|builder, counts| {
        let pool = builder().build().unwrap();
        pool.warmup(30 * MIB).unwrap();
        let before = counts.ever.load(SeqCst);
        let mut random = Random(3);
        for _ in 0..20 {
            drop((0..20).map(|_| pool.alloc::<u8>(random.size(64, MIB)).unwrap()).collect::<Vec<_>>());
        }
        assert_eq!(counts.ever.load(SeqCst), before);
        assert_eq!(counts.bytes.load(SeqCst) as u64, pool.stats().reserved_bytes);
        assert_eq!(pool.trim() as u64, 32 * MIB as u64);
        assert_eq!((counts.bytes.load(SeqCst), pool.stats().slabs), (0, 0));
    });
}

#[test]
fn cccl_4222_a_refusal_leaves_live_blocks_intact_and_free_slabs_are_traded() {
    over_all(|builder, _| {
        let pool = builder().limit(16 * MIB).build().unwrap();
        let mut kept = pool.alloc::<u8>(3 * MIB).unwrap();
        write(&mut kept, 0x5a);
        let others: Vec<_> = (0..3).map(|_| pool.alloc::<u8>(4 * MIB).unwrap()).collect();
        match pool.alloc::<u8>(8 * MIB).unwrap_err() {
            AllocError::Limit { limit, reserved, live_blocks, .. } => {
                assert_eq!((limit, reserved, live_blocks), (16 * MIB, 16 * MIB, 4));
            }
            other => panic!("{other}"),
        }
        assert_filled(&kept, 0x5a);
        drop(others);
        let mut long = pool.alloc::<u8>(12 * MIB).unwrap();
        write(&mut long, 1);
        assert_filled(&kept, 0x5a);
        drop((kept, long));
        pool.alloc::<u8>(16 * MIB).unwrap();
    });
}

#[test]
fn cccl_585_long_blocks_are_freed_in_any_order() {
    over_all(|builder, _| {
        let pool = builder().limit(32 * MIB).build().unwrap();
        for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
            let mut blocks = [3, 7, 5, 9].map(|mib| Some(pool.alloc::<u8>(mib * MIB).unwrap()));
            for at in order {
                blocks[at] = None;
            }
            assert_eq!((pool.stats().live_bytes, pool.stats().live_blocks), (0, 0));
        }
    });
}

#[test]
fn a_slab_that_cannot_be_registered_is_given_back_and_the_pool_goes_on() {
    let failing = |counts: &Arc<Registered>| {
        Faulty::over(counting(counts)).registering(|number| (number < 2).then_some(Fault::Fail(libc::ENOMEM)))
    };
    over_all_with(failing, |builder, counts| {
        // With the exact length again before it fails.
        let pool = builder().build().unwrap();
        let error = pool.alloc::<u8>(1000).unwrap_err();
        assert!(matches!(error, AllocError::Registration { .. }), "{error}");
        assert_eq!((pool.stats().reserved_bytes, counts.bytes.load(SeqCst)), (0, 0));
        pool.alloc::<u8>(1000).unwrap();
    });
}

#[test]
fn blocks_go_between_threads_and_outlive_their_pool() {
    over_all(|builder, counts| {
        let pool = builder().build().unwrap();
        let (give, take) = mpsc::sync_channel::<(PoolBuf<u8>, u8)>(16);
        let other = thread::spawn(move || {
            let mut last = None;
            for (block, byte) in take {
                assert_filled(&block, byte);
                last = Some((block, byte));
            }
            last
        });
        let mut random = Random(9);
        for step in 0..3000 {
            let mut block = pool.alloc::<u8>(random.size(64, 100_000)).unwrap();
            write(&mut block, step as u8);
            give.send((block, step as u8)).unwrap();
        }
        drop(give);
        let (block, byte) = other.join().unwrap().unwrap();
        assert_eq!(pool.stats().live_blocks, 1);
        drop(pool);
        assert_filled(&block, byte);
        assert!(counts.bytes.load(SeqCst) >= block.slab_bytes());
    });
}

#[test]
fn a_deferred_block_is_not_reused_before_its_fence() {
    over_all(|builder, _| {
        let pool = builder().build().unwrap();
        let word = AtomicFence::new();
        let mut block = pool.alloc::<u8>(70_000).unwrap();
        write(&mut block, 0x77);
        let at = block.as_ptr();
        block.defer_until(word.at(1));
        let mut others: Vec<_> = (0..200).map(|_| pool.alloc::<u8>(70_000).unwrap()).collect();
        others.iter_mut().for_each(|other| write(other, 0x11));
        assert!(others.iter().all(|other| other.as_ptr() != at));
        // SAFETY: the block waits for its fence, so its memory is nobody's.
        assert!(unsafe { std::slice::from_raw_parts(at, 70_000) }.iter().all(|&byte| byte == 0x77));
        word.signal(1);
        wait_for("the block's return", || pool.stats().deferred_blocks == 0);
        others.clear();
        assert_eq!(pool.stats().live_blocks, 0);
    });
}

/// However a source is asked: an error, and nothing stays.
#[test]
fn sources_refuse_what_exceeds_the_address_space() {
    let bed = Bed::new(64 * MIB);
    let driver = bed.driver.clone();
    let sources: [Box<dyn Source>; 5] = [
        Box::new(HostSource::new()),
        Box::new(PinnedSource::new(driver.clone())),
        Box::new(DeviceSource::new(driver.clone())),
        Box::new(ManagedSource::new(driver.clone(), 1 << 20).unwrap()),
        Box::new(VirtualSource::new(driver, false).unwrap()),
    ];
    for source in sources {
        for bytes in [1 << 47, isize::MAX as usize, usize::MAX - (4 << 20), usize::MAX - 4096, usize::MAX] {
            let error = source.grow(bytes, &DriverToken::at_entry()).unwrap_err();
            assert!(error.to_string().contains("failed"), "{}: {error}", source.name());
        }
    }
    bed.assert_clean();
}

/// The books of `common` agree: registered before it is used, deregistered before it goes.
#[test]
fn registration_and_mapping_are_in_order() {
    let books = Books::new();
    let pool = Pool::from_source(&registry(backend(&books)), common::BookedSource(books.clone()));
    let pool = pool.slab_bytes(4 * MIB).build().unwrap();
    drop((0..10).map(|_| pool.alloc::<u8>(3 * MIB).unwrap()).collect::<Vec<_>>());
    pool.trim();
    drop(pool);
    books.assert_balanced();
}
