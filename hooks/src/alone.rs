//! The end of a process whose program has no thread left.
//!
//! A process lives as long as one of its threads, and glibc ends it by exit(3) when the last that it made
//! ends (pthread_exit(3)). Threads of pinyard's would keep it for ever, with all signals blocked. So once the
//! process's first thread has ended, one more looks ten times a second whether they are the only ones left.
//! A first thread that tells of its end costs nothing until then. Where it does not tell, since the library
//! was loaded by another thread or before a fork, the look is once a second.
//!
//! A thread is pinyard's, of this copy of the library or another, if it has one of the names of pinyard's threads
//! and `SCHED_RESET_ON_FORK` (sched(7)). A thread that the program makes in a function which pinyard calls inherits
//! the name, and not the flag. A thread of which nobody can say whose it is, is the program's.
#![allow(unsafe_code)]

mod tasks;

use crate::sync::{sleep_at_most, wake_one};
use crate::thread_end::at_thread_end;
use crate::{fork, threads};
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Between two looks, in nanoseconds: while the first thread lives, and afterwards.
const LOOKS: [u64; 2] = [1_000_000_000, 100_000_000];
/// So many looks at the number of threads are followed by one at the threads, also where it has not changed.
const AGAIN: u32 = 10;
/// A thread without work of the program's: what it needs itself, in bytes.
const STACK: usize = 64 << 10;

/// [`this_process`] where a thread of pinyard's has begun, where the first thread tells of its end, where it
/// has ended, and where a thread looks.
static BEGAN: AtomicU64 = AtomicU64::new(0);
static TELLS: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
/// The `pthread_t` of the thread that tells, and that of the one that looks.
static FIRST: AtomicU64 = AtomicU64::new(0);
static LOOKS_NOW: AtomicU64 = AtomicU64::new(0);
/// The library is unloaded.
static STOP: AtomicU32 = AtomicU32::new(0);

/// Which process of those that were forked this is; not 0.
fn this_process() -> u64 {
    u64::from(fork::generation()) + 1
}

/// Before a thread of pinyard's is made: the calling thread is asked to tell of its end, if it is the process's
/// first; if nobody tells, somebody looks. By a thread whose descriptors are the program's.
pub fn expect() {
    // Asks the loader, the first time: by no lock of ours.
    let stack = crate::stack_size(STACK);
    if tasks::is_first() {
        ask();
    }
    // SeqCst: either the first thread's end sees this, or its end is seen here.
    BEGAN.store(this_process(), SeqCst);
    if !tells() || ENDED.load(SeqCst) == this_process() {
        start_looking(stack);
    }
}

/// The calling thread is pinyard's from now on, under `name`, or under the name that it has: one of the list in
/// `alone/tasks.rs`.
pub fn begin(name: Option<&core::ffi::CStr>) {
    if cfg!(miri) {
        return;
    }
    // SAFETY: a name; the calling thread's own policy, which it has already.
    unsafe {
        if let Some(name) = name {
            libc::prctl(libc::PR_SET_NAME, name.as_ptr());
        }
        let mut parameters: libc::sched_param = core::mem::zeroed();
        let policy = libc::sched_getscheduler(0);
        if policy >= 0 && libc::sched_getparam(0, &raw mut parameters) == 0 {
            libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &raw const parameters);
        }
    }
}

fn ask() {
    if at_thread_end(ends) {
        // SAFETY: no preconditions.
        FIRST.store(unsafe { libc::pthread_self() }, SeqCst);
        TELLS.store(this_process(), SeqCst);
    }
}

/// Of a thread, at its end.
fn ends() {
    if !tasks::is_first() {
        return;
    }
    ENDED.store(this_process(), SeqCst);
    if BEGAN.load(SeqCst) == this_process() {
        // Known since the first thread of pinyard's.
        start_looking(crate::stack_size(STACK));
    }
}

/// This library is loaded, as a rule by the first thread: by its stack, since loading makes no system call. That
/// stack begins below what the kernel put there for the program, and all other mappings are further away than
/// [`NEAR`].
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn loaded() {
        let here = 0_u8;
        // SAFETY: takes a number.
        let of_first = if cfg!(miri) { 0 } else { (unsafe { libc::getauxval(libc::AT_RANDOM) }) as usize };
        if of_first.wrapping_sub((&raw const here).addr()) < NEAR {
            ask();
        }
    }
    loaded
};

