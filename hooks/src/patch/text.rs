//! One word of libc's text, replaced with one store.
//!
//! First choice is `/proc/thread-self/mem`: the kernel writes its own copy of the page,
//! so no page is ever writable and executable, and another patcher that has made
//! the same page writable keeps it so. Where that is refused, the page becomes
//! writable for the one store, executable throughout. Where both are refused
//! (seccomp, SELinux's execmod, `proc_mem.force_override`), so is the patch.

use super::{Patch, Why, arch, load_word};
use crate::{PAGE_SIZE, sys};

/// # Safety
/// See `apply` in the parent module.
pub(super) unsafe fn replace(patch: &Patch) -> Result<(), Why> {
    // Only a store that the processor locks is whole across an 8-byte boundary.
    // SAFETY: passed on to the caller.
    if patch.word_at.is_multiple_of(8) && unsafe { through_proc(patch) } {
        return Ok(());
    }
    // SAFETY: passed on to the caller.
    unsafe { through_mprotect(patch) }
}

/// # Safety
/// As [`replace`].
unsafe fn through_mprotect(patch: &Patch) -> Result<(), Why> {
    let page = patch.word_at & !(PAGE_SIZE - 1);
    let executable = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: the page stays readable and executable for threads that run in it.
    unsafe { sys::mprotect(page, PAGE_SIZE, executable | libc::PROT_WRITE) }.map_err(|errno| Why {
        call: "not patched: pwrite(/proc/thread-self/mem) was refused, and so was mprotect(libc text, PROT_WRITE | PROT_EXEC)",
        errno,
    })?;
    // SAFETY: mapped and writable; the caller answers for the bytes.
    let stored = unsafe { arch::replace_word(patch.word_at, patch.old, patch.new) };
    // SAFETY: back to what text had before.
    unsafe { sys::mprotect(page, PAGE_SIZE, executable) }
        .map_err(|errno| Why { call: "mprotect(libc text, PROT_READ | PROT_EXEC)", errno })?;
    if stored {
        Ok(())
    } else {
        Err(Why { call: "store of the jump: another patcher has changed the entry meanwhile", errno: 0 })
    }
}

/// Whether it was written. The kernel copies 8 aligned bytes with one store.
///
/// # Safety
/// As [`replace`].
unsafe fn through_proc(patch: &Patch) -> bool {
    // SAFETY: a constant path; the descriptor is closed below.
    let fd = unsafe { libc::open(c"/proc/thread-self/mem".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if fd < 0 {
        return false;
    }
    // SAFETY: text of libc; 8 bytes from `patch`; the kernel checks the target.
    let written = unsafe {
        load_word(patch.word_at) == patch.old
            && libc::pwrite(fd, (&raw const patch.new).cast(), 8, patch.word_at as libc::off_t) == 8
    };
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    // A write that is answered for but does not arrive (an emulator's) is none.
    // SAFETY: text of libc.
    written && unsafe { load_word(patch.word_at) } == patch.new
}
