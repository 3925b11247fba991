//! What runs in place of libc's functions that move the break, and libc's record of it. The
//! rules are those of `entry.rs`.
#![allow(unsafe_code)]

use crate::entry::{NEXT, bracketed, real, to_libc};
use crate::report::Function;
use crate::sys::syscall6;
use crate::{effect, fresh, refused};
use core::sync::atomic::Ordering::Acquire;

unsafe extern "C" {
    /// glibc's record of the current break (`misc/brk.c`); exported data.
    static mut __curbrk: usize;
}

pub(crate) extern "C" fn brk(new: usize) -> isize {
    let current = current_break();
    let result = bracketed(effect::brk(new, current), || {
        let next = NEXT[Function::Brk as usize].load(Acquire);
        if next != 0 && !refused::is_break(new, next) {
            // SAFETY: the argument is the caller's, unchanged.
            return unsafe { real(Function::Brk, libc::SYS_brk, [new, 0, 0, 0, 0, 0]) };
        }
        real_brk(new)
    });
    if result == 0 {
        fresh::grown(current, new);
    }
    result
}

/// libc's record of the break.
pub(crate) fn current_break() -> usize {
    // SAFETY: a racy read of a plain word, as libc's own sbrk does it; whoever
    // moves the break from two threads at once is on their own with libc too.
    unsafe { (&raw const __curbrk).read_volatile() }
}

/// libc's own brk, but that a refused call leaves libc's record alone: the break that it
/// answers with may be an old one by the time of a store, and malloc of another thread
/// may have moved it since.
pub(crate) extern "C" fn real_brk(new: usize) -> isize {
    if refused::is_break(new, 0) {
        return 0;
    }
    // SAFETY: brk(2) takes any address and answers with the break in force.
    let now = unsafe { syscall6(libc::SYS_brk as usize, [new, 0, 0, 0, 0, 0]) } as usize;
    // brk(0) is the question by which libc fills its record.
    if now == new || new == 0 || current_break() == 0 {
        // SAFETY: libc's brk keeps its record in exactly this way.
        unsafe { (&raw mut __curbrk).write_volatile(now) };
    }
    if now < new { to_libc(-(libc::ENOMEM as isize)) } else { 0 }
}

/// Only ever put in front of another patcher's sbrk: libc's own is left alone,
/// because it calls brk's patched entry.
pub(crate) extern "C" fn sbrk(increment: isize) -> isize {
    let current = current_break();
    let result = bracketed(effect::sbrk(increment, current), || {
        let next = NEXT[Function::Sbrk as usize].load(Acquire);
        if refused::is_increment(increment, next) {
            return to_libc(-(libc::ENOMEM as isize));
        }
        if next == 0 {
            return real_sbrk(increment);
        }
        // SAFETY: the argument is the caller's, unchanged.
        unsafe { real(Function::Sbrk, libc::SYS_brk, [increment as usize, 0, 0, 0, 0, 0]) }
    });
    if result != -1 {
        fresh::grown(result as usize, (result as usize).saturating_add_signed(increment));
    }
    result
}

/// libc's own sbrk, without its entry, which may be another's.
pub(crate) extern "C" fn real_sbrk(increment: isize) -> isize {
    let mut before = current_break();
    if before == 0 && real_brk(0) == 0 {
        before = current_break();
    }
    match before.checked_add_signed(increment) {
        Some(after) if increment == 0 || real_brk(after) == 0 => before as isize,
        _ => to_libc(-(libc::ENOMEM as isize)),
    }
}
