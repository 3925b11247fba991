//! A program's first thread may end before the others (pthread_exit(3)): the files of
//! `/proc/self` are empty from then on.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::IoUring;
use pinyard_registry::{Entries, Registry, Uncached};
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
