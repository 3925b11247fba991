//! What a caller of a pool sees, one thread at a time.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{BookedSource, Books, backend, pool, registry};
use pinyard_allocator::{
    AllocError, BuildError, DriverToken, HostMemory, Pool, Segment, Source, SourceError,
};
use pinyard_registry::{
    Access,
    backend::{Fault, Faulty, Mlock},
};
use std::sync::atomic::Ordering::SeqCst;

const MIB: usize = 1 << 20;

#[test]
fn a_blocks_key_is_its_slabs_and_its_place_is_in_it() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let mut blocks = Vec::new();
    for bytes in [1, 64, 100, 4096, 258_048, 300_000, MIB, 3 * MIB, 5000, 2 * MIB, 90_000] {
        let block = pool.alloc::<u8>(bytes).unwrap();
        assert_eq!(block.len(), bytes);
        assert_eq!(block.key().lkey, block.slab_base() as u64, "the books' key is the address");
        assert_eq!(block.slab_base() + block.offset_in_slab(), block.as_ptr().addr());
        assert!(block.offset_in_slab() + bytes <= block.slab_bytes());
        let registered = books.registered.lock();
        let range = registered[&block.slab_base()];
        assert_eq!((range.start, range.len()), (block.slab_base(), block.slab_bytes()));
        blocks.push(block);
    }
    assert_eq!(books.registrations.load(SeqCst), pool.stats().registrations);
    assert_eq!(pool.stats().slabs, pool.stats().registrations);
}

#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn what_is_written_stays_until_the_block_is_freed() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let mut blocks: Vec<_> = (0..500).map(|n| pool.alloc::<u64>(17 * (n % 40) + 1).unwrap()).collect();
    for (n, block) in blocks.iter_mut().enumerate() {
        block.fill(n as u64);
    }
    for (n, block) in blocks.iter().enumerate() {
        assert!(block.iter().all(|&word| word == n as u64));
    }
}

#[test]
fn a_freed_block_is_the_next_of_its_class() {
    let pool = pool(&Books::new(), 64 * MIB);
    for bytes in [64, 5000, 258_048] {
        let block = pool.alloc::<u8>(bytes).unwrap();
        let at = block.as_ptr();
        drop(block);
        assert_eq!(pool.alloc::<u8>(bytes - 1).unwrap().as_ptr(), at);
    }
}

#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn fresh_memory_is_zero_and_old_memory_holds_old_bytes() {
    let pool = pool(&Books::new(), 64 * MIB);
    let mut block = pool.alloc::<u8>(100_000).unwrap();
    assert!(block.iter().all(|&byte| byte == 0));
    block.fill(7);
    drop(block);
    assert!(pool.alloc::<u8>(100_000).unwrap().iter().all(|&byte| byte == 7));
}

