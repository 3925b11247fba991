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
