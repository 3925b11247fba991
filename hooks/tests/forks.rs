//! Forks beside threads that are inside hooks and inside the installer.
#![allow(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::disallowed_macros
)]

mod common;

use common::{ANONYMOUS, BOTH, PAGE, child, status_of};
use pinyard_hooks::{Function, Seen, fork_generation, install, remove, subscribe};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// Maps and unmaps until `done`.
fn change_mappings(done: &AtomicBool) {
    while !done.load(Relaxed) {
        // SAFETY: memory of this thread's own.
        unsafe {
            let at = libc::mmap(null_mut(), PAGE, BOTH, ANONYMOUS, -1, 0);
            assert_eq!(libc::madvise(at, PAGE, libc::MADV_DONTNEED), 0);
            assert_eq!(libc::munmap(at, PAGE), 0);
        }
    }
}

/// In a forked child, without an allocator: the hooks work, and can be tested and
/// installed, whatever the parent's threads were at. 0 is well.
fn works_in_the_child() -> i32 {
    let Some(sink) = subscribe() else { return 3 };
    if fork_generation() == 0 {
        return 4;
    }
    let report = install();
    if !report.is_complete() {
        return 5;
    }
    if report.functions[Function::Munmap as usize].seen != Seen::Yes {
        return 6;
    }
    // SAFETY: a page of the child's own.
    unsafe {
        let at = libc::mmap(null_mut(), PAGE, BOTH, ANONYMOUS, -1, 0);
        sink.watch(at as usize..at as usize + PAGE);
        let pushed = sink.pushed();
        let changed = libc::madvise(at, PAGE, libc::MADV_DONTNEED) == 0;
        if changed && sink.pushed() > pushed { 0 } else { 7 }
    }
}

#[test]
fn a_child_of_a_fork_during_install_installs() {
    child(|| {
        assert!(install().is_complete());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| change_mappings(&done));
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    install();
                    remove();
                }
            });
            let began = std::time::Instant::now();
            for round in 0..200 {
                // SAFETY: the child calls nothing that takes a lock of the parent's.
                let pid = unsafe { libc::fork() };
                if pid == 0 {
                    // SAFETY: a child that hangs here ends itself.
                    unsafe {
                        libc::alarm(20);
                        libc::_exit(works_in_the_child());
                    }
                }
                let status = status_of(pid);
                if status != 0 {
                    done.store(true, Relaxed);
                    panic!("child {round}: wait status {status:#x}");
                }
                if round >= 50 && began.elapsed().as_secs() > 15 {
                    break;
                }
            }
            done.store(true, Relaxed);
        });
    });
}

unsafe extern "C" {
    /// Public since glibc 2.34: fork without the handlers of pthread_atfork(3).
    fn _Fork() -> libc::pid_t;
}

/// Children that no handler runs in: they find out all the same, and theirs too.
#[test]
fn a_child_without_handlers_knows_that_it_is_one() {
    if common::emulated() {
        return eprintln!("skipped: the emulator says that it empties pages in a child, and does not");
    }
    child(|| {
        assert!(install().is_complete());
        let here = fork_generation();
        // SAFETY: no memory is passed.
        for fork in [|| unsafe { _Fork() }, || unsafe { libc::syscall(libc::SYS_fork) as libc::pid_t }] {
            let pid = fork();
            if pid == 0 {
                let child = if fork_generation() == here + 1 { works_in_the_child() } else { 8 };
                let pid = if child == 0 { fork() } else { -1 };
                let grandchild = match pid {
                    -1 => child,
                    0 if fork_generation() == here + 2 => works_in_the_child(),
                    0 => 9,
                    pid => status_of(pid) >> 8,
                };
                // SAFETY: ends the child, or the child's.
                unsafe { libc::_exit(grandchild) };
            }
            assert_eq!(status_of(pid), 0);
            assert_eq!(fork_generation(), here, "nothing has happened here");
        }
    });
}

/// vfork and posix_spawn: the child shares the memory, and its calls of hooked
/// functions between vfork and exec are the parent's business.
#[test]
fn spawning_beside_threads_in_hooks_works() {
    child(|| {
        assert!(install().is_complete());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| change_mappings(&done));
            for round in 0..200 {
                let how = if round % 2 == 0 { spawn } else { vfork_and_exec };
                let status = status_of(how());
                if status != 0 {
                    done.store(true, Relaxed);
                    panic!("round {round}: wait status {status:#x}");
                }
            }
            done.store(true, Relaxed);
        });
        assert_eq!(fork_generation(), 0, "neither counts as a fork");
    });
}

fn spawn() -> libc::pid_t {
    let mut pid = 0;
    let argv = [c"true".as_ptr().cast_mut(), null_mut()];
    // SAFETY: constant strings; glibc spawns with CLONE_VM | CLONE_VFORK.
    let answer = unsafe {
        libc::posix_spawn(
            &mut pid,
            c"/bin/true".as_ptr(),
            std::ptr::null(),
            std::ptr::null(),
            argv.as_ptr(),
            std::ptr::null(),
        )
    };
    assert_eq!(answer, 0);
    pid
}

/// What vfork does, with a stack of the child's own; the child changes a mapping
/// of the shared memory through a hook, then replaces itself.
fn vfork_and_exec() -> libc::pid_t {
    extern "C" fn in_child(page: *mut libc::c_void) -> i32 {
        let argv = [c"true".as_ptr(), std::ptr::null()];
        // SAFETY: a page that nobody uses; then exec.
        unsafe {
            if libc::madvise(page, PAGE, libc::MADV_DONTNEED) != 0 {
                return 4;
            }
            libc::execv(c"/bin/true".as_ptr(), argv.as_ptr());
        }
        5
    }
    const STACK: usize = 64 << 10;
    let sink = subscribe().unwrap();
    // SAFETY: a stack and a page that live until the child has gone its own way;
    // CLONE_VFORK suspends this thread until then.
    unsafe {
        let stack = libc::mmap(null_mut(), STACK, BOTH, ANONYMOUS, -1, 0);
        let page = libc::mmap(null_mut(), PAGE, BOTH, ANONYMOUS, -1, 0);
        sink.watch(page as usize..page as usize + PAGE);
        let pushed = sink.pushed();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let pid = libc::clone(in_child, stack.byte_add(STACK), flags, page);
        assert!(pid > 0);
        assert!(sink.pushed() > pushed, "the child's change is a change of ours");
        sink.unwatch(page as usize..page as usize + PAGE);
        libc::munmap(page, PAGE);
        libc::munmap(stack, STACK);
        pid
    }
}
