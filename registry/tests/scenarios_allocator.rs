//! The allocator of Open MPI #13149 and libfabric #10879: it gives pages back
//! inside malloc and inside free. Here they are registered pages, so the event
//! falls into whatever the registry is doing as it allocates: under its lock, in
//! the backend, in the reaper. A registry that waits for itself never ends.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Fault, Faulty, IoUring, Work};
use pinyard_registry::{Access, Registry};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

struct Releasing;

/// The page that is given back, or 0.
static SCRATCH: AtomicUsize = AtomicUsize::new(0);
static IN_MALLOC: AtomicU64 = AtomicU64::new(0);
static IN_FREE: AtomicU64 = AtomicU64::new(0);

fn release_a_page(count: &AtomicU64) {
    let at = SCRATCH.load(SeqCst);
    if at != 0 {
        count.fetch_add(1, Relaxed);
        // SAFETY: the test's own page, of which nobody needs the bytes.
        unsafe { libc::madvise(at as *mut _, PAGE, libc::MADV_DONTNEED) };
    }
}

// SAFETY: passes every call to `System`.
unsafe impl GlobalAlloc for Releasing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        release_a_page(&IN_MALLOC);
        // SAFETY: the caller's contract is System's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        release_a_page(&IN_FREE);
        // SAFETY: the caller's contract is System's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Releasing = Releasing;

/// Misses, merges, evictions, invalidations, flushes and statistics, each of
/// which allocates somewhere.
fn everything(registry: &Registry, scratch: &Pages) {
    let pages = Pages::new(64);
    for round in 0..50 {
        for index in 0..15 {
            drop(registry.get(pages.part(4 * index, 1 + round % 4), Access::LOCAL_WRITE));
        }
        drop(registry.get(pages.part(0, 8), Access::LOCAL_WRITE));
        // May give up: its own allocations change the page as it is registered.
        drop(registry.get(scratch, Access::LOCAL_READ));
        registry.invalidate(pages.part(round, 2)).unwrap();
        pages.advise(libc::MADV_DONTNEED);
        assert!(registry.stats().misses > 0);
        if round % 10 == 0 {
            registry.flush().unwrap();
        }
    }
}

#[test]
fn an_allocator_that_releases_pages_in_malloc_and_in_free() {
    or_be_killed();
    let scratch = Pages::new(1);
    let allocate: Work = Arc::new(|_| drop(std::hint::black_box(vec![1u8; 100])));
    let (in_register, in_deregister) = (allocate.clone(), allocate);
    let backend = Faulty::over(IoUring::new(64).unwrap())
        .registering(move |_| Some(Fault::Run(in_register.clone())))
        .deregistering(move |_| Some(Fault::Run(in_deregister.clone())));
    let registry = builder_over(backend).budget(40 * PAGE).build().unwrap();
    drop(read(&registry, &scratch));
    SCRATCH.store(scratch.at, SeqCst);
    everything(&registry, &scratch);
    at_once(2, &|_| everything(&registry, &scratch));
    SCRATCH.store(0, SeqCst);
    let (in_malloc, in_free) = (IN_MALLOC.load(SeqCst), IN_FREE.load(SeqCst));
    assert!(in_malloc > 1000 && in_free > 1000, "{in_malloc} in malloc, {in_free} in free");
    registry.flush().unwrap();
    let stats = registry.stats();
    assert_eq!((stats.registrations, stats.pinned_bytes), (stats.deregistrations, 0));
    assert_eq!(read(&registry, &scratch).len(), PAGE, "usable afterwards");
}
