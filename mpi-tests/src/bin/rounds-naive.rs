//! The rounds over the naive cache: the purging allocator underneath, and the
//! cache's hooks in front of `madvise` and `munmap`. Hangs, and says where.
#![allow(unsafe_code)]

use clap::Parser;
use pinyard_hooks::sys;
use pinyard_mpi_tests::naive::{self, NaiveCache};
use pinyard_mpi_tests::options::{Kind, Options};
use pinyard_mpi_tests::purging::{self, Purging};
use pinyard_mpi_tests::rank::{self, Program};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: Purging = Purging;

fn to_libc(result: Result<(), i32>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the calling thread's errno.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// Stands in front of libc's madvise in the whole program.
///
/// # Safety
/// As madvise(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: usize, len: usize, advice: i32) -> i32 {
    if advice == libc::MADV_DONTNEED {
        naive::unmapped(start, len);
    }
    // SAFETY: the caller's contract.
    to_libc(unsafe { sys::madvise(start, len, advice) })
}

/// Stands in front of libc's munmap in the whole program.
///
/// # Safety
/// As munmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(start: usize, len: usize) -> i32 {
    naive::unmapped(start, len);
    // SAFETY: the caller's contract.
    to_libc(unsafe { sys::munmap(start, len) })
}

fn main() -> ExitCode {
    let mut options = Options::parse();
    options.cache = Kind::Naive;
    let quieten = || {
        purging::disarm();
        naive::stop_listening();
    };
    let program = Program { allocator: "purging", quieten, counts: naive::counts, hooks: Vec::new };
    rank::run(program, &options, NaiveCache::new)
}
