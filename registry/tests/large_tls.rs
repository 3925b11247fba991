//! A program with 8 MiB of static thread-local storage, as Fortran's threadprivate commons
//! make it, and with system calls of its own: every thread of the library runs, and
//! userfaultfd's tells of changes. Where that thread cannot be had, nothing is cached, and
//! the log says so once.
//!
//! No test harness: its threads would have what glibc leaves of 2 MiB.
#![cfg(not(loom))]
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;
#[path = "common/raw.rs"]
mod raw;

use common::*;
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MemoryKey, Registry, Uncached};
use raw::raw_munmap;
use std::cell::UnsafeCell;
use std::hint::black_box;
use std::sync::Mutex;

const LARGE: usize = 8 << 20;
thread_local! { static TLS: UnsafeCell<[u8; LARGE]> = const { UnsafeCell::new([0; LARGE]) }; }

/// Every line that was logged.
static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct ToLines;

impl std::io::Write for ToLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LINES.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn registry() -> Registry {
    // A device library that wants some stack of the thread that calls it.
    let deregister = |_, _| {
        black_box([0_u8; 256 << 10]);
        Ok(())
    };
    let backend = Custom::new("counting", |_, _| Ok(MemoryKey::default()), deregister);
    Registry::builder().backend(backend).build().unwrap()
}

const LEN: usize = 16 * 4096;

fn map() -> *mut u8 {
    let (both, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, both, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn get(registry: &Registry, at: *mut u8) {
    drop(registry.get((at.cast_const(), LEN), Access::LOCAL_WRITE).unwrap());
}

/// A thread that cannot be made: clone3(2) is not there, and clone(2) says EAGAIN.
fn forbid_threads() {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let refuse = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(equal, 2, 0, libc::SYS_clone3 as u32),
        op(equal, 2, 0, libc::SYS_clone as u32),
        op(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        op(answer, 0, 0, refuse(libc::ENOSYS)),
        op(answer, 0, 0, refuse(libc::EAGAIN)),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions, for this thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

fn without_its_thread_nothing_is_cached_and_the_log_says_so_once() {
    tracing_subscriber::fmt().with_ansi(false).with_writer(|| ToLines).init();
    let registry = registry();
    forbid_threads();
    let at = map();
    (0..10).for_each(|_| get(&registry, at));
    let stats = registry.stats();
    assert_eq!((stats.registrations, stats.hits), (10, 0));
    let why = registry.why_uncached((at.cast_const(), LEN)).unwrap();
    assert!(matches!(why, Some(Uncached::Unwatched(why)) if why.errno == libc::EAGAIN), "{why:?}");
    let lines = String::from_utf8(LINES.lock().unwrap().clone()).unwrap();
    let about = |line: &&str| line.contains("WARN") && line.contains("pthread_create(a thread");
    let said: Vec<&str> = lines.lines().filter(about).collect();
    assert_eq!(said.len(), 1, "{lines}");
    assert!(said[0].contains("errno 11") && said[0].contains("ulimit -u"), "{}", said[0]);
}

fn threads_run_beside_large_thread_local_storage() {
    let registry = registry();
    let at = map();
    (0..10).for_each(|_| get(&registry, at));
    let stats = registry.stats();
    let why = registry.why_uncached((at.cast_const(), LEN)).unwrap();
    assert_eq!((stats.registrations, stats.hits), (1, 9), "{why:?}\n{}", registry.serving());
    for round in 0..200 {
        let other = map();
        get(&registry, other);
        // SAFETY: this function's pages, which nobody uses any more.
        unsafe { raw_munmap(other, LEN) };
        let again = map();
        let before = registry.stats().registrations;
        get(&registry, again);
        assert_eq!(registry.stats().registrations, before + 1, "round {round}: of the old pages");
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(again.cast(), LEN) }, 0);
    }
    assert!(pinyard_hooks::userfaultfd::events() >= 200);
    // The reaper deregisters what is gone, without a further call.
    eventually(|| registry.stats().regions <= 1);
}

fn main() {
    // SAFETY: this thread's own.
    TLS.with(|tls| assert_eq!(unsafe { (*tls.get())[LARGE / 2] }, 0));
    match std::env::args().nth(1).as_deref() {
        Some("--runs") => return threads_run_beside_large_thread_local_storage(),
        Some("--refused") => return without_its_thread_nothing_is_cached_and_the_log_says_so_once(),
        _ => {}
    }
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, 1) };
    if fd < 0 {
        println!("skipped: userfaultfd is refused: {}", std::io::Error::last_os_error());
        return println!("0 passed, 0 failed, 1 skipped");
    }
    // SAFETY: opened just now.
    unsafe { libc::close(fd as i32) };
    for case in ["--runs", "--refused"] {
        let status = std::process::Command::new(std::env::current_exe().unwrap()).arg(case).status();
        assert!(status.as_ref().is_ok_and(|status| status.success()), "{case}: {status:?}");
    }
    println!("2 passed, 0 failed");
}
