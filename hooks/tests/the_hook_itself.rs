//! Invariant 1: between entry and the real call a hook allocates nothing, takes
//! no lock, makes no other system call, keeps errno, and is safe in a signal
//! handler.
//!
//! Every test first shows that its own trap works: a hook that did the
//! forbidden thing would be caught.

#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_macros)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard};

use pinyard_hooks::{Subscription, install, notify_unmapped, subscribe};

const PAGE: usize = 4096;
const UNALIGNED: *mut libc::c_void = std::ptr::without_provenance_mut(1);

/// An allocator with a lock of its own that releases pages while it holds it,
/// as mimalloc and jemalloc do. Whoever allocates inside that window has caused
/// the hang of Open MPI #13149; here it is counted instead.
struct Purging;
static HELD: AtomicBool = AtomicBool::new(false);
static REENTERED: AtomicU64 = AtomicU64::new(0);
static ARMED: AtomicBool = AtomicBool::new(false);
static SCRATCH: AtomicU64 = AtomicU64::new(0);
thread_local! { static INSIDE: Cell<bool> = const { Cell::new(false) }; }

fn purge() {
    if !ARMED.load(Relaxed) || INSIDE.replace(true) {
        if INSIDE.get() && HELD.load(Relaxed) {
            REENTERED.fetch_add(1, Relaxed);
        }
        return;
    }
    HELD.store(true, SeqCst);
    // SAFETY: the scratch pages belong to the test; nothing is kept in them.
    unsafe { libc::madvise(SCRATCH.load(Relaxed) as *mut _, PAGE, libc::MADV_DONTNEED) };
    HELD.store(false, SeqCst);
    INSIDE.set(false);
}

// SAFETY: passes every call to `System`.
unsafe impl GlobalAlloc for Purging {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        purge();
        // SAFETY: the caller's contract is System's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        purge();
        // SAFETY: the caller's contract is System's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Purging = Purging;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Watched {
    sink: Subscription,
    base: usize,
    _turn: MutexGuard<'static, ()>,
}

fn watched() -> Watched {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    assert!(install().is_complete());
    let base = map();
    let sink = subscribe().unwrap();
    sink.watch(base..base + PAGE);
    drain(&sink);
    Watched { sink, base, _turn: turn }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.sink.unwatch(self.base..self.base + PAGE);
    }
}

fn map() -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping.
    let at = unsafe { libc::mmap(null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn drain(sink: &Subscription) -> u64 {
    let mut events = 0;
    let mark = sink.begin();
    events += sink.take(|_| events += 1) as u64;
    sink.finish(mark);
    events
}

#[test]
fn allocates_nothing_although_it_runs_inside_malloc() {
    let watched = watched();
    SCRATCH.store(watched.base as u64, Relaxed);
    // The trap works: an allocation between the purge's entry and exit counts.
    ARMED.store(true, SeqCst);
    HELD.store(true, SeqCst);
    INSIDE.set(true);
    drop(Box::new(1));
    INSIDE.set(false);
    HELD.store(false, SeqCst);
    assert!(REENTERED.swap(0, SeqCst) > 0, "the trap does not catch an allocation");
    let before = watched.sink.pushed();
    for round in 0..1000 {
        drop(std::hint::black_box(vec![round; 100]));
    }
    ARMED.store(false, SeqCst);
    assert!(watched.sink.pushed() >= before + 2000, "the hook ran inside malloc and free");
    assert_eq!(REENTERED.load(SeqCst), 0, "a hook allocated");
}

#[test]
fn keeps_errno_where_the_call_succeeds_and_sets_it_where_it_fails() {
    let watched = watched();
    // SAFETY: errno is the thread's own; the calls touch only the test's page
    // or fail before touching any.
    unsafe {
        *libc::__errno_location() = 77;
        assert_eq!(libc::madvise(watched.base as *mut _, PAGE, libc::MADV_DONTNEED), 0);
        assert_eq!(*libc::__errno_location(), 77);
        assert_eq!(libc::munmap(UNALIGNED, PAGE), -1);
        assert_eq!(*libc::__errno_location(), libc::EINVAL);
        assert_eq!(libc::mmap(UNALIGNED, 0, 0, libc::MAP_PRIVATE, -1, 0), libc::MAP_FAILED);
        assert_eq!(libc::syscall(libc::SYS_munmap, 1, PAGE), -1);
        assert_eq!(*libc::__errno_location(), libc::EINVAL);
        assert_eq!(libc::syscall(libc::SYS_close, -1), -1);
        assert_eq!(*libc::__errno_location(), libc::EBADF);
        assert_eq!(libc::syscall(libc::SYS_getpid), libc::getpid() as i64);
    }
}

/// A child under seccomp that allows madvise, exit and nothing else.
#[test]
fn makes_no_other_system_call() {
    let watched = watched();
    let child = |work: &dyn Fn()| -> i32 {
        // SAFETY: the child calls only async-signal-safe functions.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                allow_only(&[libc::SYS_madvise, libc::SYS_exit_group]);
                work();
                libc::_exit(0);
            }
            let mut status = 0;
            libc::waitpid(pid, &mut status, 0);
            status
        }
    };
    // SAFETY: getppid has no preconditions.
    let trapped = child(&|| unsafe { _ = libc::getppid() });
    assert!(libc::WIFSIGNALED(trapped), "the trap does not catch a system call: {trapped:#x}");
    let base = watched.base;
    let clean = child(&|| {
        for _ in 0..5000 {
            // SAFETY: the test's own page.
            unsafe { libc::madvise(base as *mut _, PAGE, libc::MADV_DONTNEED) };
            notify_unmapped(base as *const u8, PAGE);
        }
    });
    assert_eq!(clean, 0, "a hook made a system call of its own");
}

