//! What the tests of patching share.
#![allow(dead_code, unreachable_pub)]

use pinyard_hooks::Function;

pub const PAGE: usize = 4096;
pub const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
pub const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Runs `case` in a child of its own and checks that it ends well.
///
/// With `PINYARD_TEST_IN_PROCESS` there is none: qemu's user emulation cannot make
/// threads in one. Then one case at a time.
pub fn child(case: impl FnOnce()) {
    if emulated() {
        return case();
    }
    // SAFETY: the test harness's other threads do not exist in the child, which
    // uses no lock of theirs: it makes threads of its own and exits.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(case));
            libc::_exit(if ended.is_ok() { 0 } else { 101 });
        }
        assert_eq!(status_of(pid), 0, "the child's wait status (low 7 bits: its signal)");
    }
}

/// Whether the tests run in qemu's user emulation, which has no `/proc/self/mem` of
/// the guest's either.
pub fn emulated() -> bool {
    std::env::var_os("PINYARD_TEST_IN_PROCESS").is_some()
}

/// The wait status of a child, which is killed after a minute.
pub fn status_of(pid: libc::pid_t) -> i32 {
    let began = std::time::Instant::now();
    let mut status = 0;
    // SAFETY: waits for, or kills, a child of this process.
    unsafe {
        while libc::waitpid(pid, &mut status, libc::WNOHANG) == 0 {
            if began.elapsed().as_secs() > 60 {
                libc::kill(pid, libc::SIGKILL);
            }
            libc::usleep(500);
        }
    }
    status
}

/// The address of a function in libc.
pub fn libc_entry(function: Function) -> *mut u8 {
    let name = std::ffi::CString::new(function.name()).unwrap();
    // SAFETY: libc is loaded.
    unsafe {
        let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(handle, name.as_ptr()).cast()
    }
}

/// The first 16 bytes of each function in libc; of the loader's empty one those that are
/// its code, since a jump may stay in the padding that follows.
pub fn entries() -> Vec<[u8; 16]> {
    let read = |function| {
        let at = libc_entry(function);
        // SAFETY: a function has at least 16 bytes with its padding.
        let mut bytes = unsafe { at.cast::<[u8; 16]>().as_ref() }.copied()?;
        if function == Function::DlDebugState && bytes.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            bytes[6..].fill(0);
        }
        Some(bytes)
    };
    Function::ALL.into_iter().filter_map(read).collect()
}

/// Writes over text as Open MPI, UCX and libfabric do: the page becomes writable,
/// the bytes are copied, the page is executable again.
pub fn overwrite(at: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller's threads are not in the bytes that change.
    unsafe {
        let page = at.map_addr(|at| at & !(PAGE - 1)).cast();
        assert_eq!(libc::mprotect(page, PAGE, BOTH | libc::PROT_EXEC), 0);
        at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        assert_eq!(libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_EXEC), 0);
    }
}

/// `movabs r11, target; jmp r11`.
pub fn far_jump(target: usize) -> Vec<u8> {
    let mut code = vec![0x49, 0xbb];
    code.extend(target.to_le_bytes());
    code.extend([0x41, 0xff, 0xe3]);
    code
}
