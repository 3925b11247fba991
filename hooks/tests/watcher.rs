//! The thread that reads userfaultfd has a table of descriptors of its own when it serves, and reads
//! whatever the program does with its own.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;

use common::{ANONYMOUS, BOTH, PAGE, child, emulated};
use pinyard_hooks::userfaultfd::{events, start, watch};
use std::mem::zeroed;
use std::path::PathBuf;

/// Whether userfaultfd serves; a kernel may refuse it.
fn serves() -> bool {
    match start() {
        Ok(()) => true,
        Err(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

fn tasks() -> Vec<PathBuf> {
    std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()).collect()
}

/// A page that is watched.
fn watched() -> usize {
    // SAFETY: a fresh mapping of the test's own.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, BOTH, ANONYMOUS, -1, 0) } as usize;
    watch(at..at + PAGE).unwrap();
    at
}

fn unmap(at: usize) {
    // SAFETY: the test's own page.
    assert_eq!(unsafe { libc::munmap(at as *mut _, PAGE) }, 0);
}

#[test]
fn its_table_is_its_own_once_it_serves() {
    if emulated() {
        return eprintln!("skipped: qemu's user emulation has no userfaultfd");
    }
    for _ in 0..20 {
        child(|| {
            let before = tasks();
            if !serves() {
                return;
            }
            let new: Vec<_> = tasks().into_iter().filter(|task| !before.contains(task)).collect();
            let open = |task: &PathBuf| std::fs::read_dir(task.join("fd")).unwrap().count();
            assert_eq!(new.iter().map(open).collect::<Vec<_>>(), [1]);
        });
    }
}

#[test]
fn a_program_without_descriptors_goes_on() {
    if emulated() {
        return eprintln!("skipped: qemu's user emulation has no userfaultfd");
    }
    child(|| {
        if !serves() {
            return;
        }
        let pages = [watched(), watched(), watched(), watched()];
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads the struct.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        pages.into_iter().for_each(unmap);
        // The callers go on as soon as the reader has their events; it counts them after that.
        while events() < 4 {
            std::thread::yield_now();
        }
    });
}

/// A filter of system calls that answers EPERM to close_range(2), as old containers' do.
fn without_close_range() {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(equal, 0, 1, libc::SYS_close_range as u32),
        op(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

#[test]
fn where_it_cannot_have_a_table_it_does_not_serve() {
    if emulated() {
        return eprintln!("skipped: qemu's user emulation has no userfaultfd");
    }
    child(|| {
        without_close_range();
        let why = start().unwrap_err();
        if !why.call.contains("close_range") {
            return eprintln!("skipped: {why}");
        }
        assert_eq!(why.errno, libc::EPERM);
        assert_eq!(userfaultfds(), [0; 0]);
    });
}

fn userfaultfds() -> Vec<i32> {
    let of = |entry: std::fs::DirEntry| -> Option<i32> {
        let to = std::fs::read_link(entry.path()).ok()?;
        to.to_str()?.contains("userfaultfd").then(|| entry.file_name().to_str()?.parse().ok())?
    };
    std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| of(entry.unwrap())).collect()
}

/// The program has closed ours, and a userfaultfd of its own has the number.
#[test]
fn nothing_is_watched_by_a_userfaultfd_of_the_programs() {
    if emulated() {
        return eprintln!("skipped: qemu's user emulation has no userfaultfd");
    }
    child(|| {
        if !serves() {
            return;
        }
        let [ours] = userfaultfds()[..] else { panic!("not one: {:?}", userfaultfds()) };
        // SAFETY: descriptors of this process; `struct uffdio_api` is three words.
        let stat = unsafe {
            let own = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | 1) as i32;
            let mut api: [u64; 3] = [0xaa, 1 << 6, 0];
            assert_eq!(libc::ioctl(own, 0xc018_aa3f, api.as_mut_ptr()), 0);
            let mut stats: [libc::stat; 2] = zeroed();
            assert_eq!((libc::fstat(own, &mut stats[0]), libc::fstat(ours, &mut stats[1])), (0, 0));
            assert_eq!(libc::dup2(own, ours), ours);
            stats
        };
        if stat[0].st_ino == stat[1].st_ino {
            return eprintln!("skipped: this kernel does not tell userfaultfds apart");
        }
        // Nobody reads the program's: an event of its would wait for ever.
        unmap(watched());
    });
}
