//! Calls that the kernel always refuses, by which the self-test knows each hook.
//!
//! A seccomp filter may end the process at a system call that the program never makes,
//! and a refused `brk` would race the program's own. So the self-test calls such
//! functions with arguments that no kernel accepts. The hook publishes as for any call,
//! and answers in the kernel's place with an error, mostly the kernel's own; the call is
//! not made.
//! Another's hook that stands at an entry is tested through it, and makes the call (UCX's,
//! whose own test of its events ours in front would fail).
//! It calls on only where the next in the chain is another copy of this library, which
//! does likewise: that copy's self-test may be the caller.

use crate::PAGE_SIZE;
use crate::patch;
use crate::report::Function;

/// brk(2): no heap begins below the first page.
pub(crate) const BREAK: usize = 1;
/// An address that is not a multiple of a page's length.
pub(crate) const ADDRESS: usize = 1;
/// No descriptor, no segment; as `prot` of remap_file_pages(2), which must be 0.
pub(crate) const NUMBER: usize = usize::MAX;
/// No path.
pub(crate) const PATH: usize = 0;

/// The errno with which every kernel refuses these arguments of `function`; `None` where
/// it may accept them, and where another copy of this library is `next`.
#[inline(always)]
pub(crate) fn errno(function: Function, args: &[usize; 6], next: usize) -> Option<i32> {
    let [first, _, third, ..] = *args;
    let is_no_number = |argument: usize| argument as i32 == NUMBER as i32;
    let (refused, errno) = match function {
        Function::Shmdt => (first == ADDRESS, libc::EINVAL),
        Function::Mprotect => (!first.is_multiple_of(PAGE_SIZE), libc::EINVAL),
        Function::Shmat => (is_no_number(first), libc::EINVAL),
        Function::RemapFilePages => (is_no_number(third), libc::EINVAL),
        Function::ProcessMadvise | Function::Ftruncate | Function::Fallocate => {
            (is_no_number(first), libc::EBADF)
        }
        Function::Truncate => (first == PATH, libc::EFAULT),
        _ => return None,
    };
    (refused && !patch::is_slot(next)).then_some(errno)
}

/// sbrk(3): below every break.
pub(crate) const INCREMENT: isize = isize::MIN;

/// Whether sbrk(3) refuses `increment` wherever the break is.
#[inline(always)]
pub(crate) fn is_increment(increment: isize, next: usize) -> bool {
    increment == INCREMENT && !patch::is_slot(next)
}

/// Whether brk(2) always refuses to move the break to `new`.
#[inline(always)]
pub(crate) fn is_break(new: usize, next: usize) -> bool {
    new == BREAK && !patch::is_slot(next)
}
