//! A program may close descriptors that it does not know, userfaultfd's among them, and open others
//! with their numbers. What is registered is watched all the same.
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

fn watchers() -> Vec<RawFd> {
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("userfaultfd")))
        .map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap())
        .collect()
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
    let [fd] = watchers()[..] else { panic!("not one userfaultfd: {:?}", watchers()) };
    let mut programs_own: Option<PipeWriter> = None;
    for round in 0..20 {
        assert_eq!(get(), last, "round {round}: watched, so cached");
        if round % 2 == 0 {
            drop(programs_own.take());
            // SAFETY: pinyard's, which the program takes for nobody's; later the pipe's.
            assert_eq!(unsafe { libc::close(fd) }, 0);
        } else {
            let (reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(b"the program's").unwrap();
            // SAFETY: its number is the pipe's now.
            assert_eq!(unsafe { libc::dup2(reader.as_raw_fd(), fd) }, fd);
            programs_own = Some(writer);
        }
        // The threads that have it go on.
        for _ in 0..100 {
            changed_past_libc(at);
            let now = get();
            assert_ne!(now, last, "round {round}: a registration of the old page");
            last = now;
        }
        assert_eq!(watchers(), [0; 0], "another is not needed");
    }
    drop(programs_own);
    // SAFETY: the number is the pipe's since `dup2`.
    let mut file = unsafe { <fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "the program's");
}
