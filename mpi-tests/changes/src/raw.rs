//! Rows that change private pages with the system call instruction itself.
#![allow(unsafe_code)]

use crate::judge::{Judge, Outcome, Verdict};
use crate::memory::{Memory, READ_WRITE};
use crate::pages::changed;
use std::arch::asm;

/// A system call made by an instruction that is not libc's.
///
/// # Safety
/// As the call `number` demands.
#[inline(always)]
pub(crate) unsafe fn syscall(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the x86-64 Linux convention; the rest is the caller's contract.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

fn zero(result: isize, call: &str) -> Outcome {
    if result == 0 { Ok(()) } else { Err(Verdict::Skipped(format!("{call}: errno {}", -result))) }
}

pub(crate) fn munmap(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        let args = [memory.at, memory.len, 0, 0, 0, 0];
        // SAFETY: the row's own pages.
        zero(unsafe { syscall(libc::SYS_munmap as usize, args) }, "munmap")?;
        memory.map_again().map(drop)
    })
}

pub(crate) fn madvise(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        let args = [memory.at, memory.len, libc::MADV_DONTNEED as usize, 0, 0, 0];
        // SAFETY: the row's own pages.
        zero(unsafe { syscall(libc::SYS_madvise as usize, args) }, "madvise")
    })
}

pub(crate) fn mmap_over(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let args = [memory.at, memory.len, READ_WRITE as usize, flags as usize, usize::MAX, 0];
        // SAFETY: replaces the row's own pages.
        let at = unsafe { syscall(libc::SYS_mmap as usize, args) };
        zero(at - memory.at as isize, "mmap")
    })
}

pub(crate) fn mremap_away(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        let to = Memory::private(2)?.at;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let args = [memory.at, memory.len, memory.len, flags as usize, to, 0];
        // SAFETY: moves the row's own pages over others of its own.
        zero(unsafe { syscall(libc::SYS_mremap as usize, args) } - to as isize, "mremap")?;
        memory.map_again().map(drop)
    })
}

/// The instructions of `runtime·sysMunmap` (Go, `runtime/sys_linux_amd64.s`):
/// arguments from the stack, the number into rax, no frame of C's.
pub(crate) fn go_munmap(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        let result: isize;
        // SAFETY: the row's own pages; the stack is left as it was.
        unsafe {
            asm!(
                "push {len}",
                "push {at}",
                "mov rdi, [rsp]",
                "mov rsi, [rsp + 8]",
                "mov rax, 11",
                "syscall",
                "lea rsp, [rsp + 16]",
                len = in(reg) memory.len,
                at = in(reg) memory.at,
                out("rax") result, out("rdi") _, out("rsi") _, out("rcx") _, out("r11") _,
            );
        }
        zero(result, "munmap")?;
        memory.map_again().map(drop)
    })
}

pub(crate) fn rustix_munmap(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        // SAFETY: the row's own pages.
        unsafe { rustix::mm::munmap(memory.pointer(), memory.len) }
            .map_err(|error| Verdict::Skipped(format!("munmap: {error}")))?;
        memory.map_again().map(drop)
    })
}

pub(crate) fn rustix_madvise(judge: &mut Judge) -> Outcome<Verdict> {
    changed(judge, |memory| {
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // SAFETY: the row's own pages.
        unsafe { rustix::mm::madvise(memory.pointer(), memory.len, advice) }
            .map_err(|error| Verdict::Skipped(format!("madvise: {error}")))
    })
}
