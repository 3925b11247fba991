//! Changes of mappings that are made in signal handlers: one that interrupts gets,
//! drains and pushes at any point, and one that a backend's own access raises.
//! One process, one test: the handlers are its own.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, IoUring};
use pinyard_registry::{Access, MemoryKey, Registry};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

static TARGET: AtomicUsize = AtomicUsize::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn replace_page(_: i32) {
    HANDLED.fetch_add(1, SeqCst);
    // SAFETY: the test's own page, whose contents it does not rely on.
    unsafe { libc::madvise(TARGET.load(SeqCst) as *mut _, PAGE, libc::MADV_DONTNEED) };
}

/// A page that faults is mapped anew, as a garbage collector's handler would.
extern "C" fn map_page(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the faulting address is in a page of the test's own.
    unsafe {
        let page = (*info).si_addr().map_addr(|at| at & !(PAGE - 1));
        if page.addr() != TARGET.load(SeqCst) {
            libc::_exit(9);
        }
        HANDLED.fetch_add(1, SeqCst);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        libc::mmap(page, PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    }
}

/// A timer that interrupts this thread, and no other.
struct Alarm(libc::timer_t);

impl Alarm {
    fn every(nanoseconds: i64) -> Alarm {
        // SAFETY: a timer of this thread, deleted on drop.
        unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let mut id = null_mut();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut id), 0);
            let alarm = Alarm(id);
            alarm.set(nanoseconds);
            alarm
        }
    }

    fn set(&self, nanoseconds: i64) {
        let every = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
        let timer = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the timer is this value's; the kernel reads `timer`.
        assert_eq!(unsafe { libc::timer_settime(self.0, 0, &timer, null_mut()) }, 0);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: made by `every`.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn block(how: i32) {
    // SAFETY: the calling thread's own mask.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGALRM);
        assert_eq!(libc::pthread_sigmask(how, &set, null_mut()), 0);
    }
}

/// The alarm goes off inside gets, drains, registrations and pushes of this
/// thread. Whatever it hit, a get that starts afterwards is right.
fn interrupted_anywhere() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ring.clone()).build().unwrap();
    let mut pages = Pages::new(1);
    TARGET.store(pages.at, SeqCst);
    // SAFETY: the handler makes one system call and counts.
    unsafe { libc::signal(libc::SIGALRM, replace_page as *const () as usize) };
    let alarm = Alarm::every(60_000);
    let mut round = 0_u64;
    while HANDLED.load(SeqCst) < 3000 || round < 300 {
        round += 1;
        for _ in 0..50 {
            drop(registry.get(&pages, Access::LOCAL_READ).unwrap());
            pages.advise(libc::MADV_DONTNEED);
        }
        block(libc::SIG_BLOCK);
        pages.fill(round as u8);
        assert_eq!(through(&ring, read(&registry, &pages).key(), pages.at), round as u8, "stale");
        block(libc::SIG_UNBLOCK);
    }
    drop(alarm);
}

/// The backend touches the page that it registers; the fault's handler maps
/// another page there, while this thread is in the middle of a get.
fn faulting_in_the_backend() {
    // SAFETY: the handler makes one system call and counts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = map_page as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSEGV, &action, null_mut()), 0);
    }
    HANDLED.store(0, SeqCst);
    let backend = Custom::new(
        "touching",
        |range, _| {
            // SAFETY: mapped by the test, or by its handler at this access.
            let byte = unsafe { (range.start as *const u8).read_volatile() };
            Ok(MemoryKey { lkey: u64::from(byte), rkey: 0, handle: 0 })
        },
        |_, _| Ok(()),
    );
    let registry = Registry::builder().backend(backend).build().unwrap();
    for round in 1..200 {
        let pages = Pages::with_protection(1, libc::PROT_NONE);
        TARGET.store(pages.at, SeqCst);
        drop(registry.get(&pages, Access::LOCAL_READ).unwrap());
        assert_eq!(HANDLED.load(SeqCst), round);
        let stats = registry.stats();
        assert!(stats.retries >= round, "the registration that the handler spoiled was kept");
    }
}

#[test]
fn handlers_may_change_mappings_anywhere() {
    interrupted_anywhere();
    faulting_in_the_backend();
}
