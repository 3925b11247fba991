//! An allocator that releases pages from inside malloc and free, every time.
//!
//! mimalloc and jemalloc do so now and then; Open MPI #13149 needed it to fall
//! into one particular malloc. Here nothing is left to luck:
//! * a small request releases a scratch page of the allocator's own, then goes
//!   to the system's allocator;
//! * a large one comes from a chunk of its own. A freed chunk loses its pages and
//!   is handed out again at the same address, so a registration of the old
//!   pages that anyone kept is stale for certain.
//!
//! All releases go through the symbol `madvise`, where hooks see them.
#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods)] // being seen by hooks is this file's purpose

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};

/// Requests of at least this many bytes get a chunk of their own, as from glibc.
pub const LARGE: usize = 128 * 1024;
const PAGE: usize = 4096;
/// Sizes with a free list of their own; further sizes are mapped and unmapped.
const SIZES: usize = 32;
/// Free chunks kept per size.
const KEPT: usize = 16;

static ARMED: AtomicBool = AtomicBool::new(true);

/// Stops the releasing: what follows must allocate without being seen, such as
/// the capture of a hung thread's stack.
pub fn disarm() {
    ARMED.store(false, SeqCst);
}

/// The global allocator of the programs that show the problem.
pub struct Purging;

#[repr(align(4096))]
struct Scratch(UnsafeCell<[u8; PAGE]>);
// SAFETY: nobody reads or writes the page; it exists to be released.
unsafe impl Sync for Scratch {}
static SCRATCH: Scratch = Scratch(UnsafeCell::new([0; PAGE]));

/// Free chunks of one size. `size` is set once and never changes, so a chunk
/// that is popped has the size it was pushed with.
struct FreeList {
    size: AtomicUsize,
    chunks: [AtomicUsize; KEPT],
}

static FREE: [FreeList; SIZES] =
    [const { FreeList { size: AtomicUsize::new(0), chunks: [const { AtomicUsize::new(0) }; KEPT] } }; SIZES];

/// The free list of `size`, claimed at the first request of that size.
fn free_list(size: usize) -> Option<&'static FreeList> {
    FREE.iter().find(|list| match list.size.compare_exchange(0, size, AcqRel, Acquire) {
        Ok(_) => true,
        Err(taken) => taken == size,
    })
}

impl FreeList {
    fn pop(&self) -> Option<usize> {
        // Acquire: pairs with `push`; the pages were released before.
        self.chunks.iter().map(|chunk| chunk.swap(0, Acquire)).find(|&chunk| chunk != 0)
    }

    fn push(&self, chunk: usize) -> bool {
        self.chunks.iter().any(|free| free.compare_exchange(0, chunk, Release, Relaxed).is_ok())
    }
}

/// What makes the allocator's behaviour visible: the pages of `start..start + len` go.
#[inline(never)]
fn release(start: *mut libc::c_void, len: usize) {
    if ARMED.load(Relaxed) {
        // SAFETY: the caller passes the scratch page or a chunk that is being
        // freed; nothing in them is needed any more.
        unsafe { libc::madvise(start, len, libc::MADV_DONTNEED) };
    }
}

fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE && layout.align() <= PAGE
}

fn chunk_size(layout: Layout) -> usize {
    layout.size().next_multiple_of(PAGE)
}

// SAFETY: a small block is System's. A large one is a private mapping of at
// least `size` bytes, aligned to a page, that is on no free list while it is
// handed out: `pop` takes it off atomically and `push` happens in dealloc only.
unsafe impl GlobalAlloc for Purging {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !is_large(layout) {
            release(SCRATCH.0.get().cast(), PAGE);
            // SAFETY: the caller's contract is System's.
            return unsafe { System.alloc(layout) };
        }
        let size = chunk_size(layout);
        if let Some(chunk) = free_list(size).and_then(FreeList::pop) {
            return std::ptr::with_exposed_provenance_mut(chunk);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping.
        let chunk = unsafe { libc::mmap(null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if chunk == libc::MAP_FAILED { null_mut() } else { chunk.cast() }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !is_large(layout) {
            // SAFETY: the caller's contract is System's.
            unsafe { System.dealloc(block, layout) };
            release(SCRATCH.0.get().cast(), PAGE);
            return;
        }
        let size = chunk_size(layout);
        release(block.cast(), size);
        if !free_list(size).is_some_and(|list| list.push(block.expose_provenance())) {
            // SAFETY: the chunk is a mapping of this size and nobody's any more.
            unsafe { libc::munmap(block.cast(), size) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_chunk_comes_back_at_its_address_with_other_pages() {
        let layout = Layout::from_size_align(258_048, 16).unwrap();
        // SAFETY: the block is used within its size and freed with its layout.
        unsafe {
            let first = Purging.alloc(layout);
            assert!(!first.is_null());
            first.write_bytes(0xa5, 258_048);
            Purging.dealloc(first, layout);
            let second = Purging.alloc(layout);
            assert_eq!(first, second, "the same address again");
            let bytes = std::slice::from_raw_parts(second, 258_048);
            assert!(bytes.iter().all(|&byte| byte == 0), "the old pages are gone");
            let third = Purging.alloc(layout);
            assert_ne!(second, third, "a chunk in use is nobody else's");
            Purging.dealloc(second, layout);
            Purging.dealloc(third, layout);
        }
    }

    #[test]
    fn sizes_do_not_mix() {
        let layout = |pages: usize| Layout::from_size_align(pages * PAGE, 8).unwrap();
        // SAFETY: each block is freed with its own layout and used within it.
        unsafe {
            let short = Purging.alloc(layout(40));
            Purging.dealloc(short, layout(40));
            let long = Purging.alloc(layout(80));
            assert_ne!(short, long);
            long.write_bytes(1, 80 * PAGE);
            Purging.dealloc(long, layout(80));
        }
    }

    #[test]
    fn more_free_chunks_than_kept_are_unmapped() {
        let layout = Layout::from_size_align(50 * PAGE, 8).unwrap();
        // SAFETY: every block is freed once with its layout.
        unsafe {
            let blocks: Vec<_> = (0..KEPT + 4).map(|_| Purging.alloc(layout)).collect();
            assert!(blocks.iter().all(|block| !block.is_null()));
            blocks.into_iter().for_each(|block| Purging.dealloc(block, layout));
        }
    }

    #[test]
    fn small_and_strictly_aligned_requests_are_served() {
        for (size, align) in [(1, 1), (40, 8), (LARGE - 1, 64), (1 << 20, 1 << 16)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: used within its size, freed with its layout.
            unsafe {
                let block = Purging.alloc(layout);
                assert_eq!(block.addr() % align, 0);
                block.write_bytes(7, size);
                Purging.dealloc(block, layout);
            }
        }
    }
}
