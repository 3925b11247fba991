//! A library that contains pinyard is loaded, installs its hooks, and is closed: libc's entries jump
//! into it, so it stays, and what the process does next harms nobody.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

use pinyard_coverage::LIBRARY;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::ptr::null_mut;

const PAGE: usize = 4096;
type Call = extern "C" fn() -> i32;

fn map(at: usize, flags: i32) -> usize {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: fresh pages, or the test's own replaced.
    unsafe { libc::mmap(at as *mut _, 2 * PAGE, protection, flags, -1, 0) as usize }
}

/// In a process where this library is the only copy that installs hooks.
fn close_and_go_on() {
    let path = std::env::var_os(LIBRARY).unwrap();
    let name = CString::new(path.as_bytes()).unwrap();
    let at = map(0, 0);
    // SAFETY: a library of ours, whose constructors do nothing; its function has this type.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null());
        let install = libc::dlsym(library, c"pinyard_coverage_install".as_ptr());
        assert!(!install.is_null());
        assert_eq!(std::mem::transmute::<*mut libc::c_void, Call>(install)(), 1, "installed");
        // Once for the call above: any other library would be gone.
        assert_eq!(libc::dlclose(library), 0);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(maps.lines().any(|line| line.contains(" r-xp ") && line.contains("libpinyard_coverage")));
    for _ in 0..1000 {
        assert_eq!(map(at, libc::MAP_FIXED), at);
        // SAFETY: the test's own pages.
        unsafe {
            (at as *mut u8).write_volatile(1);
            assert_eq!(libc::madvise(at as *mut _, PAGE, libc::MADV_DONTNEED), 0);
            assert_eq!((at as *const u8).read_volatile(), 0);
            assert_eq!(libc::munmap(at as *mut _, 2 * PAGE), 0);
        }
    }
    // SAFETY: asks only whether there is such an object.
    let still = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert_ne!(still, null_mut());
}

#[test]
fn a_library_with_pinyard_that_is_closed_stays_and_its_hooks_work() {
    if std::env::var_os(LIBRARY).is_some() {
        return close_and_go_on();
    }
    let mut library = std::env::current_exe().unwrap();
    library.set_file_name("libpinyard_coverage.so");
    let name = "a_library_with_pinyard_that_is_closed_stays_and_its_hooks_work";
    let ended = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(LIBRARY, library)
        .output()
        .unwrap();
    assert!(ended.status.success(), "{ended:?}");
}
