//! Debian's tcmalloc, linked: it is C's malloc, and by its own interface Rust's.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;

struct Tcmalloc;

#[link(name = "tcmalloc_minimal")]
unsafe extern "C" {
    fn tc_memalign(align: usize, size: usize) -> *mut c_void;
    fn tc_free(at: *mut c_void);
}

// SAFETY: tcmalloc's own functions, with the layout's size and alignment.
unsafe impl GlobalAlloc for Tcmalloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a power of two, as Layout has it; memalign wants 8 at least.
        unsafe { tc_memalign(layout.align().max(8), layout.size()).cast() }
    }
    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: allocated above.
        unsafe { tc_free(at.cast()) }
    }
}

#[global_allocator]
static ALLOCATOR: Tcmalloc = Tcmalloc;

fn main() -> std::process::ExitCode {
    pinyard_mpi_tests::soak::main()
}
