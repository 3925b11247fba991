//! A program may close descriptors that it does not know, userfaultfd's among them, and open others
//! with their numbers. What was watched is not hit any more; what is registered then is watched again.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

use pinyard_hooks::sys;
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MECHANISM_VARIABLE, MemoryKey, Registry};
use std::fs;
use std::io::{PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::*};

const PAGE: usize = 4096;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

fn watcher() -> RawFd {
    let found: Vec<RawFd> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("userfaultfd")))
        .map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap())
        .collect();
    let [one] = found[..] else { panic!("not one userfaultfd: {found:?}") };
    one
}

fn changed_past_libc(at: usize) {
    // SAFETY: the test's own page, replaced.
    unsafe { sys::mmap(at, PAGE, BOTH, FLAGS | libc::MAP_FIXED) }.unwrap();
}

#[test]
fn a_closed_userfaultfd_leaves_nothing_stale_and_takes_nothing_of_the_programs() {
    // SAFETY: no other thread of this process looks at the environment yet.
    unsafe { std::env::set_var(MECHANISM_VARIABLE, "userfaultfd") };
    let next = AtomicU64::new(1);
    let key = move || MemoryKey { lkey: next.fetch_add(1, SeqCst), ..MemoryKey::default() };
    let backend = Custom::new("counting", move |_, _| Ok(key()), |_, _| Ok(()));
    let registry = Registry::builder().backend(backend).build().unwrap();
    // SAFETY: a fresh mapping.
    let at = unsafe { sys::mmap(0, 2 * PAGE, BOTH, FLAGS) }.unwrap();
    let get = || registry.get((at as *const u8, PAGE), Access::LOCAL_READ).unwrap().lkey();
    let mut last = get();
    let mut programs_own: Vec<(RawFd, PipeWriter)> = Vec::new();
    for round in 0..20 {
        assert_eq!(get(), last, "round {round}: watched, so cached");
        let fd = watcher();
        if round % 2 == 0 {
            // SAFETY: pinyard's, which the program takes for nobody's.
            assert_eq!(unsafe { libc::close(fd) }, 0);
        } else {
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(b"the program's").unwrap();
            // SAFETY: as above; its number is the pipe's now.
            assert_eq!(unsafe { libc::dup2(reader.as_raw_fd(), fd) }, fd);
            programs_own.push((fd, writer));
        }
        // The thread that reads has it still.
        changed_past_libc(at);
        let mut now = get();
        assert_ne!(now, last, "round {round}: a registration of the old page");
        // Watched by another one: its changes are seen at once, whether it was cached or not.
        for _ in 0..100 {
            last = now;
            changed_past_libc(at);
            now = get();
            assert_ne!(now, last, "round {round}: a registration of an old page, after the new start");
        }
        last = now;
    }
    for (fd, writer) in programs_own {
        drop(writer);
        // SAFETY: the number is the pipe's since `dup2`.
        let mut file = unsafe { <fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "the program's");
    }
}
