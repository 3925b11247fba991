//! Debian's mimalloc 2, linked: it is C's malloc, and by its own interface Rust's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

struct Mimalloc;

#[link(name = "mimalloc")]
unsafe extern "C" {
    fn mi_malloc_aligned(size: usize, align: usize) -> *mut c_void;
    fn mi_realloc_aligned(at: *mut c_void, size: usize, align: usize) -> *mut c_void;
    fn mi_free(at: *mut c_void);
}

// SAFETY: mimalloc's own functions, with the layout's size and alignment.
unsafe impl GlobalAlloc for Mimalloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and a power of two.
        unsafe { mi_malloc_aligned(layout.size(), layout.align()).cast() }
    }
    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: allocated above.
        unsafe { mi_free(at.cast()) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: allocated above.
        unsafe { mi_realloc_aligned(at.cast(), size, layout.align()).cast() }
    }
}

#[global_allocator]
static ALLOCATOR: Mimalloc = Mimalloc;

fn main() -> std::process::ExitCode {
    pinyard_mpi_tests::soak::main()
}
