//! The changes of mappings that upstream's hook tests make (gtest
//! `ucm/malloc_hook.cc`, fabtests `mr_cache_evict`, `unmap_mem`), beyond those in
//! `every_change_is_noticed.rs`, judged by the bytes that the device sees. One
//! test, one process: brk and System V segments belong to the whole process.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::Registry;
use pinyard_registry::backend::IoUring;
use std::ptr::null_mut;
use std::sync::Arc;

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

struct Cache {
    ring: Arc<IoUring>,
    registry: Registry,
}

impl Cache {
    fn new() -> Cache {
        let ring = Arc::new(IoUring::new(16).unwrap());
        // Nobody but this process changes what it shares: it is kept, and has to be told of.
        let registry = Registry::builder().backend(ring.clone()).trust_shared_memory().build().unwrap();
        Cache { registry, ring }
    }

    /// Writes `byte` to each page and returns what the device then sees in the
    /// first, through whatever registration the cache has.
    fn seen(&self, at: usize, pages: usize, byte: u8) -> u8 {
        for page in 0..pages {
            // SAFETY: the callers' own memory, mapped writable.
            unsafe { ((at + page * PAGE) as *mut u8).write_volatile(byte) };
        }
        let lease = read(&self.registry, (at as *const u8, pages * PAGE));
        through(&self.ring, lease.key(), at)
    }

    /// Registered, changed by `change`, which leaves memory at the same place.
    fn survives(&self, name: &str, at: usize, pages: usize, change: impl FnOnce()) {
        assert_eq!(self.seen(at, pages, 1), 1, "{name}");
        change();
        assert_eq!(self.seen(at, pages, 2), 2, "{name}: the old pages");
        self.registry.flush().unwrap();
    }
}

fn break_down_and_up(cache: &Cache) {
    // SAFETY: the heap's end is moved up by what is then used, by this thread
    // alone, and malloc copes with a foreign break.
    unsafe {
        let old = libc::sbrk(0) as usize;
        let at = old.next_multiple_of(PAGE);
        let grow = at - old + 4 * PAGE;
        assert_eq!(libc::sbrk(grow as isize) as usize, old);
        cache.survives("sbrk down and up", at, 4, || {
            assert_eq!(libc::sbrk(-(4 * PAGE as isize)) as usize, at + 4 * PAGE);
            assert_eq!(libc::sbrk(4 * PAGE as isize) as usize, at);
        });
        cache.survives("brk down and up", at, 4, || {
            assert_eq!(libc::brk(at as *mut _), 0);
            assert_eq!(libc::brk((at + 4 * PAGE) as *mut _), 0);
        });
        assert_eq!(libc::brk(old as *mut _), 0);
    }
}

fn segment(pages: usize) -> i32 {
    // SAFETY: a segment of this process's own, which goes with its last mapping.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, pages * PAGE, libc::IPC_CREAT | 0o600) };
    assert!(id >= 0, "shmget: {}", std::io::Error::last_os_error());
    id
}

fn system_v_segments(cache: &Cache) {
    let pages = Pages::apart(4);
    pages.unmap();
    let at = pages.at as *const libc::c_void;
    let (first, second) = (segment(4), segment(4));
    // SAFETY: segments of the test's own at addresses of the test's own.
    unsafe {
        assert_eq!(libc::shmat(first, at, 0) as usize, pages.at);
        cache.survives("shmdt, then shmat of another segment", pages.at, 4, || {
            assert_eq!(libc::shmdt(at), 0);
            assert_eq!(libc::shmat(second, at, 0) as usize, pages.at);
        });
        cache.survives("shmat SHM_REMAP", pages.at, 4, || {
            assert_eq!(libc::shmat(first, at, libc::SHM_REMAP) as usize, pages.at);
        });
        assert_eq!(libc::shmdt(at), 0);
        for id in [first, second] {
            assert_eq!(libc::shmctl(id, libc::IPC_RMID, null_mut()), 0);
        }
    }
}

