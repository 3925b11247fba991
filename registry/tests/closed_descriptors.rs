//! A program that closes what it does not know, as one that becomes a daemon does, and opens files of its
//! own: pinyard neither uses nor closes those.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, IoUring};
use pinyard_registry::{Access, MemoryKey, Registry};
use std::fs::File;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Closes all but the standard ones, and opens as many files as there were, with their numbers.
fn closes_what_it_does_not_know() -> Vec<File> {
    let numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .filter(|fd| *fd > 2)
        .collect();
    let zero = File::open("/dev/zero").unwrap().into_raw_fd();
    for fd in numbers.into_iter().filter(|fd| *fd != zero) {
        // SAFETY: pinyard's, which the program takes for nobody's.
        unsafe { libc::dup2(zero, fd) };
    }
    let open =
        |fd: &i32| std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to == *"/dev/zero");
    // SAFETY: numbers that were given to /dev/zero above.
    (3..1024).filter(open).map(|fd| unsafe { File::from_raw_fd(fd) }).collect()
}

/// Reading one would end the test, had pinyard closed it.
fn are_open(files: &[File]) {
    assert!(!files.is_empty());
    for file in files {
        std::io::Read::read_exact(&mut &*file, &mut [1]).unwrap();
    }
}

#[test]
fn a_registry_caches_again_and_closes_nothing_of_the_programs() {
    if !is_child() {
        return passes(in_child("a_registry_caches_again_and_closes_nothing_of_the_programs"));
    }
    let next = AtomicU64::new(1);
    let key = move || MemoryKey { lkey: next.fetch_add(1, SeqCst), ..MemoryKey::default() };
    let backend = Custom::new("counting", move |_, _| Ok(key()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).build().unwrap();
    let files = closes_what_it_does_not_know();
    for _ in 0..5 {
        let pages = Pages::new(4);
        let key = || registry.get(&pages, Access::LOCAL_READ).unwrap().lkey();
        assert_eq!(key(), key());
    }
    assert_eq!(registry.stats().uncached, 0);
    drop(registry);
    are_open(&files);
}

#[test]
fn a_ring_says_so_and_closes_nothing_of_the_programs() {
    if !is_child() {
        return passes(in_child("a_ring_says_so_and_closes_nothing_of_the_programs"));
    }
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ring.clone()).build().unwrap();
    let (first, second) = (Pages::new(1), Pages::new(1));
    drop(registry.get(&first, Access::LOCAL_READ).unwrap());
    let files = closes_what_it_does_not_know();
    let refused = registry.get(&second, Access::LOCAL_READ).unwrap_err().to_string();
    assert!(
        refused.contains("io_uring_register") && refused.contains("has closed the ring's descriptor"),
        "{refused}"
    );
    drop((registry, ring));
    are_open(&files);
}

#[test]
fn a_ring_stands_out_of_the_way() {
    if !is_child() {
        return passes(in_child("a_ring_stands_out_of_the_way"));
    }
    for (limit, from) in [(1024, 960), (256, 240)] {
        let limit = libc::rlimit { rlim_cur: limit, rlim_max: 1024 };
        // SAFETY: reads the struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
        let _ring = IoUring::new(16).unwrap();
        assert!(matches!(rings()[..], [fd] if fd >= from), "{:?}", rings());
    }
}
