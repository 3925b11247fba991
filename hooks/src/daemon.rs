//! Daemon threads: threads of pinyard's do not keep the process of a program whose own threads have ended.
//!
//! A process lives as long as one of its threads, and glibc ends it by exit(3), on the last thread that it counts,
//! when that one ends (pthread_exit(3)). Threads of pinyard's would keep it for ever. So who makes one takes it out
//! of glibc's count. While it runs code of the program's it is counted, as a thread of the program's is:
//! glibc counts threads that such code makes up and down, also those that it does not get to make. If it turns out
//! to be the last when that code has returned, the process ends as well.
//!
//! The count is `__nptl_nthreads`, an `unsigned int` that glibc exports from 2.34 on, for libthread_db. It is
//! counted up by pthread_create(3), down at a thread's end (`nptl/pthread_create.c`,
//! `sysdeps/nptl/libc_start_call_main.h`), and is 1 in a forked child (`sysdeps/nptl/fork.h`). Nothing else of
//! glibc's asks it but for the first thread that is made, up to 2.43. Where it is not exported, the process stays.
//!
//! At 0 the process ends: glibc calls exit(3), or has a thread call it. The count must not come there a second time,
//! while the handlers of that exit(3) run; so who finds it at 0 counts one that never ends.
#![allow(unsafe_code)]

use crate::signals::{self, SignalsBlocked};
use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};
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

/// Makes a daemon: `create` calls pthread_create(3), after [`stack_size`](crate::stack_size). The new thread's signals
/// are blocked. The mask of the process's first caller is the one of an exit(3) after a daemon's work. Not for hooks
/// and signal handlers.
///
/// # Errors
/// Those of `create`, which has made no thread then.
pub fn make<T, E>(create: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    // Until the end: a handler of theirs may fork, or leave.
    let blocked = SignalsBlocked::now();
    signals::remember(&blocked);
    if let Some(count) = count() {
        // A handler of exit(3) makes it: the new thread would bring the count to 0 again.
        let _ = count.compare_exchange(0, 1, AcqRel, Acquire);
    }
    let made = create()?;
    if let Some(count) = count() {
        // The calling thread is counted: it is the program's, or runs its code.
        count.fetch_sub(1, AcqRel);
    }
    Ok(made)
}

/// The calling thread is a daemon, and leaves the program's code. Not for hooks and signal handlers.
pub fn is_idle() {
    if count().is_some_and(|count| count.fetch_sub(1, AcqRel) == 1) {
        exit();
    }
}

/// The calling thread is a daemon, and enters the program's code, or makes another; or it ends, for glibc counts it
/// down then. Not for hooks and signal handlers.
pub fn is_busy() {
    if let Some(count) = count() {
        let with_this = |count: u32| Some(if count == 0 { 2 } else { count.wrapping_add(1) });
        let _ = count.fetch_update(AcqRel, Acquire, with_this);
    }
}

/// The calling thread is a daemon that has ended, and glibc counts it down next: if nobody else is counted, exit(3) is
/// called, and not on this thread. Not for hooks and signal handlers.
pub fn ends_last() {
    if count().is_some_and(|count| count.load(Acquire) == 1) {
        exit();
    }
}

/// On a thread of the usual size, with a mask of the program's, and with nothing of ours below it: what exit(3)
/// calls is the program's. Where that thread is refused, another try follows.
fn exit() {
    extern "C" fn of_the_process(_: *mut c_void) -> *mut c_void {
        signals::restore_remembered();
        const SUCCESS: c_int = 0;
        // SAFETY: as glibc calls it where the last thread ends.
        unsafe { libc::exit(SUCCESS) }
    }
    let mut thread = 0;
    // SAFETY: a function that takes no argument. Nobody joins the thread.
    while unsafe { libc::pthread_create(&raw mut thread, null(), of_the_process, null_mut()) } != 0 {
        // SAFETY: takes a number.
        unsafe { libc::usleep(100_000) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    extern crate std;
    use super::*;

    /// In a process of its own, where nobody else makes threads: a child of one thread.
    fn in_a_child(work: fn(&AtomicU32) -> i32) -> i32 {
        crate::stack_size(0);
        // Nothing is exported before glibc 2.34.
        let Some(count) = count() else { return -1 };
        // SAFETY: the child is of one thread, whose allocator fork(3) keeps usable, and ends in `_exit`.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(work(count));
            }
            let mut status = -1;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status >> 8
        }
    }

    #[test]
    fn a_daemon_is_counted_while_it_runs_the_programs_code() {
        let counts = |count: &AtomicU32| {
            let thread = std::thread::spawn(|| {
                let count = super::count().unwrap();
                is_idle();
                let idle = count.load(Acquire);
                is_busy();
                idle * 4 + count.load(Acquire)
            });
            (thread.join().unwrap() * 4 + count.load(Acquire)) as i32
        };
        let counted = in_a_child(counts);
        assert!(matches!(counted, -1 | 0b01_10_01), "{counted:#b}: 1 while it is idle, 2, and 1");
    }

    #[test]
    fn a_process_that_ends_ends_no_second_time() {
        let made = |count: &AtomicU32| {
            count.store(0, SeqCst);
            let _ = make(|| Ok::<_, ()>(count.fetch_add(1, SeqCst)));
            count.load(SeqCst) as i32
        };
        let busy = |count: &AtomicU32| {
            count.store(0, SeqCst);
            is_busy();
            count.load(SeqCst) as i32
        };
        assert!(matches!(in_a_child(made), -1 | 1), "a thread that is made is one more");
        assert!(matches!(in_a_child(busy), -1 | 2), "it is idle again, or counted down");
    }
}
