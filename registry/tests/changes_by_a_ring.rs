//! An io_uring of the program's makes the kernel drop pages: no entry of libc's sees it.
//! A process of its own, in which nothing else makes system calls itself.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

use pinyard_registry::backend::IoUring;
use pinyard_registry::{Access, RawCaller, Registry, Watch};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

const LEN: usize = 8192;

/// A page's first byte, as the device sees it.
fn sent(ring: &IoUring, registry: &Registry, at: *mut u8, byte: u8) -> u8 {
    // SAFETY: the test's own pages.
    unsafe { at.write_volatile(byte) };
    let lease = registry.get((at.cast_const(), LEN), Access::LOCAL_READ).unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the lease is held.
    unsafe { ring.write_fixed(writer.as_fd(), lease.key(), at, 1) }.unwrap();
    let mut seen = [0];
    reader.read_exact(&mut seen).unwrap();
    seen[0]
}

#[test]
fn what_an_io_uring_is_told_to_drop_is_noticed() {
    let ours = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ours.clone()).build().unwrap();
    assert_eq!(pinyard_registry::raw_callers(), [], "the backend's own ring changes no mapping");
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, 3, flags, -1, 0) }.cast::<u8>();
    assert_eq!(sent(&ours, &registry, at, 1), 1);
    // A registration of before the watching, which ends after one of the same range that
    // is watched has begun.
    let held = registry.get((at.cast_const(), LEN), Access::LOCAL_READ).unwrap();
    let mut ring = io_uring::IoUring::new(4).unwrap();
    assert_eq!(sent(&ours, &registry, at, 2), 2, "which is now watched");
    drop(held);
    while registry.stats().graveyard != 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let found = pinyard_registry::raw_callers();
    assert_eq!(found, [RawCaller::Ring { fd: Some(ring.as_raw_fd()) }]);
    if let Watch::Refused(why) = registry.serving().userfaultfd {
        eprintln!("skipped: {why}");
        return;
    }
    for byte in 3..20 {
        let drop_pages = io_uring::opcode::Madvise::new(at.cast(), LEN as i64, libc::MADV_DONTNEED);
        // SAFETY: the test's own pages.
        unsafe { ring.submission().push(&drop_pages.build()) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        let done = ring.completion().next().unwrap().result();
        if done < 0 {
            eprintln!("skipped: IORING_OP_MADVISE: {}", std::io::Error::from_raw_os_error(-done));
            return;
        }
        assert_eq!(sent(&ours, &registry, at, byte), byte);
    }
}
