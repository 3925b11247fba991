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

/// What is found while a thread with a table of descriptors of its own has what `make` made; `None` where it made
/// nothing.
fn found_beside<R: Send>(make: impl FnOnce() -> Option<R> + Send + 'static) -> Option<Vec<RawCaller>> {
    let (made, wait) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        // SAFETY: no memory is passed.
        assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0);
        let ring = make();
        made.send(ring.is_some()).unwrap();
        let _ = ended.recv();
    });
    let found = wait.recv().unwrap().then(pinyard_registry::raw_callers);
    drop(end);
    thread.join().unwrap();
    found
}

#[test]
fn one_that_has_the_number_of_a_closed_ring_of_ours_is_found() {
    if !is_child() {
        return passes(in_child("one_that_has_the_number_of_a_closed_ring_of_ours_is_found"));
    }
    or_be_killed();
    let (registry, own) = registry();
    // As a program does that closes what it does not know, and opens its own.
    let made = io_uring::IoUring::new(4).unwrap();
    // SAFETY: nobody uses ours any more: the registry is forgotten below.
    let other = unsafe {
        assert_eq!(libc::dup2(made.as_raw_fd(), own), own);
        io_uring::IoUring::<io_uring::squeue::Entry>::from_fd(own, made.params().clone()).unwrap()
    };
    drop(made);
    let found = pinyard_registry::raw_callers();
    // Before Linux 5.16 the mapping alone tells.
    assert!(matches!(found[..], [RawCaller::Ring { fd }] if fd.is_none_or(|fd| fd == own)), "{found:?}");
    drop(other);
    std::mem::forget(registry);
}

#[test]
fn one_in_another_threads_table_of_descriptors_is_found() {
    if !is_child() {
        return passes(in_child("one_in_another_threads_table_of_descriptors_is_found"));
    }
    or_be_killed();
    let (_registry, _) = registry();
    let found = found_beside(|| Some(io_uring::IoUring::new(4).unwrap()));
    assert_eq!(found.unwrap(), [RawCaller::Ring { fd: None }]);
}

/// `IORING_SETUP_NO_MMAP`: the kernel maps it nowhere. Linux 6.5.
const NO_MMAP: u32 = 1 << 14;
/// `IORING_SETUP_REGISTERED_FD_ONLY`: it has no descriptor.
const REGISTERED_FD_ONLY: u32 = 1 << 15;

/// A ring without mappings, as a program makes it that calls libc's syscall(2) itself. `None` where the kernel
/// is older.
fn without_mappings() -> Option<OwnedFd> {
    // SAFETY: made just now.
    ring_by_syscall(NO_MMAP).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the kernel answers for a ring with these flags, unless it refuses.
fn ring_by_syscall(flags: u32) -> Option<i32> {
    // The queues' memory, a page each; it stays as long as the process.
    let pages = Box::leak(Box::new(Pages::new(2)));
    // `struct io_uring_params`: its flags, and `user_addr` of both offsets' structures.
    let mut parameters = [0_u32; 30];
    parameters[2] = flags;
    let address = |page: usize| (pages.at + page * PAGE) as u64;
    for (at, address) in [(18, address(0)), (28, address(1))] {
        parameters[at] = address as u32;
        parameters[at + 1] = (address >> 32) as u32;
    }
    // SAFETY: a structure of this size, and pages of this test's own.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) } as i32;
    (fd >= 0).then_some(fd)
}

#[test]
fn one_without_mappings_and_descriptor_is_found() {
    if !is_child() {
        return passes(in_child("one_without_mappings_and_descriptor_is_found"));
    }
    or_be_killed();
    let (_registry, _) = registry();
    if ring_by_syscall(NO_MMAP | REGISTERED_FD_ONLY).is_none() {
        return eprintln!("skipped: Linux before 6.5");
    }
    assert_eq!(pinyard_registry::raw_callers(), [RawCaller::Ring { fd: None }]);
}

#[test]
fn one_without_mappings_that_has_the_number_of_a_closed_ring_of_ours_is_found() {
    let name = "one_without_mappings_that_has_the_number_of_a_closed_ring_of_ours_is_found";
    if !is_child() {
        return passes(in_child(name));
    }
    or_be_killed();
    let (registry, own) = registry();
    let Some(ring) = without_mappings() else { return eprintln!("skipped: Linux before 6.5") };
    // SAFETY: nobody uses ours any more: the registry is forgotten below.
    unsafe { assert_eq!(libc::dup2(ring.as_raw_fd(), own), own) };
    drop(ring);
    assert_eq!(pinyard_registry::raw_callers(), [RawCaller::Ring { fd: Some(own) }]);
    std::mem::forget(registry);
}

#[test]
fn one_without_mappings_in_another_threads_table_of_descriptors_is_found() {
    let name = "one_without_mappings_in_another_threads_table_of_descriptors_is_found";
    if !is_child() {
        return passes(in_child(name));
    }
    or_be_killed();
    let (_registry, _) = registry();
    match found_beside(without_mappings) {
        Some(found) => assert_eq!(found, [RawCaller::Ring { fd: None }]),
        None => eprintln!("skipped: Linux before 6.5"),
    }
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
