//! What the machine refuses: RLIMIT_MEMLOCK, and io_uring itself. Each case runs
//! in a process of its own, which gives up what it must.
#![allow(unsafe_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Backend, Custom, IoUring, Mlock};
use pinyard_registry::{Access, Events, GetError, MemoryKey, Registry};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A user for each process: what rings lock counts for all processes of a user, and goes a while
/// after them.
fn nobody_else() -> u32 {
    (1 << 24) + std::process::id()
}

/// An unprivileged process that may lock `bytes`.
fn give_up_privileges(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: plain system calls on this process.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
        if libc::geteuid() == 0 {
            assert_eq!(libc::setgid(nobody_else()), 0);
            assert_eq!(libc::setuid(nobody_else()), 0);
        }
    }
}

/// Found out before the kernel is asked, or from its refusal where the caller
/// set a budget that exceeds the limit.
fn memlock_is_named_and_survived(backend: impl Backend + 'static) {
    let backend = Arc::new(backend);
    let default = Registry::builder().backend(backend.clone()).build().unwrap();
    let large = Pages::new(256);
    let error = default.get(&large, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, GetError::Budget { budget: 262_144, .. }), "{error}");
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    drop(default);
    let registry = Registry::builder().backend(backend).budget(1 << 30).build().unwrap();
    let error = registry.get(&large, Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, GetError::Memlock { limit: 262_144, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("ulimit -l") && text.contains("errno"), "{text}");
    // Still usable, and what is only cached makes way.
    let small = Pages::new(160);
    for index in 0..10 {
        drop(registry.get(small.part(16 * index, 8), Access::LOCAL_WRITE).unwrap());
    }
    assert!(registry.stats().evictions > 0);
}

#[test]
fn memlock_with_io_uring() {
    if !is_child() {
        return passes(in_child("memlock_with_io_uring"));
    }
    give_up_privileges(64 * PAGE as u64);
    let ring = IoUring::new(64).unwrap();
    memlock_is_named_and_survived(ring);
}

/// KiB of a line of /proc/self/status.
fn kib(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A program that locks all it will ever map (`MCL_FUTURE`), with a limit far below what a registry
/// reserves addresses for.
#[test]
fn a_program_that_locks_its_future_memory_locks_little_of_a_registrys() {
    if !is_child() {
        return passes(in_child("a_program_that_locks_its_future_memory_locks_little_of_a_registrys"));
    }
    give_up_privileges(8 << 20);
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
    let (locked, resident) = (kib("VmLck:"), kib("VmRSS:"));
    let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).build().unwrap();
    let pages = Pages::new(4);
    for _ in 0..2 {
        drop(registry.get(&pages, Access::LOCAL_WRITE).unwrap());
    }
    assert_eq!(registry.stats().hits, 1);
    let (locked, resident) = (kib("VmLck:") - locked, kib("VmRSS:") - resident);
    assert!(locked < 4 << 10 && resident < 16 << 10, "{locked} KiB locked, {resident} KiB resident");
}

/// The kernel takes back late what a process had pinned that was killed: the next one of
/// the user has the whole limit all the same.
#[test]
fn what_a_killed_process_had_pinned_is_waited_for() {
    if !is_child() {
        return passes(in_child("what_a_killed_process_had_pinned_is_waited_for"));
    }
    give_up_privileges(64 * PAGE as u64);
    let pages = Pages::new(48);
    let pin = || {
        let registry = Registry::builder().backend(Arc::new(IoUring::new(64).unwrap())).build().unwrap();
        let pinned = registry.get(&pages, Access::LOCAL_WRITE).map(drop).map_err(|error| error.to_string());
        (registry, pinned)
    };
    // A ring that has pinned waits as one that never has.
    let (earlier, pinned) = pin();
    pinned.unwrap();
    earlier.flush().unwrap();
    for round in 0..20 {
        // SAFETY: the child of a process with one thread of its own pins, says so, and is
        // killed.
        unsafe {
            let mut ends = [0; 2];
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                let (_registry, pinned) = pin();
                let said = u8::from(pinned.is_ok());
                libc::write(ends[1], (&raw const said).cast(), 1);
                libc::pause();
                libc::_exit(0);
            }
            let mut said = 0_u8;
            let heard = libc::read(ends[0], (&raw mut said).cast(), 1);
            libc::kill(child, libc::SIGKILL);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
            assert_eq!((heard, said), (1, 1), "round {round}: the child cannot pin");
            libc::close(ends[0]);
            libc::close(ends[1]);
        }
    }
    drop(earlier.get(&pages, Access::LOCAL_WRITE).unwrap());
    earlier.flush().unwrap();
    let (_registry, pinned) = pin();
    pinned.unwrap();
}

