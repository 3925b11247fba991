//! What a host pool keeps while memory is short, and limits that change.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{BookedSource, Books, backend, builder, registry};
use parking_lot::Mutex;
use pinyard_allocator::{AllocError, Bound, BuildError, Fence, Poll, Pool, Pressure};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// Slabs of 16 MiB, of 200 MiB in all; marks at 40 and 80.
fn bed() -> (Arc<Books>, Pool, Arc<Mutex<Vec<Pressure>>>) {
    let books = Books::new();
    books.total.store(200 * MIB, SeqCst);
    let builder = builder(&books, usize::MAX).slab_bytes(16 * MIB).patience(Duration::ZERO);
    let pool = builder.watermarks(Bound::Fraction(0.2), Bound::Bytes(80 * MIB)).build().unwrap();
    let told: Arc<Mutex<Vec<Pressure>>> = Arc::default();
    let (telling, observed) = (told.clone(), pool.clone());
    pool.on_pressure(move |pressure| {
        // No lock is held: the pool may be asked.
        assert_eq!(observed.stats().reserved_bytes, pressure.reserved as u64);
        telling.lock().push(*pressure);
    });
    (books, pool, told)
}

#[test]
fn below_the_low_mark_the_pool_gives_back_and_above_the_high_one_all_is_as_before() {
    let (books, pool, told) = bed();
    let live = pool.alloc::<u8>(10 * MIB).unwrap();
    drop((0..4).map(|_| pool.alloc::<u8>(15 * MIB).unwrap()).collect::<Vec<_>>());
    assert_eq!((books.mapped(), pool.relieve()), (80 * MIB, false));
    books.others.store(90 * MIB, SeqCst);
    // 30 MiB are left: it needs a slab, and what is free goes back, as much as the high mark lacks.
    let long = pool.alloc::<u8>(17 * MIB).unwrap();
    assert_eq!(books.mapped(), 16 * MIB + 18 * MIB);
    assert!(told.lock().is_empty(), "there is enough again");
    // There is no more to give, and a slab is no longer than it has to be.
    let exact = pool.alloc::<u8>(100 * MIB - 76 * MIB + 13 * MIB).unwrap();
    let said = told.lock()[0];
    assert!(said.short && said.reserved == 34 * MIB && said.room.free == 76 * MIB, "{said:?}");
    let more = pool.alloc::<u8>(7 * MIB).unwrap();
    assert_eq!(books.mapped(), (16 + 18 + 38 + 8) * MIB);
    assert_eq!((told.lock().len(), pool.relieve()), (1, true));
    books.others.store(40 * MIB, SeqCst);
    // Between the marks it is as it was.
    drop(long);
    assert_eq!((pool.relieve(), told.lock().len()), (false, 2));
    assert!(!told.lock()[1].short && told.lock()[1].room.free >= 80 * MIB);
    drop((live, exact, more));
    pool.trim();
    drop(pool);
    books.assert_balanced();
}

/// In which what is free would be given back for what is to be free.
#[test]
fn a_warm_up_ends_however_little_is_left() {
    for others in [130, 170, 199] {
        let (books, pool, told) = bed();
        books.others.store(others * MIB, SeqCst);
        pool.warmup(64 * MIB).unwrap();
        assert_eq!((books.mapped(), books.maps.load(SeqCst)), (64 * MIB, 4));
        assert!(told.lock().is_empty());
    }
}

#[test]
fn what_cannot_be_had_costs_nobody_what_is_free() {
    let (books, pool, told) = bed();
    pool.warmup(64 * MIB).unwrap();
    pool.set_limit(80 * MIB);
    let slabs = books.mapped();
    let refused = pool.alloc::<u8>(1 << 40).unwrap_err();
    assert!(matches!(refused, AllocError::Limit { .. }), "{refused}");
    assert!(told.lock().is_empty() && books.mapped() == slabs, "{:?}", told.lock());
    assert!(!pool.relieve());
}

/// What this thread keeps suffices: no slab is given back for it, and none made.
#[test]
fn what_is_kept_is_looked_at_before_it_is_given_back() {
    let (books, pool, _) = bed();
    drop((0..4).map(|_| pool.alloc::<u8>(2 * MIB).unwrap()).collect::<Vec<_>>());
    books.others.store(190 * MIB, SeqCst);
    let long = pool.alloc::<u8>(9 * MIB).unwrap();
    assert_eq!((books.maps.load(SeqCst), books.unmaps.load(SeqCst)), (1, 0));
    drop(long);
}

#[test]
fn an_observer_may_free_and_allocate() {
    let (books, pool, told) = bed();
    let kept = Arc::new(Mutex::new(Some(pool.alloc::<u8>(15 * MIB).unwrap())));
    let (freed, own) = (kept.clone(), pool.clone());
    pool.on_pressure(move |pressure| {
        freed.lock().take();
        assert_eq!(own.alloc::<u8>(20 * MIB).is_ok(), pressure.short);
    });
    books.others.store(150 * MIB, SeqCst);
    let block = pool.alloc::<u8>(30 * MIB).unwrap();
    assert_eq!(
        told.lock().iter().map(|said| (said.short, said.wanted)).collect::<Vec<_>>(),
        [(true, 30 * MIB)]
    );
    assert!(kept.lock().is_none());
    drop(block);
}

