//! Daemon threads: threads of pinyard's do not keep the process of a program whose own threads have ended.
//!
//! A process lives as long as one of its threads, and glibc ends it by exit(3), on the last thread that it counts,
//! when that one ends (pthread_exit(3)). Threads of pinyard's would keep it for ever. So who makes one takes it out
//! of glibc's count, and the thread puts itself back when it ends, for glibc then counts it down.
//!
//! The count is `__nptl_nthreads`, an `unsigned int` that glibc exports from 2.34 on, for libthread_db. It is
//! counted up by pthread_create(3), down at a thread's end (`nptl/pthread_create.c`,
//! `sysdeps/nptl/libc_start_call_main.h`), and is 1 in a forked child (`sysdeps/nptl/fork.h`). Nothing else of
//! glibc's asks it but for the first thread that is made, up to 2.43. Where it is not exported, the process stays.
#![allow(unsafe_code)]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

/// glibc's count, once it was found.
static COUNT: AtomicPtr<u32> = AtomicPtr::new(null_mut());

/// Asks the loader for the count.
pub(crate) fn find() {
    // SAFETY: a NUL-terminated name.
    let count = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()) };
    COUNT.store(count.cast(), Release);
}

fn count() -> Option<&'static AtomicU32> {
    let at = COUNT.load(Acquire);
    // SAFETY: a variable of glibc's, aligned and for ever, which glibc changes by atomic operations alone.
    (!at.is_null()).then(|| unsafe { AtomicU32::from_ptr(at) })
}

/// The calling thread has made a thread by pthread_create(3), after [`stack_size`](crate::stack_size): a daemon.
/// Not for hooks and signal handlers.
///
/// As a rule the caller is a thread of the program's, which is counted. Where it is a daemon itself, and the
/// program's last thread has ended since pthread_create, nobody else ends the process: exit(3) is called here.
pub fn was_made() {
    let is_last = |count: &AtomicU32| count.fetch_sub(1, AcqRel) == 1;
    if count().is_some_and(is_last) {
        // SAFETY: as where a thread of the program's ends as the last.
        unsafe { libc::exit(0) }
    }
}

/// The calling thread is a daemon, and ends: the last that it does here. Not for hooks and signal handlers.
pub fn ends() {
    if let Some(count) = count() {
        // At 0 the process ends already, by exit(3). glibc's count must not come there twice.
        let with_this = |count: u32| Some(if count == 0 { 2 } else { count.wrapping_add(1) });
        let _ = count.fetch_update(AcqRel, Acquire, with_this);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;
    use super::*;
    use std::sync::mpsc;

    /// In a process of its own, where nobody else makes threads: a child of one thread.
    fn in_a_child(work: fn() -> i32) -> i32 {
        crate::stack_size(0);
        // SAFETY: the child is of one thread, whose allocator fork(3) keeps usable, and ends in `_exit`.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(work());
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status >> 8
        }
    }

    fn counted() -> i32 {
        count().map_or(0, |count| count.load(Acquire)) as i32
    }

    #[test]
    fn a_daemon_is_not_counted_until_it_ends() {
        let counts = || {
            let (begin, began) = mpsc::channel::<()>();
            let thread = std::thread::spawn(move || {
                let _ = began.recv();
                ends();
            });
            let with_it = counted();
            was_made();
            let without_it = counted();
            drop(begin);
            thread.join().unwrap();
            with_it * 16 + without_it * 4 + counted()
        };
        let counted = in_a_child(counts);
        // 0 where glibc exports no count.
        assert!(matches!(counted, 0 | 0x25), "{counted:#x}: 2, 1 and 1");
    }

    #[test]
    fn one_that_ends_while_the_process_does_ends_it_no_second_time() {
        let counts = || {
            let Some(count) = count() else { return 0 };
            count.store(0, SeqCst);
            ends();
            count.load(SeqCst) as i32
        };
        assert_ne!(in_a_child(counts), 1, "glibc would count this one down to 0");
    }
}
