//! Which thread calls.
#![allow(unsafe_code)]

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// A thread that lives. Unlike [`std::thread::current`], which panics there, it is known until the thread's last
/// destructors of thread-specific data (pthread_key_create(3)), where a program may drop what it has.
///
/// ```
/// use pinyard_worker::ThreadId;
/// let here = ThreadId::current();
/// assert_eq!(here, ThreadId::current());
/// assert_ne!(here, std::thread::spawn(ThreadId::current).join().unwrap());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(libc::pthread_t);

impl ThreadId {
    /// The calling thread's.
    #[must_use]
    pub fn current() -> ThreadId {
        // SAFETY: no preconditions.
        ThreadId(unsafe { libc::pthread_self() })
    }

    /// A thread's that nobody has joined.
    #[must_use]
    pub fn of<T>(thread: &JoinHandle<T>) -> ThreadId {
        ThreadId(thread.as_pthread_t())
    }
}

/// Waits until `thread` has ended, also where it did so in no way of Rust's: a filter of system calls may have
/// ended it (`SECCOMP_RET_KILL_THREAD`), and [`JoinHandle::join`] panics then.
pub fn join(thread: JoinHandle<()>) {
    // SAFETY: made by pthread_create(3), and joined once, for the handle is used up.
    unsafe { libc::pthread_join(thread.into_pthread_t(), std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "a thread ends by a system call")]
    fn a_thread_that_the_kernel_ended_is_waited_for() {
        let killed = || {
            // SAFETY: ends the thread as a filter of system calls would.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        };
        join(std::thread::spawn(killed));
    }
}