/// A ring waits for others once, and not at every refusal.
#[test]
fn who_can_pin_nothing_waits_once() {
    if !is_child() {
        return passes(in_child("who_can_pin_nothing_waits_once"));
    }
    give_up_privileges(16 * PAGE as u64);
    let ring = Arc::new(IoUring::new(64).unwrap());
    let registry = Registry::builder().backend(ring).budget(1 << 30).build().unwrap();
    let pages = Pages::new(64);
    // How often this thread has slept meanwhile.
    let refused = |times: usize| {
        let before = sleeps();
        for _ in 0..times {
            let error = registry.get(&pages, Access::LOCAL_WRITE).unwrap_err();
            assert!(matches!(error, GetError::Memlock { limit: 65_536, .. }), "{error}");
        }
        sleeps() - before
    };
    let (first, later) = (refused(1), refused(19));
    assert!(first > 10, "the first refusal slept {first} times");
    assert!(later < first, "19 further refusals slept {later} times, the first {first} times");
}

/// How often this thread has given up the processor by itself.
fn sleeps() -> i64 {
    // SAFETY: fills the struct, which is plain numbers.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_nvcsw
    }
}

/// A control group with a limit, and one below it that would allow more. Removed at its end.
struct Groups {
    outer: PathBuf,
    inner: PathBuf,
}

impl Groups {
    /// In the tree that has the memory controller, at its top. The error says why not.
    fn new(outer_bytes: usize, inner_bytes: usize) -> Result<Groups, String> {
        let trees = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/unified", "memory.max"),
        ];
        let mut refused = Vec::new();
        for (tree, file) in trees {
            let outer = Path::new(tree).join(format!("pinyard-test-{}", std::process::id()));
            if let Err(error) = fs::create_dir(&outer) {
                refused.push(format!("mkdir {}: {error}", outer.display()));
                continue;
            }
            let groups = Groups { inner: outer.join("inner"), outer };
            // Version 2 hands the controller down where it is told to.
            let _ = fs::write(groups.outer.join("cgroup.subtree_control"), "+memory");
            let limited = fs::create_dir(&groups.inner)
                .and_then(|()| fs::write(groups.outer.join(file), outer_bytes.to_string()))
                .and_then(|()| fs::write(groups.inner.join(file), inner_bytes.to_string()));
            match limited {
                Ok(()) => return Ok(groups),
                Err(error) => refused.push(format!("{file} in {}: {error}", groups.outer.display())),
            }
        }
        Err(refused.join("; "))
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // The kernel takes a moment to see that the last process has gone.
        for group in [&self.inner, &self.outer] {
            let removed = || fs::remove_dir(group).is_ok() || !group.exists();
            (0..100).any(|_| {
                removed() || {
                    std::thread::sleep(Duration::from_millis(10));
                    false
                }
            });
        }
    }
}

