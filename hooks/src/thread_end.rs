//! What threads do when they end.
//!
//! By a key of pthread's (pthread_key_create(3)). Rust registers the destructors of thread-local
//! variables with the loader's lock (`__cxa_thread_atexit_impl`), at a thread's first use: a constructor
//! may have that lock and wait for the thread.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

const NONE: u64 = u64::MAX;
/// The key of the process.
static KEY: AtomicU64 = AtomicU64::new(NONE);

/// Whatever any thread has asked for: shards of a registry, tickets of leases.
static WORKS: [AtomicPtr<c_void>; 4] = [const { AtomicPtr::new(null_mut()) }; 4];

/// The calling thread calls `work` when it ends, after the destructors of its thread-local variables. It
/// may ask again in `work`, or later in its end. A thread may call the `work` of another's as well,
/// so each finds out whether it has anything to do. Takes no lock, and none of the loader's; not for
/// signal handlers.
///
/// `false`: it will not, since [`make_key`] has made none, there is no memory, or there are more than 4 of these.
#[must_use]
pub fn at_thread_end(work: fn()) -> bool {
    let address = work as *mut c_void;
    let has_place = WORKS.iter().any(|place| {
        // What lies there now, of this thread or another.
        let now = place.compare_exchange(null_mut(), address, AcqRel, Acquire);
        now.is_ok() || now == Err(address)
    });
    let key = KEY.load(Acquire);
    if key == NONE || !has_place {
        return false;
    }
    // No hook comes here.
    #[allow(clippy::disallowed_methods)]
    // SAFETY: a key of ours; the value is not null, with which nothing would be called.
    unsafe {
        libc::pthread_setspecific(key as libc::pthread_key_t, (&raw const WORKS).cast()) == 0
    }
}

extern "C" fn ends(_: *mut c_void) {
    for place in &WORKS {
        let work = place.load(Acquire);
        if !work.is_null() {
            // SAFETY: stored by `at_thread_end`, as this type. This library stays loaded: see `make_key`.
            unsafe { core::mem::transmute::<*mut c_void, fn()>(work)() };
        }
    }
}

/// Makes the key, which a program may leave no place for later. Whether there is one. After
/// [`stack_size`](crate::stack_size), which keeps this library loaded: a thread that ends calls into it.
#[must_use]
pub fn make_key() -> bool {
    if KEY.load(Acquire) != NONE {
        return true;
    }
    let mut key = 0;
    // SAFETY: stores a key, with a destructor that takes every value.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(ends)) } != 0 {
        return false;
    }
    if KEY.compare_exchange(NONE, u64::from(key), AcqRel, Acquire).is_err() {
        // SAFETY: made above, and no thread has a value of it.
        unsafe { libc::pthread_key_delete(key) };
    }
    true
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::sync::atomic::AtomicU32;

    #[test]
    fn a_thread_does_all_of_it_and_asks_again() {
        static DONE: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
        fn first() {
            DONE[0].fetch_add(1, Relaxed);
        }
        fn second() {
            // Once more, as a thread may that uses what it gave back.
            if DONE[1].fetch_add(1, Relaxed) == 0 {
                assert!(at_thread_end(second));
            }
        }
        assert!(make_key());
        let asks = || assert!(at_thread_end(first) && at_thread_end(first) && at_thread_end(second));
        std::thread::spawn(asks).join().unwrap();
        assert_eq!(DONE.each_ref().map(|done| done.load(Relaxed)), [2, 2]);
    }
}