fn pages_of_a_file(cache: &Cache) {
    const LEN: usize = 4 * PAGE;
    // SAFETY: a memory file of the test's own, mapped once.
    unsafe {
        let file = libc::memfd_create(c"pinyard-test".as_ptr(), 0);
        assert_eq!(libc::ftruncate(file, LEN as i64), 0);
        let at = libc::mmap(null_mut(), LEN, READ_WRITE, libc::MAP_SHARED, file, 0);
        assert_ne!(at, libc::MAP_FAILED);
        cache.survives("madvise MADV_REMOVE", at as usize, 4, || {
            assert_eq!(libc::madvise(at, LEN, libc::MADV_REMOVE), 0);
        });
        cache.survives("ftruncate", at as usize, 4, || {
            assert_eq!(libc::ftruncate(file, 0), 0);
            assert_eq!(libc::ftruncate(file, LEN as i64), 0);
        });
        cache.survives("fallocate FALLOC_FL_PUNCH_HOLE", at as usize, 4, || {
            let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            assert_eq!(libc::fallocate(file, how, 0, LEN as i64), 0);
        });
        assert_eq!(libc::munmap(at, LEN), 0);
        libc::close(file);
    }
    let pages = Pages::apart(4);
    cache.survives("an inlined system call, announced", pages.at, 4, || {
        // In this process's own text, where nobody looks for such calls.
        pinyard_hooks::notify_unmapped(pages.at as *const u8, LEN);
        // SAFETY: the test's own pages.
        unsafe { pinyard_hooks::sys::madvise(pages.at, LEN, libc::MADV_DONTNEED).unwrap() };
    });
}

fn part_of_a_mapping(cache: &Cache) {
    for (name, first) in [("the first page", 0), ("a page in the middle", 2), ("the last page", 3)] {
        let pages = Pages::apart(4);
        let (at, _) = pages.part(first, 1);
        // The device looks at the page that changes, through the whole's registration.
        let whole = || drop(read(&cache.registry, &pages));
        whole();
        cache.survives(name, at.addr(), 1, || {
            // SAFETY: one of the test's own pages, mapped again where it was.
            unsafe {
                assert_eq!(libc::munmap(at as *mut _, PAGE), 0);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
                let mapped = libc::mmap(at as *mut _, PAGE, READ_WRITE, flags, -1, 0);
                assert_eq!(mapped.addr(), at.addr());
            }
            whole();
        });
    }
}

fn mremap_smaller_and_larger(cache: &Cache) {
    let pages = Pages::apart(8);
    cache.survives("mremap smaller, then larger in place", pages.at + 4 * PAGE, 4, || {
        // SAFETY: the test's own mapping; nothing is mapped behind it.
        unsafe {
            let at = pages.at as *mut _;
            assert_eq!(libc::mremap(at, 8 * PAGE, 4 * PAGE, 0), at);
            assert_eq!(libc::mremap(at, 4 * PAGE, 8 * PAGE, 0), at);
        }
    });
    let moved = Pages::apart(8);
    cache.survives("mremap MREMAP_DONTUNMAP", moved.at, 8, || {
        // SAFETY: the pages go elsewhere, the mapping stays, empty.
        unsafe {
            let how = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
            let to = libc::mremap(moved.at as *mut _, 8 * PAGE, 8 * PAGE, how, 0);
            assert_ne!(to, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::munmap(to, 8 * PAGE), 0);
        }
    });
}

/// A large block goes back to the kernel and comes again at its old address.
fn malloc_and_free(cache: &Cache) {
    const LEN: usize = 64 << 20;
    let mut again = 0;
    let mut last = 0;
    for round in 0..20 {
        // SAFETY: a block of malloc's, used until it is freed.
        unsafe {
            let block = libc::malloc(LEN);
            let at = (block as usize).next_multiple_of(PAGE);
            again += (at == last) as u32;
            last = at;
            assert_eq!(cache.seen(at, 4, 10 + round), 10 + round, "malloc after free: the old pages");
            libc::free(block);
        }
    }
    assert!(again > 0, "no block came back at its address: nothing was shown");
}

#[test]
fn every_change_that_upstream_tests_is_noticed() {
    let cache = Cache::new();
    break_down_and_up(&cache);
    system_v_segments(&cache);
    pages_of_a_file(&cache);
    part_of_a_mapping(&cache);
    mremap_smaller_and_larger(&cache);
    malloc_and_free(&cache);
    // Rightly kept: nothing of these replaces a pinned page.
    let pages = Pages::apart(4);
    drop(read(&cache.registry, &pages));
    let made = cache.registry.stats().registrations;
    pages.advise(libc::MADV_WILLNEED);
    // SAFETY: the test's own pages; a child that ends at once.
    unsafe {
        assert_eq!(libc::mprotect(pages.at as *mut _, PAGE, libc::PROT_READ), 0);
        assert_eq!(libc::mprotect(pages.at as *mut _, PAGE, READ_WRITE), 0);
    }
    drop(Pages::new(16));
    drop(read(&cache.registry, &pages));
    assert_eq!(cache.registry.stats().registrations, made);
}
