//! A thread of the program's is not cancelled while it is in pinyard.
#![allow(unsafe_code)]

/// Keeps pthread_cancel(3) from ending the calling thread until it is dropped: a cancellation that comes
/// meanwhile waits. glibc unwinds a cancelled thread from open(2), read(2) and the like, and that
/// unwinding ends the process at a frame that catches panics.
#[derive(Debug)]
pub struct Uncancelled {
    before: libc::c_int,
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

const DISABLE: libc::c_int = 1;

impl Uncancelled {
    /// From now on. Not for hooks.
    #[must_use = "the thread may be cancelled again when this is dropped"]
    #[inline]
    pub fn now() -> Uncancelled {
        let mut before = DISABLE;
        if !cfg!(miri) {
            // SAFETY: stores the calling thread's state, and changes that thread's alone.
            unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        }
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        if !cfg!(miri) {
            // SAFETY: as above; the state that the thread had.
            unsafe { pthread_setcancelstate(self.before, core::ptr::null_mut()) };
        }
    }
}