#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn alignment_is_kept_from_one_byte_to_a_huge_page() {
    // Few of these blocks need the start of a slab: sixteen slabs are plenty.
    let pool = pool(&Books::new(), 32 * MIB);
    let mut blocks = Vec::new();
    for shift in 0..=21 {
        for bytes in [1, 65, 5000, 70_000] {
            let block = pool.alloc_aligned::<u8>(bytes, 1 << shift).unwrap();
            assert_eq!(block.as_ptr().addr() % (1 << shift), 0);
            blocks.push(block);
        }
    }
    assert_eq!(pool.alloc::<u128>(3).unwrap().as_ptr().addr() % align_of::<u128>(), 0);
    assert_eq!(pool.alloc_aligned::<u128>(3, 1).unwrap().as_ptr().addr() % align_of::<u128>(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn a_block_wastes_an_eighth_at_most() {
    let pool = pool(&Books::new(), 256 * MIB);
    let mut bytes = 64;
    while bytes < 5 * MIB {
        let block = pool.alloc::<u8>(bytes).unwrap();
        assert!((block.block_bytes() - bytes) * 8 <= bytes, "{bytes} in {}", block.block_bytes());
        bytes += bytes / 37 + 1;
    }
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let error = |result: Result<_, AllocError>| result.map(|_: ()| ()).unwrap_err();
    let alloc = |elements, align| error(pool.alloc_aligned::<u32>(elements, align).map(drop));
    assert!(matches!(alloc(0, 4), AllocError::Empty { elements: 0, element_bytes: 4 }));
    assert!(matches!(alloc(usize::MAX / 2, 4), AllocError::Overflow { .. }));
    assert!(matches!(alloc(usize::MAX / 4, 4), AllocError::Overflow { .. }), "rounding up to pages");
    assert!(matches!(alloc(1, 3), AllocError::Alignment { align: 3, largest } if largest == 2 * MIB));
    assert!(matches!(alloc(1, 0), AllocError::Alignment { align: 0, .. }));
    assert!(matches!(alloc(1, 4 * MIB), AllocError::Alignment { .. }));
    assert!(matches!(error(pool.alloc::<()>(5).map(drop)), AllocError::Empty { element_bytes: 0, .. }));
    // A length that exists, but not on this machine.
    assert!(matches!(alloc(1 << 50, 4), AllocError::Limit { .. }));
    assert_eq!(pool.stats().allocations, 0);
    pool.alloc::<u32>(10).unwrap();
}

#[test]
fn bad_settings_are_refused() {
    let registry = registry(Mlock::new());
    let build = |slab, limit| Pool::host(&registry).slab_bytes(slab).limit(limit).build().unwrap_err();
    assert!(matches!(build(0, MIB), BuildError::SlabBytes { bytes: 0, .. }));
    assert!(matches!(build(usize::MAX, 64 * MIB), BuildError::SlabBytes { .. }));
    assert!(matches!(build(MIB, MIB), BuildError::Limit { .. }));
}

#[test]
fn the_limit_names_itself_and_what_is_in_use() {
    let books = Books::new();
    let pool = pool(&books, 4 * MIB);
    let one = pool.alloc::<u8>(2 * MIB).unwrap();
    let two = pool.alloc::<u8>(2 * MIB).unwrap();
    let error = pool.alloc::<u8>(64).unwrap_err();
    let AllocError::Limit { limit, reserved, live, live_blocks, .. } = error else { panic!("{error}") };
    assert_eq!((limit, reserved, live, live_blocks), (4 * MIB, 4 * MIB, 4 * MIB as u64, 2));
    assert!(error.to_string().contains("limit of 4194304 bytes"), "{error}");
    drop(one);
    // The freed slab serves another size, without a registration.
    pool.alloc::<u8>(64).unwrap();
    assert_eq!(pool.stats().registrations, 2);
    drop(two);
}

#[test]
fn short_of_memory_free_slabs_are_traded_for_one_that_fits() {
    let books = Books::new();
    let pool = pool(&books, 8 * MIB);
    for _ in 0..2 {
        let small: Vec<_> = (0..4).map(|_| pool.alloc::<u8>(2 * MIB).unwrap()).collect();
        assert_eq!(pool.stats().slabs, 4);
        drop(small);
        // 5 MiB fit in no slab of 2 MiB, and the limit has no room for a new one: three
        // slabs make it.
        let large = pool.alloc::<u8>(5 * MIB).unwrap();
        assert_eq!((pool.stats().slabs, pool.stats().reserved_bytes), (2, 8 * MIB as u64));
        drop(large);
        assert_eq!(pool.trim(), 8 * MIB);
    }
    drop(pool);
    books.assert_balanced();
}

#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn what_other_classes_keep_is_used_before_a_slab_is_added() {
    let pool = pool(&Books::new(), 64 * MIB);
    for bytes in [64, 1000, 9000, 65_536, 200_000] {
        let blocks: Vec<_> = (0..(MIB / bytes)).map(|_| pool.alloc::<u8>(bytes).unwrap()).collect();
        drop(blocks);
    }
    // Each class kept a megabyte in its turn; never did two slabs hold them all.
    assert!(pool.stats().slabs <= 2, "{:?}", pool.stats());
}

#[test]
#[cfg_attr(miri, ignore = "minutes of Miri's")]
fn a_failing_source_loses_nothing() {
    let books = Books::new();
    let pool = pool(&books, usize::MAX);
    let mut kept = pool.alloc::<u8>(MIB).unwrap();
    kept.fill(3);
    books.budget.store(0, SeqCst);
    let error = pool.alloc::<u8>(8 * MIB).unwrap_err();
    assert!(matches!(error, AllocError::Source { name: "booked", .. }), "{error}");
    let before = pool.stats();
    assert_eq!((before.slabs, before.live_blocks, before.reserved_bytes), (1, 1, 2 * MIB as u64));
    pool.alloc::<u8>(1000).unwrap();
    books.budget.store(usize::MAX, SeqCst);
    pool.alloc::<u8>(8 * MIB).unwrap();
    assert!(kept.iter().all(|&byte| byte == 3));
    drop((kept, pool));
    books.assert_balanced();
}

#[test]
fn a_failing_registration_gives_the_memory_back_and_says_why() {
    let books = Books::new();
    let faulty =
        Faulty::over(backend(&books)).registering(|nth| (nth == 1).then_some(Fault::Fail(libc::EPERM)));
    let pool = Pool::from_source(&registry(faulty), BookedSource(books.clone()))
        .slab_bytes(2 * MIB)
        .build()
        .unwrap();
    let kept = pool.alloc::<u8>(2 * MIB).unwrap();
    let error = pool.alloc::<u8>(2 * MIB).unwrap_err();
    assert!(matches!(error, AllocError::Registration { bytes, .. } if bytes == 2 * MIB), "{error}");
    assert!(
        std::error::Error::source(&error).is_some() && error.to_string().contains("backend books"),
        "{error}"
    );
    assert_eq!((books.maps.load(SeqCst), books.unmaps.load(SeqCst)), (2, 1));
    assert_eq!((pool.stats().slabs, pool.stats().reserved_bytes), (1, 2 * MIB as u64));
    let again = pool.alloc::<u8>(2 * MIB).unwrap();
    drop((kept, again, pool));
    books.assert_balanced();
}

/// A registration of a whole slab fails, one of what is needed succeeds.
#[test]
fn where_a_slab_is_refused_a_shorter_one_is_tried() {
    let books = Books::new();
    books.budget.store(6 * MIB, SeqCst);
    let pool = Pool::from_source(&registry(backend(&books)), BookedSource(books.clone()))
        .slab_bytes(64 * MIB)
        .build()
        .unwrap();
    let block = pool.alloc::<u8>(5 * MIB).unwrap();
    assert_eq!((block.slab_bytes(), pool.stats().reserved_bytes), (6 * MIB, 6 * MIB as u64));
}

#[test]
fn a_backend_that_panics_leaves_a_pool_that_works() {
    let books = Books::new();
    let faulty = Faulty::over(backend(&books)).registering(|nth| {
        (nth == 0).then(|| Fault::Run(std::sync::Arc::new(|_| panic!("a bug of the backend's"))))
    });
    let pool = Pool::from_source(&registry(faulty), BookedSource(books.clone()))
        .slab_bytes(2 * MIB)
        .build()
        .unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.alloc::<u8>(1000)));
    assert!(panicked.is_err());
    assert_eq!(pool.stats().reserved_bytes, 0);
    pool.alloc::<u8>(1000).unwrap();
}

