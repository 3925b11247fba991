//! Threads of this crate's own, which has none of Rust's standard library's.
#![allow(unsafe_code)]

use crate::{daemon, sys};
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;

/// A daemon thread without signals, with a stack of `stack` bytes, of [`stack_size`](crate::stack_size). The error
/// is an errno.
pub(crate) fn create(
    run: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    stack: usize,
) -> Result<libc::pthread_t, i32> {
    let (mut thread, mut attributes) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the attributes are initialised before and destroyed after; the thread is, where it was made.
    daemon::make(|| unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let made = match libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack) {
            0 => libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, argument),
            refused => refused,
        };
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if made == 0 { Ok(thread.assume_init()) } else { Err(made) }
    })
}

/// Names the calling thread, in 15 bytes.
pub(crate) fn name(name: &CStr) {
    // SAFETY: a NUL-terminated name. What prctl(2) answers changes nothing.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Gives the calling thread a table of descriptors of its own, unless it has one, and closes those from `first` on
/// there. The error is close_range(2)'s errno: a filter of system calls may refuse it.
pub(crate) fn own_descriptors(first: i32) -> Result<(), i32> {
    const UNSHARE: u32 = 1 << 1;
    // SAFETY: closes descriptors of a table that no other thread has: the call makes one where others have it.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, UNSHARE) };
    if closed == 0 { Ok(()) } else { Err(sys::errno()) }
}