/// Half of what the kernel leaves between the first thread's stack and its next mapping (`mmap_base`), in bytes.
const NEAR: usize = 64 << 20;

/// The library is unloaded, or the process ends: nobody looks any more.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = {
    extern "C" fn stop() {
        STOP.store(1, SeqCst);
        let looks = LOOKED_AT.load(SeqCst) == this_process() && tasks::is_the_process_that_looks();
        let thread = LOOKS_NOW.load(SeqCst);
        if looks && thread != 0 {
            wake_one(&STOP);
            // SAFETY: made by `start_looking`, in this process, and joined once. It waits for nobody.
            unsafe { libc::pthread_join(thread, null_mut()) };
        }
    }
    stop
};

/// Whether the first thread of this process will. In a child of a fork, another may be the first; without
/// hooks no generation says so.
fn tells() -> bool {
    // SAFETY: sends nothing. The first thread's descriptor of glibc's is the loader's, and stays; in a child
    // that another thread forked, no thread has its number.
    TELLS.load(SeqCst) == this_process() && unsafe { libc::pthread_kill(FIRST.load(SeqCst), 0) } == 0
}

/// Once for a process. Where the thread cannot be made, the next thread of pinyard's tries again.
fn start_looking(stack: usize) {
    let process = this_process();
    let before = LOOKED_AT.load(SeqCst);
    if before != process && LOOKED_AT.compare_exchange(before, process, SeqCst, SeqCst).is_ok() {
        tasks::note_process();
        match threads::create(look, null_mut(), stack) {
            Ok(thread) => LOOKS_NOW.store(thread, SeqCst),
            Err(_) => LOOKED_AT.store(0, SeqCst),
        }
    }
}

extern "C" fn look(_: *mut c_void) -> *mut c_void {
    begin(Some(c"pinyard-end"));
    let (mut known, mut looks) = (0, 0);
    while STOP.load(SeqCst) == 0 {
        let has_ended = ENDED.load(SeqCst) == this_process();
        sleep_at_most(&STOP, 0, LOOKS[usize::from(has_ended)]);
        if !tasks::first_has_ended() {
            continue;
        }
        ENDED.store(this_process(), SeqCst);
        let threads = tasks::count();
        looks += 1;
        if threads != known || looks % AGAIN == 0 {
            known = threads;
            // What exit(3) calls may end its thread: then the process is alone again.
            if are_alone() {
                exit();
            }
        }
    }
    null_mut()
}

/// Has a thread of its own look, twice, whose table of descriptors is empty: a number that the program closes, or
/// has free, is none of ours. That thread starts no other, which would have that table.
fn are_alone() -> bool {
    extern "C" fn list(_: *mut c_void) -> *mut c_void {
        begin(Some(c"pinyard-list"));
        let ours = threads::own_descriptors(0).is_ok() && tasks::are_ours() && tasks::are_ours();
        core::ptr::without_provenance_mut(usize::from(ours))
    }
    let mut ours = null_mut();
    let Ok(thread) = threads::create(list, null_mut(), crate::stack_size(STACK)) else { return false };
    // SAFETY: made above, and joined once.
    unsafe { libc::pthread_join(thread, &raw mut ours) };
    !ours.is_null()
}

/// On a thread of the usual size, which takes signals, and which has nothing of ours below it: what exit(3) calls
/// is the program's. Without that thread the process stays.
fn exit() {
    type Start = extern "C" fn(*mut c_void) -> *mut c_void;
    let mut thread = 0;
    // SAFETY: exit takes one integer, which is 0 where the argument is null, and does not return. The mask is
    // this thread's own.
    unsafe {
        let exits = core::mem::transmute::<unsafe extern "C" fn(libc::c_int) -> !, Start>(libc::exit);
        let (mut none, mut all): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, &raw mut all);
        libc::pthread_create(&raw mut thread, core::ptr::null(), exits, null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, null_mut());
    }
}
