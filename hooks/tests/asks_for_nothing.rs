//! The self-test of the hooks makes no system call that the program might never make, and
//! a brk that the kernel refuses leaves libc's record of the break alone.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;

use common::{child, libc_entry, status_of};
use pinyard_hooks::sys::syscall6;
use pinyard_hooks::{Function, Seen, install, test_again};
use std::mem::zeroed;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::*};

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
/// Offset of the first argument, low half, in `struct seccomp_data`.
const FIRST_ARGUMENT: u32 = 16;

fn op(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Puts the calling thread under `program`. What seccomp(2) answers.
fn filter(program: &mut [libc::sock_filter], flags: libc::c_ulong) -> libc::c_long {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter)
    }
}

/// What a program may live without.
const UNUSUAL: [libc::c_long; 10] = [
    libc::SYS_process_madvise,
    libc::SYS_remap_file_pages,
    libc::SYS_pidfd_open,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_shmctl,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
];

/// Any of those, and any brk, kills the process.
fn forbid_what_is_unusual() {
    let mut program = vec![op(LOAD, 0, 0, 0)];
    for (index, number) in UNUSUAL.iter().chain(&[libc::SYS_brk]).enumerate() {
        program.push(op(EQUAL, (UNUSUAL.len() - index + 1) as u8, 0, *number as u32));
    }
    program.push(op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    program.push(op(RETURN, 0, 0, libc::SECCOMP_RET_KILL_PROCESS));
    assert_eq!(filter(&mut program, 0), 0);
}

/// The wait status of a child in which those calls kill, after `work`.
fn under_the_filter(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child uses no lock of another thread's, and ends at once.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            forbid_what_is_unusual();
            libc::_exit(work());
        }
        status_of(pid)
    }
}

#[test]
fn a_filter_that_kills_unusual_calls_kills_nobody() {
    for number in UNUSUAL.into_iter().chain([libc::SYS_brk]) {
        // SAFETY: a call that ends the process, or finds nothing to do.
        let status = under_the_filter(|| unsafe { libc::syscall(number, -1, 0, 0, 0, 0) as i32 });
        assert_eq!(status & 0x7f, libc::SIGSYS, "the filter does not kill at system call {number}");
    }
    let status = under_the_filter(|| {
        let unseen = |line: &pinyard_hooks::FunctionReport| {
            line.owner != pinyard_hooks::Owner::Absent && line.seen != Seen::Yes
        };
        for report in [install(), test_again()] {
            if let Some(line) = report.functions.iter().find(|line| unseen(line)) {
                return 1 + line.function as i32;
            }
        }
        0
    });
    assert_eq!(status, 0, "wait status: a signal, or the number of a function that is not seen << 8");
}

unsafe extern "C" {
    /// glibc's record of the break; 0 until malloc or the program first asks for one.
    static mut __curbrk: usize;
}

/// mimalloc's programs, for one, never ask libc for a break.
#[test]
fn a_program_without_a_break_gets_none() {
    let status = under_the_filter(|| {
        // SAFETY: this process has one thread, which allocates nothing below.
        unsafe {
            (&raw mut __curbrk).write_volatile(0);
            let complete = [install().is_complete(), test_again().is_complete()];
            i32::from(complete != [true, true]) + 2 * i32::from((&raw const __curbrk).read_volatile() != 0)
        }
    });
    assert_eq!(status, 0, "wait status: a signal; 1 << 8: calls are not seen; 2 << 8: a record was made");
}

/// Where brk's entry cannot be patched, libc's own sbrk would make the real call.
#[test]
fn where_libc_cannot_be_patched_nothing_is_asked_for_either() {
    const THIRD_ARGUMENT: u32 = 32;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let all = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) as u32;
    let status = under_the_filter(|| {
        let mut program = [
            op(LOAD, 0, 0, 0),
            op(EQUAL, 4, 0, libc::SYS_pwrite64 as u32),
            op(EQUAL, 0, 2, libc::SYS_mprotect as u32),
            op(LOAD, 0, 0, THIRD_ARGUMENT),
            op(EQUAL, 1, 0, all),
            op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
            op(RETURN, 0, 0, refuse),
        ];
        assert_eq!(filter(&mut program, 0), 0);
        let seen = |function: Function| install().functions[function as usize].seen;
        i32::from([Function::Brk, Function::Sbrk].map(seen).contains(&Seen::Yes))
    });
    assert_eq!(status, 0, "wait status: a signal; 1 << 8: patched all the same");
}

