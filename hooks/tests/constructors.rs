//! The loader runs constructors under its lock. One that installs does not wait for a
//! thread that installs and asks the loader.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]

mod common;

use common::child;
use pinyard_hooks::{install, remove, report, test_again, verify};
use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// What the environment calls the address of the function that the constructor calls.
const CALLS: &str = "PINYARD_TEST_CONSTRUCTOR_CALLS";
static IN_CONSTRUCTOR: AtomicBool = AtomicBool::new(false);

extern "C" fn wait_and_install() {
    IN_CONSTRUCTOR.store(true, SeqCst);
    // Time for the other thread to get as far as it can.
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert!(install().is_complete());
}

extern "C" fn use_the_installer() {
    assert!(install().is_complete() && report().is_some());
    verify();
}

/// A shared library with a constructor, made by the compiler that links this test.
fn library(name: &str, calls: extern "C" fn()) -> CString {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(format!("lib{name}.so")));
    std::fs::write(
        &source,
        format!(
            "#include <stdlib.h>\n\
             __attribute__((constructor)) static void calls(void)\n\
             {{ ((void (*)(void))strtoull(getenv(\"{CALLS}\"), 0, 10))(); }}\n"
        ),
    )
    .unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(made.is_ok_and(|status| status.success()), "cc");
    // SAFETY: no other thread looks at the environment.
    unsafe { std::env::set_var(CALLS, (calls as *const () as usize).to_string()) };
    CString::new(library.to_str().unwrap()).unwrap()
}

fn open(library: &CString) -> *mut libc::c_void {
    // SAFETY: a NUL-terminated path of a library of this test's.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    handle
}

/// The first install of the process, by two threads.
#[test]
fn a_constructor_installs_beside_another_thread() {
    child(|| {
        let library = library("installs", wait_and_install);
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(20) };
        std::thread::scope(|scope| {
            scope.spawn(|| open(&library).addr());
            while !IN_CONSTRUCTOR.load(SeqCst) {
                std::thread::yield_now();
            }
            assert!(install().is_complete());
        });
    });
}

/// Everything that takes the installer's lock, against constructors that do.
#[test]
fn constructors_use_the_installer_beside_other_threads() {
    child(|| {
        let library = library("uses", use_the_installer);
        assert!(install().is_complete());
        // SAFETY: ends a child that hangs.
        unsafe { libc::alarm(40) };
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    // SAFETY: a handle of `open`'s.
                    assert_eq!(unsafe { libc::dlclose(open(&library)) }, 0);
                }
                done.store(true, SeqCst);
            });
            while !done.load(SeqCst) {
                assert!(test_again().is_complete() && report().is_some());
            }
        });
        remove();
        assert!(install().is_complete());
    });
}
