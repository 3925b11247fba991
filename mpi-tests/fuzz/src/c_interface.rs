//! The C interface with arguments from the fuzzer: whatever they are, a status with
//! a text comes back, and announced changes only ever take out too much.
#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_void};
use pinyard as _; // whose library has the functions

unsafe extern "C" {
    safe fn pny_strerror(status: c_int) -> *const c_char;
    safe fn pny_last_error() -> *const c_char;
    safe fn pny_notify_unmapped(address: *const c_void, length: usize);
    safe fn pny_hooks_verify() -> c_int;
    fn pny_libfabric_monitor_stats(counts: *mut u64) -> c_int;
}

/// `size` and the counts of `pny_libfabric_monitor_counts`.
const WORDS: usize = 8;

fn text(of: *const c_char) -> &'static str {
    // SAFETY: NUL-terminated, valid until this thread's next call; used before that.
    unsafe { CStr::from_ptr(of) }.to_str().unwrap_or_else(|_| std::process::abort())
}

pub(crate) fn call(input: &[u8]) {
    let word = |from: usize| {
        let bytes: [u8; 8] = std::array::from_fn(|index| input.get(from + index).copied().unwrap_or(0));
        u64::from_le_bytes(bytes)
    };
    let (first, second) = (word(1) as usize, word(9) as usize);
    match input.first().map_or(0, |selector| selector % 4) {
        0 => assert!(!text(pny_strerror(first as c_int)).is_empty()),
        1 => pny_notify_unmapped(first as *const c_void, second),
        2 => assert_eq!(pny_hooks_verify(), 0, "{}", text(pny_last_error())),
        _ => {
            let mut counts = [u64::MAX; WORDS];
            counts[0] = second as u64;
            let at = if first.is_multiple_of(2) { counts.as_mut_ptr() } else { std::ptr::null_mut() };
            // SAFETY: null, or as large as the structure, with its size readable; only a
            // size that is the structure's is written to.
            let status = unsafe { pny_libfabric_monitor_stats(at) };
            assert_ne!(status, 0, "no monitor was imported");
            assert!(!text(pny_last_error()).is_empty());
        }
    }
}
