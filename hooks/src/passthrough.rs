//! libc's functions without a hook: the system call and errno, nothing else.
//!
//! Where a trampoline leads once its hook is out, or another's hook has come
//! between: whoever still jumps there gets the real call.
#![allow(unsafe_code)]

use crate::entry::to_libc;
use crate::report::Function;
use crate::sys::syscall6;
use crate::{entry_break, refused};

/// The address of the real `function`.
pub(crate) fn of(function: Function) -> usize {
    match function {
        Function::Munmap => munmap as *const () as usize,
        Function::Mmap => mmap as *const () as usize,
        Function::Mremap => mremap as *const () as usize,
        Function::Madvise => madvise as *const () as usize,
        Function::Brk => entry_break::real_brk as *const () as usize,
        Function::Sbrk => entry_break::real_sbrk as *const () as usize,
        Function::Shmdt => shmdt as *const () as usize,
        Function::ProcessMadvise => process_madvise as *const () as usize,
        Function::Mprotect => mprotect as *const () as usize,
        Function::Syscall => syscall as *const () as usize,
        Function::Shmat => shmat as *const () as usize,
        Function::RemapFilePages => remap_file_pages as *const () as usize,
        Function::Ftruncate => ftruncate as *const () as usize,
        Function::Truncate => truncate as *const () as usize,
        Function::Fallocate => fallocate as *const () as usize,
        Function::DlDebugState => nothing as *const () as usize,
    }
}

macro_rules! real_calls {
    ($($name:ident = $number:ident, $function:ident)*) => {$(
        pub(crate) extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
            if let Some(errno) = refused::errno(Function::$function, &[a, b, c, d, e, f], 0) {
                return to_libc(-(errno as isize));
            }
            // SAFETY: the arguments are those of the function's own caller; the
            // kernel ignores registers that the call has no argument for.
            to_libc(unsafe { syscall6(libc::$number as usize, [a, b, c, d, e, f]) })
        }
    )*};
}

real_calls! {
    munmap = SYS_munmap, Munmap
    mmap = SYS_mmap, Mmap
    mremap = SYS_mremap, Mremap
    madvise = SYS_madvise, Madvise
    shmdt = SYS_shmdt, Shmdt
    process_madvise = SYS_process_madvise, ProcessMadvise
    mprotect = SYS_mprotect, Mprotect
    shmat = SYS_shmat, Shmat
    remap_file_pages = SYS_remap_file_pages, RemapFilePages
    ftruncate = SYS_ftruncate, Ftruncate
    truncate = SYS_truncate, Truncate
    fallocate = SYS_fallocate, Fallocate
}

/// `_dl_debug_state` is empty.
extern "C" fn nothing() {}

/// libc's `syscall`, with no stack frame of ours (see `entry::syscall`).
///
/// # Safety
/// As libc's `syscall`: only ever reached by a jump from its entry.
#[unsafe(naked)]
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "nop dword ptr [rax + {mark}]",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3: mov rdi, rax",
        "jmp {to_libc}",
        mark = const crate::sys::MARK,
        to_libc = sym to_libc,
    );
}

/// As above.
///
/// # Safety
/// As above.
#[unsafe(naked)]
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "hint 34", // bti c
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc 0",
        "movz xzr, {low}",
        "movz xzr, {high}, lsl 16",
        "cmn x0, 4095",
        "b.hs 3f",
        "ret",
        "3: b {to_libc}",
        low = const crate::sys::MARK & 0xffff,
        high = const crate::sys::MARK >> 16,
        to_libc = sym to_libc,
    );
}