#[test]
fn what_an_observer_frees_is_searched_before_a_slab_is_made() {
    let (books, pool, _) = bed();
    let kept = Mutex::new(Some(pool.alloc::<u8>(15 * MIB).unwrap()));
    pool.on_pressure(move |_| drop(kept.lock().take()));
    books.others.store(150 * MIB, SeqCst);
    let block = pool.alloc::<u8>(9 * MIB).unwrap();
    assert_eq!(books.maps.load(SeqCst), 1);
    drop(block);
}

#[test]
fn between_the_marks_it_is_as_it_was() {
    let (books, pool, told) = bed();
    books.others.store(140 * MIB, SeqCst);
    assert!(!pool.relieve(), "60 MiB are left, and it was not short");
    books.others.store(170 * MIB, SeqCst);
    assert!(pool.relieve());
    books.others.store(140 * MIB, SeqCst);
    assert!(pool.relieve(), "60 MiB are left, and it was short");
    books.others.store(110 * MIB, SeqCst);
    assert!(!pool.relieve());
    assert_eq!(told.lock().iter().map(|said| said.short).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn a_limit_may_change_and_slabs_beyond_it_stay_until_they_are_given_back() {
    let books = Books::new();
    let pool = builder(&books, 64 * MIB).patience(Duration::ZERO).build().unwrap();
    let blocks: Vec<_> = (0..8).map(|_| pool.alloc::<u8>(2 * MIB).unwrap()).collect();
    pool.set_limit(8 * MIB);
    let refused = pool.alloc::<u8>(2 * MIB).unwrap_err();
    assert!(matches!(refused, AllocError::Limit { limit, .. } if limit == 8 * MIB), "{refused}");
    assert_eq!(books.mapped(), 16 * MIB);
    drop(blocks);
    // What there is serves.
    drop(pool.alloc::<u8>(2 * MIB).unwrap());
    assert_eq!(pool.trim(), 16 * MIB);
    let blocks: Vec<_> = (0..4).map(|_| pool.alloc::<u8>(2 * MIB).unwrap()).collect();
    assert!(pool.alloc::<u8>(2 * MIB).is_err());
    pool.set_limit(10 * MIB);
    assert!(pool.alloc::<u8>(2 * MIB).is_ok());
    drop(blocks);
}

#[test]
fn below_a_lowered_limit_slabs_are_traded_at_once() {
    let books = Books::new();
    let pool = builder(&books, usize::MAX).fence_thread(false).patience(Duration::ZERO).build().unwrap();
    pool.warmup(32 * MIB).unwrap();
    // Asked once in each round.
    let asked = Arc::new(AtomicUsize::new(0));
    pool.alloc::<u8>(1000).unwrap().defer_until(Fence::poll(Never(asked.clone())));
    pool.set_limit(10 * MIB);
    let block = pool.alloc::<u8>(6 * MIB).unwrap();
    assert_eq!((books.mapped(), books.maps.load(SeqCst)), (10 * MIB, 16 + 1));
    assert!(asked.load(SeqCst) <= 3, "{asked:?}");
    drop(block);
}

/// A fence that does not pass and counts how often it is asked.
struct Never(Arc<AtomicUsize>);

impl Poll for Never {
    fn passed(&mut self) -> bool {
        self.0.fetch_add(1, SeqCst);
        false
    }
}

#[test]
fn a_limit_may_be_a_part_of_what_there_is() {
    let books = Books::new();
    let of = || Pool::from_source(&registry(backend(&books)), BookedSource(books.clone()));
    // The source does not say what there is.
    assert!(matches!(of().limit_fraction(0.5), Err(BuildError::LimitFraction { part: 0.5 })));
    books.total.store(200 * MIB, SeqCst);
    for bad in [0.0, -1.0, 1.1, f64::NAN] {
        assert!(matches!(of().limit_fraction(bad), Err(BuildError::LimitFraction { .. })), "{bad}");
    }
    let pool = of().limit_fraction(0.25).unwrap().patience(Duration::ZERO).build().unwrap();
    let refused = pool.alloc::<u8>(51 * MIB).unwrap_err();
    assert!(matches!(refused, AllocError::Limit { limit, .. } if limit == 50 * MIB), "{refused}");
    // The machine says so, or a group.
    assert!(Pool::host(&registry(backend(&books))).limit_fraction(1.0).is_ok());
}

#[test]
fn bad_watermarks_are_refused() {
    let books = Books::new();
    for (low, high) in [
        (Bound::Fraction(1.5), Bound::Fraction(1.5)),
        (Bound::Fraction(f64::NAN), Bound::Bytes(1)),
        (Bound::Bytes(2), Bound::Bytes(1)),
    ] {
        let built = builder(&books, usize::MAX).watermarks(low, high).build();
        assert!(matches!(built, Err(BuildError::Watermarks { .. })));
    }
}