/// The default budget is half of the lowest limit of the groups that a process is in.
#[test]
fn the_default_budget_stays_below_the_control_groups_limit() {
    const NAME: &str = "the_default_budget_stays_below_the_control_groups_limit";
    const GROUP: &str = "TEST_CONTROL_GROUP";
    const LIMIT: usize = 1 << 30;
    if !is_child() {
        let groups = match Groups::new(LIMIT, 2 * LIMIT) {
            Ok(groups) => groups,
            Err(why) => return eprintln!("skipped: no control group may be made here: {why}"),
        };
        return passes(in_child_with(NAME, &[(GROUP, groups.inner.as_os_str())]));
    }
    let group = PathBuf::from(std::env::var_os(GROUP).unwrap());
    fs::write(group.join("cgroup.procs"), "0").unwrap();
    let backend = || Custom::new("takes all", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let build = || Registry::builder().backend(backend()).events(Events::NotifyOnly).build().unwrap();
    let (one, other) = (build(), build());
    assert_eq!(one.budget().bytes(), LIMIT / 2);
    let buffer = |len| ((1_usize << 40) as *const u8, len);
    let error = one.get(buffer(LIMIT / 2 + PAGE), Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, GetError::Budget { budget, .. } if budget == LIMIT / 2), "{error}");
    let held = one.get(buffer(LIMIT / 2), Access::LOCAL_WRITE).unwrap();
    let error = other.get(((1_usize << 41) as *const u8, PAGE), Access::LOCAL_WRITE).unwrap_err();
    assert!(matches!(error, GetError::Budget { budget, .. } if budget == LIMIT / 2), "not shared: {error}");
    drop(held);
    drop(other.get(((1_usize << 41) as *const u8, PAGE), Access::LOCAL_WRITE).unwrap());
}

#[test]
fn memlock_with_mlock() {
    if !is_child() {
        return passes(in_child("memlock_with_mlock"));
    }
    give_up_privileges(64 * PAGE as u64);
    memlock_is_named_and_survived(Mlock::new());
}

/// Answers every io_uring_setup with `errno`, as container runtimes do.
fn block_io_uring(errno: i32) {
    let op = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: a filter of valid instructions, for this thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter), 0);
    }
}

#[test]
fn io_uring_blocked_by_seccomp() {
    if !is_child() {
        return passes(in_child("io_uring_blocked_by_seccomp"));
    }
    block_io_uring(libc::EPERM);
    let text = IoUring::new(8).err().unwrap().to_string();
    assert!(
        text.contains("io_uring_setup") && text.contains("errno 1") && text.contains("seccomp"),
        "{text}"
    );
    block_io_uring(libc::ENOSYS);
    let text = IoUring::new(8).err().unwrap().to_string();
    assert!(text.contains("errno 38") && text.contains("no io_uring"), "{text}");
    // Another backend serves.
    let registry = Registry::builder().backend(Mlock::new()).build().unwrap();
    drop(read(&registry, &Pages::new(1)));
    assert_eq!(Mlock::new().name(), "mlock");
}

/// The administrator's switch: EPERM, and the sysctl says why. The file is
/// replaced in a mount namespace of the child's own; the machine's stays as it is.
#[test]
fn io_uring_disabled_by_sysctl() {
    if !is_child() {
        return passes(in_child("io_uring_disabled_by_sysctl"));
    }
    let value = std::env::temp_dir().join(format!("pinyard-io-uring-disabled-{}", std::process::id()));
    fs::write(&value, "2\n").unwrap();
    let (from, to) =
        (std::ffi::CString::new(value.to_str().unwrap()).unwrap(), c"/proc/sys/kernel/io_uring_disabled");
    let bind = libc::MS_BIND;
    // SAFETY: system calls on this process's own mount namespace.
    let mounted = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(from.as_ptr(), to.as_ptr(), std::ptr::null(), bind, std::ptr::null()) == 0
    };
    let refused = std::io::Error::last_os_error();
    fs::remove_file(&value).unwrap();
    if !mounted {
        println!(
            "skipped: a mount namespace needs CAP_SYS_ADMIN, and io_uring_disabled Linux 6.6: {refused}"
        );
        return;
    }
    block_io_uring(libc::EPERM);
    let text = IoUring::new(8).err().unwrap().to_string();
    assert!(text.contains("kernel.io_uring_disabled is 2"), "{text}");
}
