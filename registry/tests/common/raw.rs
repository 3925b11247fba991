//! A system call by an instruction of the test's own. Not in `mod.rs`: a process that has
//! it is one of raw callers.

/// munmap(2).
///
/// # Safety
/// Nobody uses the pages.
pub(crate) unsafe fn raw_munmap(at: *mut u8, len: usize) {
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's pages.
    unsafe {
        std::arch::asm!("mov eax, 11", "syscall", out("rax") result, in("rdi") at, in("rsi") len,
            out("rcx") _, out("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller's pages.
    unsafe {
        std::arch::asm!("mov x8, #215", "svc 0", inout("x0") at => result, in("x1") len, out("x8") _,
            options(nostack));
    }
    assert_eq!(result, 0);
}