/// Asked by the program, too, the hook answers what the kernel would.
#[test]
fn what_the_kernel_refuses_is_refused_alike() {
    child(|| {
        assert!(install().is_complete());
        let iovec = libc::iovec { iov_base: std::ptr::without_provenance_mut(4096), iov_len: 4096 };
        let none = usize::MAX;
        let cases = [
            (Function::Shmdt, libc::SYS_shmdt, [1, 0, 0, 0, 0]),
            (Function::Mprotect, libc::SYS_mprotect, [1, 4096, 0, 0, 0]),
            (Function::Shmat, libc::SYS_shmat, [none, 0, 0, 0, 0]),
            (Function::RemapFilePages, libc::SYS_remap_file_pages, [4096, 4096, none, 0, 0]),
            (Function::Ftruncate, libc::SYS_ftruncate, [none, 4096, 0, 0, 0]),
            (Function::Truncate, libc::SYS_truncate, [0, 4096, 0, 0, 0]),
            (Function::Fallocate, libc::SYS_fallocate, [none, 3, 0, 4096, 0]),
            (
                Function::ProcessMadvise,
                libc::SYS_process_madvise,
                [none, (&raw const iovec).addr(), 1, libc::MADV_COLD as usize, 0],
            ),
        ];
        for (function, number, [a, b, c, d, e]) in cases {
            // SAFETY: the kernel refuses these arguments.
            let kernel = unsafe { syscall6(number as usize, [a, b, c, d, e, 0]) };
            assert!(kernel < 0, "{function:?} is not refused");
            let entry = libc_entry(function);
            if entry.is_null() || kernel == -(libc::ENOSYS as isize) {
                continue; // libc, or this kernel, has no such call
            }
            type Five = extern "C" fn(usize, usize, usize, usize, usize) -> i32;
            // SAFETY: a function of libc that takes integers and pointers.
            let answer = unsafe { std::mem::transmute::<*mut u8, Five>(entry) }(a, b, c, d, e);
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap() as isize;
            assert_eq!((answer, errno), (-1, -kernel), "{function:?}");
        }
        // SAFETY: the kernel refuses it, and says nothing.
        assert_eq!(unsafe { libc::brk(std::ptr::without_provenance_mut(1)) }, 0);
    });
}

/// Where no program's heap begins, and not what the self-test asks for.
const LOW: usize = 0x8000;
static LISTENER: AtomicI32 = AtomicI32::new(-1);
/// The break that the kernel answered with, while the answer is on its way; 1 to let it go.
static ANSWERED: AtomicUsize = AtomicUsize::new(0);

/// Answers the call in the kernel's place, as late as main wants.
fn answer_late() {
    while LISTENER.load(SeqCst) < 0 {
        std::thread::yield_now();
    }
    // SAFETY: structures of the kernel's, all zero before; the descriptor is main's filter's.
    unsafe {
        let mut asked: libc::seccomp_notif = zeroed();
        assert_eq!(libc::ioctl(LISTENER.load(SeqCst), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked), 0);
        let mut answer: libc::seccomp_notif_resp = zeroed();
        answer.id = asked.id;
        answer.val = syscall6(libc::SYS_brk as usize, [0; 6]) as i64;
        ANSWERED.store(answer.val as usize, SeqCst);
        while ANSWERED.load(SeqCst) != 1 {
            std::thread::yield_now();
        }
        assert_eq!(libc::ioctl(LISTENER.load(SeqCst), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer), 0);
    }
}

/// A thread asks for a break that the kernel refuses. Between the kernel's answer and what
/// libc makes of it, another thread moves the break.
#[test]
fn a_refused_brk_leaves_anothers_break_alone() {
    child(|| {
        assert!(install().is_complete());
        std::thread::scope(|scope| {
            scope.spawn(answer_late);
            scope.spawn(|| {
                let mut program = [
                    op(LOAD, 0, 0, 0),
                    op(EQUAL, 0, 3, libc::SYS_brk as u32),
                    op(LOAD, 0, 0, FIRST_ARGUMENT),
                    op(EQUAL, 0, 1, LOW as u32),
                    op(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
                    op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
                ];
                let listener = filter(&mut program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
                if listener < 0 {
                    println!("skipped: seccomp gives no listener: {}", std::io::Error::last_os_error());
                    std::process::exit(0);
                }
                LISTENER.store(listener as i32, SeqCst);
                // SAFETY: below every heap: nothing is moved.
                assert_eq!(unsafe { libc::brk(std::ptr::without_provenance_mut(LOW)) }, 0);
            });
            while ANSWERED.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            // SAFETY: the break is moved up, by this thread alone.
            assert_ne!(unsafe { libc::sbrk(1 << 20) } as isize, -1);
            ANSWERED.store(1, SeqCst);
        });
        // SAFETY: questions.
        let (ours, kernels) = unsafe { (libc::sbrk(0).addr(), syscall6(libc::SYS_brk as usize, [0; 6])) };
        assert_eq!(ours, kernels as usize, "libc's record of the break is not the kernel's");
    });
}
