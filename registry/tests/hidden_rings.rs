//! io_urings of the program's that a look at the descriptors does not find.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::RawCaller;
use pinyard_registry::backend::IoUring;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A registry, whose own ring is no raw caller, and its ring.
fn registry() -> (pinyard_registry::Registry, i32) {
    let before: Vec<i32> = rings();
    let ring = IoUring::new(16).unwrap();
    let own: Vec<i32> = rings().into_iter().filter(|fd| !before.contains(fd)).collect();
    let registry = pinyard_registry::Registry::builder().backend(ring).build().unwrap();
    assert_eq!(pinyard_registry::raw_callers(), [], "the backend's own ring changes no mapping");
    (registry, own[0])
}

fn rings() -> Vec<i32> {
    let is_ring = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|link| link.to_str() == Some("anon_inode:[io_uring]"))
    };
    let all = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let number = |path: std::path::PathBuf| path.file_name()?.to_str()?.parse().ok();
    all.filter(is_ring).filter_map(number).collect()
}

#[test]
fn one_that_has_the_number_of_a_closed_ring_of_ours_is_found() {
    if !is_child() {
        return passes(in_child("one_that_has_the_number_of_a_closed_ring_of_ours_is_found"));
    }
    or_be_killed();
    let (registry, own) = registry();
    // As a program does that closes what it does not know.
    // SAFETY: nobody uses the ring any more: the registry is forgotten below.
    drop(unsafe { OwnedFd::from_raw_fd(own) });
    let mut others = Vec::new();
    while others.iter().all(|ring: &io_uring::IoUring| ring.as_raw_fd() != own) {
        others.push(io_uring::IoUring::new(4).unwrap());
    }
    while others.len() > 1 {
        let other = others.iter().position(|ring| ring.as_raw_fd() != own).unwrap();
        drop(others.swap_remove(other));
    }
    assert_eq!(pinyard_registry::raw_callers(), [RawCaller::Ring { fd: None }]);
    std::mem::forget(registry);
}

#[test]
fn one_in_another_threads_table_of_descriptors_is_found() {
    if !is_child() {
        return passes(in_child("one_in_another_threads_table_of_descriptors_is_found"));
    }
    or_be_killed();
    let (_registry, _) = registry();
    let (made, wait) = std::sync::mpsc::channel();
    let (_end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
        let ring = io_uring::IoUring::new(4).unwrap();
        made.send(()).unwrap();
        let _ = ended.recv();
        drop(ring);
    });
    wait.recv().unwrap();
    assert_eq!(pinyard_registry::raw_callers(), [RawCaller::Ring { fd: None }]);
    drop(_end);
    thread.join().unwrap();
}

/// Where descriptors are used up while the process is looked at, one may be there.
#[test]
fn one_may_be_there_where_nobody_can_look() {
    if !is_child() {
        return passes(in_child("one_may_be_there_where_nobody_can_look"));
    }
    or_be_killed();
    let before = pinyard_registry::raw_callers();
    assert_eq!(before, []);
    let (_registry, _) = registry();
    let _ring = io_uring::IoUring::new(4).unwrap();
    // Room for the maps and the memory, but for no third.
    let mut taken = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        taken.push(file);
    }
    taken.truncate(taken.len() - 1);
    let found = pinyard_registry::raw_callers();
    assert!(matches!(found.as_slice(), [RawCaller::Object { .. }]), "{found:?}");
}