#[test]
fn warm_up_registers_and_nothing_registers_afterwards() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    pool.warmup(10 * MIB).unwrap();
    assert_eq!((pool.stats().slabs, pool.stats().free_bytes), (5, 10 * MIB as u64));
    pool.warmup(3 * MIB).unwrap();
    assert_eq!(pool.stats().slabs, 5);
    let blocks: Vec<_> = (0..1000).map(|_| pool.alloc::<u8>(9000).unwrap()).collect();
    drop(blocks);
    assert_eq!(books.registrations.load(SeqCst), 5);
    assert!(matches!(pool.warmup(65 * MIB), Err(AllocError::Limit { .. })));
}

#[test]
fn trim_gives_back_what_is_free_and_keeps_what_is_not() {
    let books = Books::new();
    let pool = pool(&books, 64 * MIB);
    let mut kept = pool.alloc::<u64>(100).unwrap();
    kept.fill(9);
    drop((0..20).map(|_| pool.alloc::<u8>(MIB).unwrap()).collect::<Vec<_>>());
    let before = pool.stats();
    assert!(before.slabs > 5);
    assert_eq!(pool.trim(), (before.reserved_bytes - 2 * MIB as u64) as usize);
    assert_eq!((pool.stats().slabs, books.mapped.lock().len()), (1, 1));
    assert_eq!(books.registered.lock().len(), 1);
    assert!(kept.iter().all(|&word| word == 9));
    assert_eq!(pool.trim(), 0);
    drop(kept);
    assert_eq!(pool.trim(), 2 * MIB);
    assert_eq!((pool.stats().slabs, pool.stats().reserved_bytes, pool.stats().live_bytes), (0, 0, 0));
    books.assert_balanced();
    pool.alloc::<u8>(5).unwrap();
}