fn allow_only(numbers: &[i64]) {
    const LOAD_NR: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JEQ: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RET: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let op = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let mut program = vec![op(LOAD_NR, 0, 0)];
    for (index, number) in numbers.iter().enumerate() {
        program.push(op(JEQ, (numbers.len() - index) as u8, *number as u32));
    }
    program.push(op(RET, 0, libc::SECCOMP_RET_KILL_PROCESS));
    program.push(op(RET, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions, for this process alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter), 0);
    }
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn change_a_mapping(_: i32) {
    HANDLED.fetch_add(1, Relaxed);
    // SAFETY: the scratch page is the test's own.
    unsafe { libc::madvise(SCRATCH.load(Relaxed) as *mut _, PAGE, libc::MADV_DONTNEED) };
}

/// Pushes from a handler that interrupts pushes and drains of the same thread.
#[test]
fn is_safe_in_a_signal_handler() {
    let watched = watched();
    SCRATCH.store(watched.base as u64, Relaxed);
    let tick = libc::timeval { tv_sec: 0, tv_usec: 50 };
    let timer = libc::itimerval { it_interval: tick, it_value: tick };
    let off = libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 },
        it_value: libc::timeval { tv_sec: 0, tv_usec: 0 },
    };
    // SAFETY: the handler is async-signal-safe: an atomic and a system call.
    unsafe {
        libc::signal(libc::SIGALRM, change_a_mapping as *const () as usize);
        assert_eq!(libc::setitimer(libc::ITIMER_REAL, &timer, null_mut()), 0);
    }
    let mut lost = 0;
    while HANDLED.load(Relaxed) < 1000 {
        // SAFETY: as above.
        unsafe { libc::madvise(watched.base as *mut _, PAGE, libc::MADV_DONTNEED) };
        lost += (drain(&watched.sink) == 0) as u64;
    }
    // SAFETY: stops the timer.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &off, null_mut()) };
    assert_eq!(lost, 0, "an event was lost");
}

/// Raw, hooked, and through every thread at once: counts agree.
#[test]
fn threads_lose_no_event() {
    let watched = watched();
    let before = watched.sink.pushed();
    let base = watched.base;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for _ in 0..20_000 {
                    // SAFETY: the test's own page.
                    unsafe { libc::madvise(base as *mut _, PAGE, libc::MADV_DONTNEED) };
                }
            });
        }
    });
    assert!(watched.sink.pushed() - before >= 80_000);
    assert!(drain(&watched.sink) >= 1);
}
