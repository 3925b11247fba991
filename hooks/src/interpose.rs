//! Interposition by a preloaded library: the mechanism for processes in which no
//! entry may be patched.
//!
//! The library exports functions under libc's names. The loader binds every call
//! that goes through a procedure linkage table to them, from any object of the
//! library's namespace; each is a jump through its place in [`TARGETS`], which leads
//! to libc's own function until [`begin`] makes it lead to the hook. What libc calls
//! inside itself (free, realloc, malloc_trim, threads' stacks), what the loader does
//! at dlclose, objects linked with `-Bsymbolic` that define such a function, and who
//! asks libc by dlsym, all pass by: [`Report::passes_by`](crate::Report::passes_by).
#![allow(unsafe_code)]

use crate::entry::{self, NEXT};
use crate::report::{Function, FunctionReport, Owner, Seen, Why};
use crate::{install, passthrough, self_test};
use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

const COUNT: usize = Function::COUNT;

/// Where each exported function jumps to, in the order of [`Function::ALL`]. The
/// system call itself until [`lead_on`] has found libc's function: the loader's own
/// relocation fills this in, so it holds before any constructor has run.
pub static TARGETS: [AtomicPtr<()>; COUNT] = [
    AtomicPtr::new(passthrough::munmap as *mut ()),
    AtomicPtr::new(passthrough::mmap as *mut ()),
    AtomicPtr::new(passthrough::mremap as *mut ()),
    AtomicPtr::new(passthrough::madvise as *mut ()),
    AtomicPtr::new(entry::real_brk as *mut ()),
    AtomicPtr::new(libc_sbrk as *mut ()),
    AtomicPtr::new(passthrough::shmdt as *mut ()),
    AtomicPtr::new(passthrough::process_madvise as *mut ()),
    AtomicPtr::new(null_mut()),
    AtomicPtr::new(passthrough::syscall as *mut ()),
    AtomicPtr::new(passthrough::shmat as *mut ()),
    AtomicPtr::new(passthrough::remap_file_pages as *mut ()),
    AtomicPtr::new(passthrough::ftruncate as *mut ()),
    AtomicPtr::new(passthrough::truncate as *mut ()),
    AtomicPtr::new(passthrough::fallocate as *mut ()),
    AtomicPtr::new(null_mut()),
];

/// Addresses of the exported functions, and of what they stand in front of; 0 where
/// there is none.
static WRAPPERS: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];
static REAL: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];
static ON: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// libc's sbrk under the name that nobody interposes.
    fn __sbrk(increment: isize) -> *mut libc::c_void;
}

extern "C" fn libc_sbrk(increment: isize) -> isize {
    // SAFETY: the argument is the caller's, unchanged.
    unsafe { __sbrk(increment) }.addr() as isize
}

/// Once, from the preloaded library's constructor: each exported function leads on
/// to what `next` finds behind it, libc's own or another interposer's. Makes no
/// system call.
pub fn lead_on(next: impl Fn(&CStr) -> *mut libc::c_void) {
    for function in Function::ALL {
        let index = function as usize;
        let real = next(function.c_name());
        if !TARGETS[index].load(Relaxed).is_null() && !real.is_null() {
            REAL[index].store(real.addr(), Release);
            // Release: whoever jumps there finds a function.
            TARGETS[index].store(real.cast(), Release);
        }
    }
}

/// Makes the exported functions hooks, in place of patched entries, for the rest of
/// the process; [`crate::install`] then tests those. `wrapper` gives the
/// address of the exported function. Does nothing where entries are patched already:
/// they see more, and a hook that calls the entry would be called by it. Not for hooks
/// or signal handlers.
pub fn begin(wrapper: impl Fn(Function) -> usize) {
    let patched = |report: crate::Report| report.functions.iter().any(|line| line.owner == Owner::Pinyard);
    if install::report().is_some_and(patched) || ON.swap(true, AcqRel) {
        return;
    }
    for function in Function::ALL {
        let index = function as usize;
        if TARGETS[index].load(Relaxed).is_null() {
            continue;
        }
        WRAPPERS[index].store(wrapper(function), Release);
        // Release, both: in force before the hook is, which calls it.
        NEXT[index].store(REAL[index].load(Acquire), Release);
        TARGETS[index].store(core::ptr::without_provenance_mut(entry::replacement(function)), Release);
    }
}

/// Whether [`begin`] has been called.
pub fn is_on() -> bool {
    ON.load(Acquire)
}

/// The line of `function`, tested through the exported function.
pub(crate) fn test(function: Function) -> FunctionReport {
    let line = |owner, seen| FunctionReport { function, owner, seen, boundary: false };
    let not = |call| Seen::NotExercised(Why { call, errno: 0 });
    match (function, WRAPPERS[function as usize].load(Acquire)) {
        (Function::Mprotect, _) => {
            line(Owner::Libc, not("nobody's patch stands in front of an interposed call"))
        }
        (Function::DlDebugState, _) => line(Owner::Libc, not("the loader's own calls pass by")),
        (_, 0) => {
            line(Owner::Libc, Seen::No(Why { call: "not exported by the preloaded library", errno: 0 }))
        }
        // Its test moves the break beside whatever other code moves it.
        (Function::Sbrk, _) => line(Owner::Interposed, not("sbrk(-4096): see brk")),
        (_, wrapper) => line(Owner::Interposed, self_test::call_at(function, wrapper)),
    }
}
