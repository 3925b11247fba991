//! Shared memory, whose pages other processes may drop untold: registered by each
//! `get` anew, unless the program vouches for it. Changes of the file that go
//! through libc are then noticed.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Custom, IoUring, MemoryKey};
use pinyard_registry::{Access, GetError, Registry, Uncached};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// A memfd of two pages, mapped.
fn shared() -> (i32, usize) {
    // SAFETY: a file and a mapping of the test's own.
    unsafe {
        let fd = libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC);
        assert_eq!(libc::ftruncate(fd, 2 * PAGE as i64), 0);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), 2 * PAGE, both, libc::MAP_SHARED, fd, 0);
        assert_ne!(at, libc::MAP_FAILED);
        (fd, at as usize)
    }
}

fn write(at: usize, byte: u8) {
    // SAFETY: the first byte of the test's own mapping.
    unsafe { (at as *mut u8).write_volatile(byte) };
}

#[test]
fn shared_memory_is_kept_only_if_the_program_vouches_for_it() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let careful = Registry::builder().backend(ring.clone()).build().unwrap();
    let (fd, at) = shared();
    let buffer = (at as *const u8, PAGE);
    write(at, 1);
    for _ in 0..2 {
        assert_eq!(through(&ring, read(&careful, buffer).key(), at), 1);
    }
    assert_eq!((careful.stats().uncached, careful.stats().hits), (2, 0));
    assert_eq!(careful.why_uncached(buffer).unwrap(), Some(Uncached::Shared));
    let private = Pages::new(1);
    assert_eq!(careful.why_uncached(&private).unwrap(), None);

    let trusting = Registry::builder().backend(ring.clone()).trust_shared_memory().build().unwrap();
    for _ in 0..2 {
        assert_eq!(through(&ring, read(&trusting, buffer).key(), at), 1);
    }
    assert_eq!((trusting.stats().uncached, trusting.stats().hits), (0, 1));
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the test's own file.
    assert_eq!(unsafe { libc::fallocate(fd, punch, 0, PAGE as i64) }, 0);
    write(at, 2);
    assert_eq!(through(&ring, read(&trusting, buffer).key(), at), 2, "the hole was not noticed");
}

/// Truncates and lengthens the file.
fn truncate(fd: i32) {
    // SAFETY: a file of the test's own, of which nothing is read meanwhile.
    assert_eq!(unsafe { [libc::ftruncate(fd, 0), libc::ftruncate(fd, 2 * PAGE as i64)] }, [0, 0]);
}

#[test]
fn a_change_of_a_file_costs_private_memory_nothing() {
    let registry =
        Registry::builder().backend(IoUring::new(64).unwrap()).trust_shared_memory().build().unwrap();
    let ((fd, at), (other, _)) = (shared(), shared());
    let (of_file, private) = ((at as *const u8, PAGE), Pages::new(1));
    drop((read(&registry, of_file), read(&registry, &private)));
    for changed in [fd, other] {
        truncate(changed);
        assert!(registry.lookup(&private, Access::LOCAL_READ).is_some());
        assert_eq!(registry.lookup(of_file, Access::LOCAL_READ), None, "some file has changed");
        write(at, 1);
        drop(read(&registry, of_file));
        assert!(registry.lookup(of_file, Access::LOCAL_READ).is_some());
    }
    let counts = registry.stats();
    assert_eq!((counts.registrations, counts.retries, counts.flushes), (4, 0, 0));
    // Those are taken out that nobody asks for again, too.
    truncate(other);
    while registry.stats().regions != 1 {
        std::thread::yield_now();
    }
}

#[test]
fn no_registration_of_private_memory_is_spoiled_by_a_file() {
    let (_, file) = (shared(), shared().0);
    let registrations = Arc::new(AtomicU64::new(0));
    let made = registrations.clone();
    let backend = Custom::new(
        "truncating",
        move |_, _| {
            truncate(file);
            made.fetch_add(1, SeqCst);
            Ok(MemoryKey::default())
        },
        |_, _| Ok(()),
    );
    let registry = Registry::builder().backend(backend).trust_shared_memory().build().unwrap();
    // From here on the hooks publish changes of files.
    let of_file = shared().1;
    drop(registry.get((of_file as *const u8, PAGE), Access::LOCAL_READ).unwrap());
    let before = registrations.load(SeqCst);
    assert!(before > 1, "a change of a file was not told");
    drop(read(&registry, &Pages::new(1)));
    assert_eq!(registrations.load(SeqCst), before + 1);
}

/// Whoever mapped it, and how: nothing that is shared is taken for private memory.
fn no_way_of_mapping_is_overlooked() {
    let before = shared().1;
    let careful = Registry::builder().backend(IoUring::new(64).unwrap()).build().unwrap();
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let anonymous = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let over = Pages::apart(4);
    let null = std::ptr::null_mut();
    // SAFETY: mappings of the test's own, which stay.
    let mapped: Vec<(&str, usize)> = unsafe {
        let segment = libc::shmget(libc::IPC_PRIVATE, 2 * PAGE, 0o600);
        let attached = libc::shmat(segment, null, 0) as usize;
        libc::shmctl(segment, libc::IPC_RMID, null.cast());
        let fixed = anonymous | libc::MAP_FIXED;
        let moved = libc::mmap(null, PAGE, both, anonymous, -1, 0);
        vec![
            ("before the hooks, or long ago", before),
            ("a file", shared().1),
            ("anonymous", libc::mmap(null, PAGE, both, anonymous, -1, 0) as usize),
            ("over private memory", libc::mmap(over.at as *mut _, PAGE, both, fixed, -1, 0) as usize),
            ("by number", libc::syscall(libc::SYS_mmap, 0, PAGE, both, anonymous, -1, 0) as usize),
            ("moved", libc::mremap(moved, PAGE, 64 * PAGE, libc::MREMAP_MAYMOVE) as usize),
            ("attached", attached),
        ]
    };
    for (how, at) in mapped {
        let buffer = (at as *const u8, PAGE);
        assert_eq!(careful.why_uncached(buffer).unwrap(), Some(Uncached::Shared), "{how}");
        // Linux 5.15's io_uring pins no pages of files.
        match careful.get(buffer, Access::LOCAL_READ) {
            Err(GetError::Backend { source, .. }) if source.errno == libc::EOPNOTSUPP => {}
            got => drop(got.unwrap()),
        }
        assert_eq!(careful.lookup(buffer, Access::LOCAL_READ), None, "{how}");
    }
    assert_eq!(careful.why_uncached(&Pages::new(1)).unwrap(), None);
}

#[test]
fn however_it_was_mapped_shared_memory_is_not_kept() {
    if !is_child() {
        return passes(in_child("however_it_was_mapped_shared_memory_is_not_kept"));
    }
    no_way_of_mapping_is_overlooked();
}
