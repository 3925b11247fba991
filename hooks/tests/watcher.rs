//! The thread that reads userfaultfd has a table of descriptors of its own when it serves, and reads
//! whatever the program does with its own.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;

use common::{ANONYMOUS, BOTH, PAGE, child, emulated};
use pinyard_hooks::userfaultfd::{events, start, watch};
use std::mem::zeroed;
use std::path::PathBuf;

/// Runs `case` in a child, where userfaultfd can be tried.
fn tried(case: impl FnOnce()) {
    if emulated() {
        return eprintln!("skipped: qemu's user emulation has no userfaultfd");
    }
    child(case);
}

/// As [`tried`], where userfaultfd serves.
fn served(case: impl FnOnce()) {
    tried(|| {
        if serves() {
            case();
        }
    });
}

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
    for _ in 0..20 {
        tried(|| {
            let before = tasks();
            if !serves() {
                return;
            }
            let new: Vec<_> = tasks().into_iter().filter(|task| !before.contains(task)).collect();
            let open = |task: &PathBuf| std::fs::read_dir(task.join("fd")).unwrap().count();
            assert_eq!(new.iter().map(open).collect::<Vec<_>>(), [1, 1]);
        });
    }
}

#[test]
fn a_program_without_descriptors_goes_on() {
    served(|| {
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

/// Threads that have tables of descriptors of their own watch by turns, and so does one that has closed ours:
/// nothing is opened or started for them.
#[test]
fn threads_with_tables_of_their_own_are_served() {
    served(|| {
        let before = (tasks().len(), userfaultfds());
        let pages = |rounds| {
            move || {
                // SAFETY: no memory is passed; descriptors of this thread's own table.
                unsafe {
                    assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
                    assert_eq!(libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0), 0);
                }
                (0..rounds).map(|_| watched()).collect::<Vec<_>>()
            }
        };
        let both = [20, 20].map(|rounds| std::thread::spawn(pages(rounds)));
        let mut all: Vec<usize> = (0..20).map(|_| watched()).collect();
        all.extend(both.into_iter().flat_map(|thread| thread.join().unwrap()));
        for _ in 0..20 {
            all.extend(std::thread::spawn(pages(1)).join().unwrap());
            all.push(watched());
        }
        // A joined thread is in the list a moment longer.
        for _ in (0..5000).take_while(|_| tasks().len() > before.0) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!((tasks().len(), userfaultfds()), before);
        let (count, seen) = (all.len() as u64, events());
        all.into_iter().for_each(unmap);
        while events() < seen + count {
            std::thread::yield_now();
        }
    });
}

#[test]
fn where_fstat_is_refused_ranges_are_watched_all_the_same() {
    tried(|| {
        filter(&[libc::SYS_fstat, libc::SYS_newfstatat], libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        if !serves() {
            return;
        }
        // No directory can be listed now.
        let threads = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            status.lines().find(|line| line.starts_with("Threads:")).map(str::to_owned)
        };
        let before = threads();
        let pages = [watched(), watched(), watched()];
        assert_eq!(threads(), before);
        pages.into_iter().for_each(unmap);
        while events() < 3 {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_filter_that_kills_its_thread_is_named() {
    tried(|| {
        filter(&[libc::SYS_close_range], libc::SECCOMP_RET_KILL_THREAD);
        let why = start().unwrap_err();
        if !why.call.contains("close_range") {
            return eprintln!("skipped: {why}");
        }
        assert!(why.to_string().ends_with("SECCOMP_RET_KILL_THREAD)"), "{why}");
        assert_eq!(userfaultfds(), [0; 0]);
        // SAFETY: all-zero is a valid set, which is filled.
        let blocked = unsafe {
            let mut mask: libc::sigset_t = zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut mask);
            libc::sigismember(&mask, libc::SIGTERM)
        };
        assert_eq!(blocked, 0);
    });
}

/// A filter has ended the thread that asks in a thread's place.
#[test]
fn who_asks_a_thread_that_has_ended_is_told() {
    served(|| {
        // SAFETY: descriptors that this child uses no more; a fresh mapping.
        let at = unsafe {
            assert_eq!(libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0), 0);
            libc::mmap(std::ptr::null_mut(), PAGE, BOTH, ANONYMOUS, -1, 0) as usize
        };
        filter_of(&[libc::SYS_ioctl], libc::SECCOMP_RET_KILL_THREAD, libc::SECCOMP_FILTER_FLAG_TSYNC);
        for _ in 0..2 {
            let why = watch(at..at + PAGE).unwrap_err();
            assert_eq!((why.call, why.errno), ("ioctl(UFFDIO_REGISTER)", libc::ESRCH));
        }
    });
}

/// A filter of system calls that answers so to these.
fn filter(calls: &[libc::c_long], action: u32) {
    filter_of(calls, action, 0);
}

fn filter_of(calls: &[libc::c_long], action: u32, flags: libc::c_ulong) {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        program.extend([op(equal, 0, 1, *call as u32), op(answer, 0, 0, action)]);
    }
    program.push(op(answer, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, set, flags, &raw const filter), 0);
    }
}

#[test]
fn where_it_cannot_have_a_table_it_does_not_serve() {
    tried(|| {
        // As old containers' filters do.
        filter(&[libc::SYS_close_range], libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
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
    served(|| {
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
