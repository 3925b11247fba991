//! A library that is initialised after us patches over our entries, as Open MPI
//! and libfabric do: 13 bytes, `movabs r11, hook; jmp r11`. Its calls must not go
//! unseen, and its own hook must still be called.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_hooks::{Function, Owner};
use pinyard_registry::Registry;
use pinyard_registry::backend::IoUring;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

static THEIRS: AtomicU64 = AtomicU64::new(0);

/// Ends in the system call itself, past everybody.
extern "C" fn their_madvise(addr: usize, len: usize, advice: usize) -> isize {
    THEIRS.fetch_add(1, SeqCst);
    // SAFETY: the arguments are the caller's.
    unsafe { pinyard_hooks::sys::syscall6(libc::SYS_madvise as usize, [addr, len, advice, 0, 0, 0]) }
}

/// How the bytes get there.
type Write = fn(at: *mut u8, bytes: &[u8]);

/// As Open MPI, UCX and libfabric do it.
fn through_mprotect(at: *mut u8, bytes: &[u8]) {
    let page = at.map_addr(|at| at & !(PAGE - 1)).cast();
    let executable = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: overwrites the entry of a function that no other thread of this
    // process is in: the reaper does not call madvise.
    unsafe {
        assert_eq!(libc::mprotect(page, PAGE, executable | libc::PROT_WRITE), 0);
        at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        assert_eq!(libc::mprotect(page, PAGE, executable), 0);
    }
}

/// With no mprotect that a hook could see.
fn unseen(at: *mut u8, bytes: &[u8]) {
    let memory = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    assert_eq!(memory.write_at(bytes, at as u64).unwrap(), bytes.len());
}

fn patch_as_they_do(write: Write) {
    let mut code = vec![0x49, 0xbb];
    code.extend((their_madvise as *const () as usize).to_le_bytes());
    code.extend([0x41, 0xff, 0xe3]);
    // SAFETY: libc is loaded.
    let entry = unsafe {
        let libc_handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(libc_handle, c"madvise".as_ptr()).cast::<u8>()
    };
    write(entry, &code);
}

/// Changes the pages past our hook, and says how soon we knew.
fn patched_over(registry: &Registry, ring: &IoUring, write: Write, knows_at_once: bool) {
    let mut pages = Pages::new(2);
    pages.fill(1);
    drop(read(registry, &pages));
    let (called, flushes) = (THEIRS.load(SeqCst), registry.stats().flushes);

    patch_as_they_do(write);
    pages.advise(libc::MADV_DONTNEED);
    pages.fill(2);
    // The reaper may have been quicker, and tested the entry through theirs.
    assert!(THEIRS.load(SeqCst) > called, "their hook stands in front of ours");
    if !knows_at_once {
        // Nobody told us. The reaper finds the entry changed and flushes.
        eventually(|| registry.stats().flushes > flushes);
    }
    assert_eq!(through(ring, read(registry, &pages).key(), pages.at), 2);

    let line = pinyard_hooks::report().unwrap().functions[Function::Madvise as usize];
    assert_eq!(line.owner, Owner::Pinyard, "{line}");
    let before = THEIRS.load(SeqCst);
    pages.advise(libc::MADV_DONTNEED);
    pages.fill(3);
    assert_eq!(THEIRS.load(SeqCst), before + 1, "theirs is called on");
    assert_eq!(through(ring, read(registry, &pages).key(), pages.at), 3, "seen at once");
}

#[test]
fn a_later_patcher_is_taken_into_the_chain() {
    let ring = Arc::new(IoUring::new(16).unwrap());
    let registry = Registry::builder().backend(ring.clone()).build().unwrap();
    for _ in 0..3 {
        patched_over(&registry, &ring, through_mprotect, true);
        patched_over(&registry, &ring, unseen, false);
    }
}
