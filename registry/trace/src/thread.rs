//! The thread's number, as the kernel has it.
#![allow(unsafe_code)] // gettid(2)

use std::cell::Cell;

/// The calling thread's, asked for once per thread. Not for hooks: a thread-local.
pub fn thread_number() -> u32 {
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(0) });
    // A thread that is ending asks again.
    NUMBER.try_with(Cell::get).ok().filter(|&number| number != 0).unwrap_or_else(|| {
        // SAFETY: gettid(2) has no conditions.
        let number = unsafe { libc::gettid() } as u32;
        let _ = NUMBER.try_with(|cell| cell.set(number));
        number
    })
}
