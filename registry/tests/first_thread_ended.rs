//! A program's first thread may end before the others (pthread_exit(3)): the files of
//! `/proc/self` are empty from then on.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, IoUring};
use pinyard_registry::{Access, Entries, MemoryKey, Registry, Uncached};
use std::sync::Arc;

fn shared_memory_is_known(registry: &Registry, at: *const u8) -> bool {
    matches!(registry.why_uncached((at, PAGE)), Ok(Some(Uncached::Shared)))
}

fn shared() -> *const u8 {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping, which stays.
    unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }.cast()
}

/// What each step of a child's last thread says, in its exit status.
fn last_thread(before: Option<Registry>, mapped_before: usize) -> i32 {
    while !std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| maps.is_empty()) {
        std::thread::yield_now();
    }
    let mapped_before = mapped_before as *const u8;
    if before.is_some_and(|before| {
        !shared_memory_is_known(&before, mapped_before) || !shared_memory_is_known(&before, shared())
    }) {
        return 1;
    }
    let Ok(ring) = IoUring::new(16).map(Arc::new) else { return 2 };
    let Ok(registry) = Registry::builder().backend(ring).build() else { return 3 };
    if !shared_memory_is_known(&registry, mapped_before) || !shared_memory_is_known(&registry, shared()) {
        return 4;
    }
    if !matches!(registry.why_uncached(&Pages::new(1)), Ok(None)) {
        return 5;
    }
    if !matches!(registry.serving().entries, Entries::Complete) {
        return 6;
    }
    0
}

/// The exit status of a child whose first thread ends: `makes_one` registry before.
fn child(makes_one: bool) -> i32 {
    // SAFETY: the child is of one thread, whose allocator fork(3) keeps usable.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            or_be_killed();
            let at = shared() as usize;
            let ring = || Arc::new(IoUring::new(16).unwrap());
            let before = makes_one.then(|| Registry::builder().backend(ring()).build().unwrap());
            std::thread::spawn(move || libc::_exit(last_thread(before, at)));
            libc::syscall(libc::SYS_exit, 0);
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        status
    }
}

#[test]
fn the_other_threads_know_shared_memory_from_private() {
    for makes_one in [true, false] {
        assert_eq!(child(makes_one) >> 8, 0, "a registry of before: {makes_one}");
    }
}

/// The wait status of a child whose first thread ends while another does `work`; one that is still there after
/// half a minute is killed.
fn ends(work: fn()) -> i32 {
    // SAFETY: as in `child`; waits for, or kills, the child.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            std::thread::spawn(work);
            libc::syscall(libc::SYS_exit, 0);
        }
        let mut status = -1;
        for _ in 0..3000 {
            if libc::waitpid(pid, &mut status, libc::WNOHANG) == pid {
                return status;
            }
            libc::usleep(10_000);
        }
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, &mut status, 0);
        status
    }
}

fn registry() -> Registry {
    Registry::builder()
        .backend(Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(())))
        .build()
        .unwrap()
}

/// A process without a thread of the program's ends, whatever pinyard has. Its first thread, which has made no
/// registry, tells nothing; one that has is in `mpi-tests/c/ends.c`.
#[test]
fn a_process_ends_with_the_programs_last_thread() {
    let with_a_registration = || {
        let registry = Box::leak(Box::new(registry()));
        drop(registry.get(&Pages::new(1), Access::LOCAL_READ).unwrap());
    };
    let without_one = || std::mem::forget(registry());
    let watched = || {
        drop(registry());
        let _ = pinyard_hooks::userfaultfd::start();
    };
    assert_eq!([ends(with_a_registration), ends(without_one), ends(watched)], [0; 3]);
}

#[test]
fn a_process_stays_as_long_as_a_thread_of_the_programs() {
    let stays = || {
        std::mem::forget(registry());
        // Three looks of pinyard's at least.
        std::thread::sleep(std::time::Duration::from_millis(3500));
        // SAFETY: ends the process.
        unsafe { libc::_exit(7) }
    };
    assert_eq!(ends(stays), 7 << 8);
}
