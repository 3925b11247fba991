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

/// Whatever any thread has asked for: shards of a registry, tickets of leases, the first thread's end.
static WORKS: [AtomicPtr<c_void>; 4] = [const { AtomicPtr::new(null_mut()) }; 4];

/// The calling thread calls `work` when it ends, after the destructors of its thread-local variables. It
/// may ask again in `work`, or later in its end. A thread may call the `work` of another's as well,
/// so each finds out whether it has anything to do. Takes no lock, and none of the loader's; not for
/// signal handlers.
///
/// `false`: it will not, since there is no key (PTHREAD_KEYS_MAX), no memory, or more than 4 of these.
#[must_use]
pub fn at_thread_end(work: fn()) -> bool {
    let address = work as *mut c_void;
    let has_place = WORKS.iter().any(|place| {
        // What lies there now, of this thread or another.
        let now = place.compare_exchange(null_mut(), address, AcqRel, Acquire);
        now.is_ok() || now == Err(address)
    });
    let Some(key) = key().filter(|_| has_place) else { return false };
    // No hook comes here.
    #[allow(clippy::disallowed_methods)]
    // SAFETY: a key of ours; the value is not null, with which nothing would be called.
    unsafe {
        libc::pthread_setspecific(key, (&raw const WORKS).cast()) == 0
    }
}

extern "C" fn ends(_: *mut c_void) {
    for place in &WORKS {
        let work = place.load(Acquire);
        if !work.is_null() {
            // SAFETY: stored by `at_thread_end`, as this type. `AT_END` deletes the key before this library
            // is unloaded.
            unsafe { core::mem::transmute::<*mut c_void, fn()>(work)() };
        }
    }
}

/// Makes the key, which a program may leave no place for later. Whether there is one.
#[must_use]
pub fn make_key() -> bool {
    key().is_some()
}

fn key() -> Option<libc::pthread_key_t> {
    let known = KEY.load(Acquire);
    if known != NONE {
        return Some(known as libc::pthread_key_t);
    }
    let mut key = 0;
    // SAFETY: stores a key, with a destructor that takes every value.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(ends)) } != 0 {
        return None;
    }
    match KEY.compare_exchange(NONE, u64::from(key), AcqRel, Acquire) {
        Ok(_) => Some(key),
        Err(first) => {
            // SAFETY: made above, and no thread has a value of it.
            unsafe { libc::pthread_key_delete(key) };
            Some(first as libc::pthread_key_t)
        }
    }
}

/// The process ends, or this library is unloaded: a registry without hooks does not keep it.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = {
    extern "C" fn forget() {
        let key = KEY.swap(NONE, AcqRel);
        if key != NONE {
            // SAFETY: a key of ours, which no thread is given any more.
            unsafe { libc::pthread_key_delete(key as libc::pthread_key_t) };
        }
    }
    forget
};

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
        let asks = || assert!(at_thread_end(first) && at_thread_end(first) && at_thread_end(second));
        std::thread::spawn(asks).join().unwrap();
        assert_eq!(DONE.each_ref().map(|done| done.load(Relaxed)), [2, 2]);
    }
}
