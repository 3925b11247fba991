//! Threads of this crate's own, which has none of Rust's standard library's.
#![allow(unsafe_code)]

use crate::signals::SignalsBlocked;
use crate::sys;
use core::ffi::c_void;
use core::mem::MaybeUninit;

/// A thread without signals, with a stack of `stack` bytes, or of the usual size where that is 0. The error is
/// an errno.
pub(crate) fn create(
    run: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    stack: usize,
) -> Result<libc::pthread_t, i32> {
    let _blocked = SignalsBlocked::now();
    let (mut thread, mut attributes) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: the attributes are initialised before and destroyed after; the thread is, where it was made.
    unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let sized =
            if stack == 0 { 0 } else { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack) };
        let made = match sized {
            0 => libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, argument),
            refused => refused,
        };
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if made == 0 { Ok(thread.assume_init()) } else { Err(made) }
    }
}

/// Gives the calling thread a table of descriptors of its own, unless it has one, and closes those from `first` on
/// there. The error is close_range(2)'s errno: a filter of system calls may refuse it.
pub(crate) fn own_descriptors(first: i32) -> Result<(), i32> {
    const UNSHARE: u32 = 1 << 1;
    // SAFETY: closes descriptors of a table that no other thread has: the call makes one where others have it.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, UNSHARE) };
    if closed == 0 { Ok(()) } else { Err(sys::errno()) }
}
