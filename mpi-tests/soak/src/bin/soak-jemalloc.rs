//! Debian's jemalloc, linked: it is C's malloc, and by its own interface Rust's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_void};

struct Jemalloc;

#[link(name = "jemalloc")]
unsafe extern "C" {
    fn mallocx(size: usize, flags: c_int) -> *mut c_void;
    fn rallocx(at: *mut c_void, size: usize, flags: c_int) -> *mut c_void;
    fn sdallocx(at: *mut c_void, size: usize, flags: c_int);
}

/// `MALLOCX_ALIGN` of jemalloc.h.
fn aligned(layout: Layout) -> c_int {
    layout.align().trailing_zeros() as c_int
}

// SAFETY: jemalloc's own functions, with the layout's size and alignment.
unsafe impl GlobalAlloc for Jemalloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout has a size.
        unsafe { mallocx(layout.size(), aligned(layout)).cast() }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: allocated above with the same layout.
        unsafe { sdallocx(at.cast(), layout.size(), aligned(layout)) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: allocated above with the same layout.
        unsafe { rallocx(at.cast(), size, aligned(layout)).cast() }
    }
}

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() -> std::process::ExitCode {
    pinyard_mpi_tests::soak::main()
}
