//! Where the kernel lets nobody change text, there are no hooks: the report says
//! why, and userfaultfd takes their place. Where the kernel refuses that too, so does
//! the registry. One test, one process: the filter stays.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::IoUring;
use pinyard_registry::{Entries, Registry, Watch};
use std::sync::Arc;

/// Answers EPERM to pwrite (`/proc/self/mem`) and to mprotect that makes code
/// writable, as a hardened kernel would.
fn harden() {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const BITS: u32 = (libc::PROT_WRITE | libc::PROT_EXEC) as u32;
    let mut program = vec![
        op(LOAD, 0, 0, 0),
        op(EQUAL, 4, 0, libc::SYS_pwrite64 as u32),
        op(EQUAL, 0, 4, libc::SYS_mprotect as u32),
        op(LOAD, 0, 0, 16 + 8 * 2),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, BITS),
        op(EQUAL, 0, 1, BITS),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions, for this process's threads.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        assert_eq!(libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &filter), 0);
    }
}

#[test]
fn without_entries_the_kernel_tells_or_the_registry_is_refused() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    harden();
    let registry = match Registry::builder().backend(ring.clone()).build() {
        Ok(registry) => registry,
        Err(error) => {
            assert!(error.to_string().contains("not patched"), "{error}");
            return assert!(pinyard_hooks::userfaultfd::start().is_err());
        }
    };
    let serving = registry.serving();
    assert_eq!(serving.userfaultfd, Watch::InPlaceOfEntries);
    assert!(
        matches!(serving.entries, Entries::Refused("munmap", why) if why.errno == libc::EPERM),
        "{serving}"
    );
    let report = pinyard_hooks::report().unwrap();
    assert!(report.missed().count() > 4, "{report}");
    for round in 1..10 {
        let mut pages = Pages::new(2);
        pages.fill(round);
        assert_eq!(through(&ring, read(&registry, &pages).key(), pages.at), round);
        pages.advise(libc::MADV_DONTNEED);
        pages.fill(round + 100);
        assert_eq!(through(&ring, read(&registry, &pages).key(), pages.at), round + 100, "stale");
    }
    let stats = registry.stats();
    assert_eq!((stats.hits, stats.registrations, stats.uncached), (0, 18, 0));
}
