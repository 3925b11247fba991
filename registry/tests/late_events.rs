//! The kernel gives addresses away before userfaultfd's reader has the event of their
//! munmap. Whoever gets them from a call of libc's finds no registration of what was there
//! before. Here the reader is held up: a seccomp listener keeps its pselect6 waiting.
#![cfg(not(loom))]
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;
#[path = "common/raw.rs"]
mod raw;

use pinyard_hooks::map_to_register;
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MemoryKey, Registry};
use raw::raw_munmap;
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

const LEN: usize = 16 * 4096;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// What the reader waits by.
const WAIT: libc::c_long = libc::SYS_pselect6;

static LISTENER: AtomicI32 = AtomicI32::new(-1);
/// Waits go on, the next one is to be held, or one is held.
const FREE: u32 = 0;
const NEXT: u32 = 1;
const HELD: u32 = 2;
static READER: AtomicU32 = AtomicU32::new(FREE);

/// Lets each wait go on, but not while it is held.
fn let_go() {
    // SAFETY: structures of the kernel's, all zero before; the descriptor is the filter's.
    unsafe {
        loop {
            let mut asked: libc::seccomp_notif = zeroed();
            if libc::ioctl(LISTENER.load(SeqCst), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) != 0 {
                continue;
            }
            if READER.compare_exchange(NEXT, HELD, SeqCst, SeqCst).is_ok() {
                while READER.load(SeqCst) == HELD {
                    std::thread::yield_now();
                }
            }
            let mut answer: libc::seccomp_notif_resp = zeroed();
            answer.id = asked.id;
            answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            libc::ioctl(LISTENER.load(SeqCst), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer);
        }
    }
}

/// Threads that this one makes from now on ask before they wait so.
fn ask_before_waiting() {
    let op = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, WAIT as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions, for this thread and those that it makes.
    let listener = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter)
    };
    assert!(listener >= 0, "seccomp: {}", std::io::Error::last_os_error());
    LISTENER.store(listener as i32, SeqCst);
}

fn get(registry: &Registry, at: usize) -> u64 {
    drop(registry.get((at as *const u8, LEN), Access::LOCAL_WRITE).unwrap());
    registry.stats().registrations
}

fn map(hint: usize) -> usize {
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(hint as *mut _, LEN, BOTH, ANONYMOUS, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.addr()
}

/// A mapping of [`LEN`] with another of as much in front of it.
fn map_behind() -> usize {
    // SAFETY: a fresh mapping.
    let at = unsafe { libc::mmap(null_mut(), 2 * LEN, BOTH, ANONYMOUS, -1, 0) };
    at.addr() + LEN
}

/// The mapping right above the break.
fn map_above_the_break() -> usize {
    // SAFETY: the break is moved to the end of a page; a fresh mapping.
    unsafe {
        let end = libc::sbrk(0).addr().next_multiple_of(4096);
        assert_eq!(libc::brk(end as *mut _), 0);
        let flags = ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let at = libc::mmap(end as *mut _, LEN, BOTH, flags, -1, 0).addr();
        assert_eq!(at, end, "something lies above the break");
        at
    }
}

/// What `take` got from the kernel, if it is what was asked for.
fn exactly(got: usize, wanted: usize) -> bool {
    if got == wanted {
        return true;
    }
    if got as isize > 0 {
        // SAFETY: mapped just now, and nobody's.
        unsafe { libc::munmap(got as *mut _, LEN) };
    }
    false
}

/// Ways of getting memory at an address that is free.
fn take(way: &str, at: usize) -> bool {
    let (both, flags) = (BOTH as usize, ANONYMOUS as usize);
    // SAFETY: no call replaces a mapping.
    unsafe {
        match way {
            "mmap" => exactly(map(at), at),
            "syscall(SYS_mmap)" => {
                exactly(libc::syscall(libc::SYS_mmap, at, LEN, both, flags, -1, 0) as usize, at)
            }
            "a slab's mmap" => exactly(map_to_register(at, LEN).unwrap(), at),
            "mremap" => libc::mremap((at - LEN) as *mut _, LEN, 2 * LEN, 0).addr() == at - LEN,
            "shmat" => {
                let id = libc::shmget(libc::IPC_PRIVATE, LEN, 0o600);
                assert!(id >= 0, "shmget: {}", std::io::Error::last_os_error());
                let got = libc::shmat(id, at as *const _, 0);
                libc::shmctl(id, libc::IPC_RMID, null_mut());
                if got.addr() != at && got.addr() as isize > 0 {
                    libc::shmdt(got);
                }
                got.addr() == at
            }
            _ if libc::sbrk(0).addr() == at => libc::sbrk(LEN as isize).addr() == at,
            // Another thread's malloc has moved it.
            _ => false,
        }
    }
}

#[test]
fn what_another_thread_gets_is_not_what_was_there_before() {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, 1) };
    if fd < 0 {
        return println!("skipped: userfaultfd is refused: {}", std::io::Error::last_os_error());
    }
    // SAFETY: opened just now.
    unsafe { libc::close(fd as i32) };
    std::thread::spawn(|| {
        while LISTENER.load(SeqCst) < 0 {
            std::thread::yield_now();
        }
        let_go();
    });
    ask_before_waiting();
    let backend = Custom::new("counting", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).build().unwrap();
    let ways: [(&str, Make); 6] = [
        ("mmap", || map(0)),
        ("syscall(SYS_mmap)", || map(0)),
        ("a slab's mmap", || map(0)),
        ("mremap", map_behind),
        ("shmat", || map(0)),
        ("sbrk", map_above_the_break),
    ];
    for (way, make) in ways {
        let taken = (0..20).any(|_| takes_before_the_reader(&registry, way, make));
        assert!(taken, "{way}: each time somebody else had the address");
    }
}

type Make = fn() -> usize;

/// Whether this thread got the address of what another one unmaps, before userfaultfd's reader has
/// the event. Any other thread of the process may get it first.
fn takes_before_the_reader(registry: &Registry, way: &str, make: Make) -> bool {
    const TRIES: usize = 100_000;
    let at = make();
    let registrations = get(registry, at);
    assert_eq!(get(registry, at), registrations, "{way}: it is not cached\n{}", registry.serving());
    let other = map(0);
    let registrations = get(registry, other);
    READER.store(NEXT, SeqCst);
    std::thread::scope(|scope| {
        // An event for the reader, which is held when it comes back, if not before.
        // SAFETY: nobody uses these pages.
        scope.spawn(move || unsafe { raw_munmap(other as *mut u8, LEN) });
        while READER.load(SeqCst) != HELD {
            std::thread::yield_now();
        }
        // SAFETY: as above. It returns when its event has been read.
        scope.spawn(move || unsafe { raw_munmap(at as *mut u8, LEN) });
        let taken = (0..TRIES).any(|_| {
            std::thread::yield_now();
            take(way, at)
        });
        let now = taken.then(|| get(registry, at));
        READER.store(FREE, SeqCst);
        if let Some(now) = now {
            assert_eq!(now, registrations + 1, "{way}: the registration of the old pages");
        }
        taken
    })
}