#[test]
fn counters_balance() {
    let pool = pool(&Books::new(), 64 * MIB);
    let blocks: Vec<_> =
        [100, 5000, 258_048, 3 * MIB].iter().map(|&bytes| pool.alloc::<u8>(bytes).unwrap()).collect();
    let stats = pool.stats();
    assert_eq!((stats.live_blocks, stats.allocations, stats.frees), (4, 4, 0));
    let sizes: usize = blocks.iter().map(|block| block.block_bytes()).sum();
    assert_eq!(stats.live_bytes, sizes as u64);
    assert_eq!(stats.live_bytes + stats.free_bytes + stats.cached_bytes, stats.reserved_bytes);
    drop(blocks);
    let stats = pool.stats();
    assert_eq!((stats.live_blocks, stats.live_bytes, stats.allocations, stats.frees), (0, 0, 4, 4));
    assert_eq!(stats.free_bytes + stats.cached_bytes, stats.reserved_bytes);
}

/// What was registered at a new slab's address before is other memory, even if
/// nobody said so.
#[test]
#[cfg_attr(miri, ignore = "mlock(2)")]
fn a_slab_is_registered_though_its_addresses_were_before() {
    struct Mapped(Segment);
    // SAFETY: hands out, once, the segment that the test has mapped for it.
    unsafe impl Source for Mapped {
        fn name(&self) -> &'static str {
            "mapped"
        }
        fn granularity(&self) -> usize {
            2 * MIB
        }
        fn grow(&self, _: usize, _: &DriverToken) -> Result<Segment, SourceError> {
            Ok(self.0)
        }
        unsafe fn shrink(&self, _: Segment, _: &DriverToken) -> Result<(), SourceError> {
            Ok(())
        }
    }
    // SAFETY: the test's own zeroed memory.
    unsafe impl HostMemory for Mapped {}
    let memory: &mut [u8] = Vec::leak(vec![0; 4 * MIB]);
    let start = memory.as_ptr().expose_provenance().next_multiple_of(2 * MIB);
    let registry = registry(Mlock::new());
    drop(registry.get((start as *const u8, 2 * MIB), Access::LOCAL_WRITE).unwrap());
    let pool = Pool::from_source(&registry, Mapped(Segment { start, bytes: 2 * MIB }))
        .slab_bytes(2 * MIB)
        .limit(2 * MIB)
        .build()
        .unwrap();
    assert_eq!(pool.alloc::<u8>(100).unwrap().slab_base(), start);
    assert_eq!(registry.stats().registrations, 2);
}

#[test]
#[cfg_attr(miri, ignore = "mlock(2)")]
fn a_lease_on_a_pooled_buffer_is_a_hit() {
    let registry = registry(Mlock::new());
    let pool = Pool::host(&registry).slab_bytes(2 * MIB).access(Access::LOCAL_WRITE).build().unwrap();
    let block = pool.alloc::<u8>(258_048).unwrap();
    let lease = registry.get(&block[..], Access::LOCAL_WRITE).unwrap();
    assert_eq!((lease.base(), lease.len()), (block.slab_base(), block.slab_bytes()));
    assert_eq!(registry.stats().registrations, 1);
}
