//! Hooks go in and out while threads run every hooked function: nobody crashes,
//! every call does what it should, and no page of text is ever writable and
//! executable unless the kernel refuses the other way.
//!
//! Each case runs in a child: its filters and crashes are its own.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod common;

use common::{ANONYMOUS, BOTH, PAGE, child, emulated, entries};
use pinyard_hooks::{Function, Owner, install, remove, subscribe, verify};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Flips per run; each takes every function's hook out and puts it in.
fn flips() -> usize {
    std::env::var("PINYARD_FLIPS").ok().and_then(|text| text.parse().ok()).unwrap_or(3000)
}

/// One call of every function that is ever patched, checked.
fn hammer(seed: usize) {
    // SAFETY: memory of this call's own; brk(0) and madvise of no bytes change
    // nothing; shmdt of an address that is no segment fails.
    unsafe {
        let at = libc::mmap(null_mut(), 2 * PAGE, BOTH, ANONYMOUS, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<usize>().write_volatile(seed);
        assert_eq!(libc::madvise(at, PAGE, libc::MADV_DONTNEED), 0);
        assert_eq!(at.cast::<usize>().read_volatile(), 0);
        let at = libc::mremap(at, 2 * PAGE, 4 * PAGE, libc::MREMAP_MAYMOVE);
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::syscall(libc::SYS_madvise, at, PAGE, libc::MADV_DONTNEED), 0);
        assert_eq!(libc::syscall(libc::SYS_getpid), i64::from(libc::getpid()));
        assert_eq!(libc::munmap(at, 4 * PAGE), 0);
        assert_eq!(libc::brk(null_mut()), 0);
        assert_eq!(libc::shmdt(null_mut()), -1);
        let none = libc::iovec { iov_base: null_mut(), iov_len: 0 };
        assert_eq!(process_madvise(-1, &none, 0, libc::MADV_COLD, 0), -1);
        assert_ne!(libc::sbrk(0) as isize, -1);
    }
}

unsafe extern "C" {
    /// Not in the libc crate.
    fn process_madvise(
        pidfd: i32,
        ranges: *const libc::iovec,
        count: usize,
        advice: i32,
        flags: u32,
    ) -> isize;
}

/// A seccomp filter that answers EPERM where `program` jumps to its last line.
fn refuse(number: i64, argument: Option<(u32, u32)>) {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let (at, bits) = argument.unwrap_or((0, 0));
    let mut program = vec![
        op(LOAD, 0, 0, 0),
        op(EQUAL, 0, 4, number as u32),
        op(LOAD, 0, 0, 16 + 8 * at),
        op(AND, 0, 0, bits),
        op(EQUAL, 0, 1, bits),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions, for this process and its threads.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter), 0);
    }
}

fn refuse_proc_self_mem() {
    refuse(libc::SYS_pwrite64, None);
}

fn refuse_writable_text() {
    refuse(libc::SYS_mprotect, Some((2, (libc::PROT_WRITE | libc::PROT_EXEC) as u32)));
}

/// Mappings that are writable and executable at this moment.
fn writable_code() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("rwx")).map(str::to_owned).collect()
}

/// Whether every function is patched that can be beside other threads: in Ubuntu's libc
/// mremap cannot.
fn is_in_place(report: &pinyard_hooks::Report) -> bool {
    report.missed().all(|line| line.to_string().contains("install earlier"))
}

/// Threads hammer, one watches the map, this one flips.
fn flip_under_fire(watch_map: bool) {
    let (done, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (done, calls) = (&done, &calls);
            scope.spawn(move || {
                while !done.load(Relaxed) {
                    hammer(thread + 1);
                    calls.fetch_add(1, Relaxed);
                }
            });
        }
        if watch_map {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    assert_eq!(writable_code(), Vec::<String>::new());
                }
            });
        }
        let flip = std::panic::catch_unwind(|| {
            for flip in 0..flips() {
                let report = install();
                assert!(is_in_place(&report), "flip {flip}:\n{report}");
                assert_eq!(verify(), report.is_complete());
                assert!(remove(), "flip {flip}: an entry was not given back");
                assert!(!verify());
            }
        });
        done.store(true, Relaxed);
        flip.unwrap();
    });
    assert!(calls.load(Relaxed) > flips() as u64 / 10, "the threads hardly ran: {calls:?}");
}

#[test]
fn threads_survive_hooks_that_come_and_go() {
    child(|| flip_under_fire(!emulated()));
}

#[test]
fn likewise_where_the_kernel_refuses_proc_self_mem() {
    child(|| {
        refuse_proc_self_mem();
        flip_under_fire(false);
    });
}

#[test]
fn what_is_taken_out_is_libcs_own_again() {
    child(|| {
        let before = entries();
        let report = install();
        assert!(report.is_complete());
        // Alone, a boundary may be covered where there is no padding.
        let short = if report.functions.iter().any(|line| line.boundary) { 5 } else { 2 };
        let patched = entries();
        assert_ne!(patched, before, "nothing was patched: this test sees nothing");
        for (before, patched) in before.iter().zip(&patched) {
            // On x86-64 a whole jump fits where the first instruction is as long:
            // `mov eax, imm32`, `cmp [rip + disp32], imm8`, or a `ret` before
            // padding. Behind whatever is shorter a thread may stand.
            let first = if before.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) { 4 } else { 0 };
            let whole = first
                + match before[first] {
                    _ if cfg!(target_arch = "aarch64") => 4,
                    // Behind an endbr64 a near jump would cross two words.
                    0xb8 | 0x80 | 0xc3 if first == 0 => 5,
                    _ => short,
                };
            assert_eq!(before[..first], patched[..first], "a landing pad stays");
            assert_eq!(before[whole..], patched[whole..], "{before:02x?} became {patched:02x?}");
        }
        let sink = subscribe().unwrap();
        // SAFETY: a page of the test's own.
        let at = unsafe { libc::mmap(null_mut(), PAGE, BOTH, ANONYMOUS, -1, 0) };
        sink.watch(at as usize..at as usize + PAGE);
        assert!(remove());
        assert_eq!(entries(), before);
        let pushed = sink.pushed();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::madvise(at, PAGE, libc::MADV_DONTNEED) }, 0);
        assert_eq!(sink.pushed(), pushed, "a hook that is out publishes nothing");
        assert!(!verify(), "nor does anybody believe that it would");
        assert!(install().is_complete());
        // SAFETY: as above.
        assert_eq!(unsafe { libc::madvise(at, PAGE, libc::MADV_DONTNEED) }, 0);
        assert!(sink.pushed() > pushed);
    });
}

/// A jump that not every thread has been made to see is none.
#[test]
fn without_membarrier_nothing_is_patched() {
    child(|| {
        refuse(libc::SYS_membarrier, None);
        let before = entries();
        let report = install();
        assert!(!report.is_complete() && !verify());
        let line = report.functions[Function::Munmap as usize].to_string();
        assert!(line.contains("NOT SEEN: not patched: membarrier("), "{line}");
        assert_eq!(entries(), before);
        assert!(remove(), "there is nothing to give back");
    });
}

#[test]
fn a_hardened_kernel_is_reported_and_nothing_is_patched() {
    child(|| {
        refuse_proc_self_mem();
        refuse_writable_text();
        let before = entries();
        let report = install();
        assert!(!report.is_complete());
        assert!(!verify(), "no registration may be cached");
        for line in report.functions {
            match line.function {
                Function::Sbrk => {}
                Function::ProcessMadvise if line.owner == Owner::Absent => {}
                _ => {
                    assert_eq!(line.owner, Owner::Libc, "{line}");
                    let text = line.to_string();
                    assert!(text.contains("NOT SEEN: not patched: "), "{text}");
                    assert!(text.contains("/proc/thread-self/mem"), "{text}");
                    assert!(text.contains(&format!("errno {}", libc::EPERM)), "{text}");
                }
            }
        }
        assert_eq!(entries(), before);
        hammer(1);
    });
}
