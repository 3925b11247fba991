//! dlclose: the loader unmaps objects with system calls of its own.
//!
//! Before it removes any it sets the state of its `r_debug` to `RT_DELETE` and
//! calls `_dl_debug_state`, an empty function that exists for debuggers to stop
//! in (`elf/dl-debug.c`, `elf/dl-close.c`; `link.h`); once they are gone, it sets
//! `RT_CONSISTENT` and calls it again. Our jump stands at that function's entry.
//! What dlopen maps goes over addresses that it has just been given, and what it
//! unmaps after a failure nobody has seen yet. Objects that have come may make
//! system calls of their own, though: somebody has to look.
#![allow(unsafe_code)]

use crate::entry::NEXT;
use crate::monitor::publish_everything;
use crate::report::Function;
use crate::settled;
use core::ptr::null;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

/// `struct r_debug_extended` (`link.h`); `next` is there from version 2 on.
#[repr(C)]
struct State {
    version: i32,
    map: *const u8,
    brk: usize,
    state: i32,
    base: usize,
    next: *const State,
}
const DELETE: i32 = 2;
/// Namespaces that one process can have (`DL_NNS`).
const NAMESPACES: usize = 16;

/// The loader's `_r_debug`.
static LOADER: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());
/// Objects were about to go when we were last called.
static REMOVING: AtomicBool = AtomicBool::new(false);
static TESTS: AtomicU32 = AtomicU32::new(0);

/// Learns where the loader keeps its state, before the entry is patched.
pub(crate) fn find(libc_handle: *mut libc::c_void) {
    if !libc_handle.is_null() {
        // SAFETY: a live handle and a NUL-terminated name; the loader is one of
        // libc's own dependencies.
        let state = unsafe { libc::dlsym(libc_handle, c"_r_debug".as_ptr()) };
        LOADER.store(state.cast(), Release);
    }
}

/// Some namespace's objects are about to be removed. The caller is the loader,
/// which holds its lock.
fn removing() -> bool {
    let mut at: *const State = LOADER.load(Acquire);
    for _ in 0..NAMESPACES {
        if at.is_null() {
            return false;
        }
        // SAFETY: the loader's own record, in memory that it never gives back;
        // volatile, because the loader is not a party to our memory model.
        let (state, version) = unsafe { ((&raw const (*at).state).read_volatile(), (*at).version) };
        if state == DELETE {
            return true;
        }
        // SAFETY: from version 2 on the record has this field.
        at = if version >= 2 { unsafe { (&raw const (*at).next).read_volatile() } } else { null() };
    }
    false
}

/// Runs in place of `_dl_debug_state`.
pub(crate) extern "C" fn state_changed() {
    let removing = removing();
    // The call that follows a removal publishes too: a registration that began
    // meanwhile may have pinned pages that are gone.
    if REMOVING.swap(removing, AcqRel) || removing || TESTS.load(Acquire) != 0 {
        publish_everything();
    }
    if !removing {
        settled::objects_loaded();
    }
    let next = NEXT[Function::DlDebugState as usize].load(Acquire);
    if next != 0 {
        // SAFETY: the decoded target of a jump that stood at this function's
        // entry, so it takes no argument either.
        unsafe { core::mem::transmute::<usize, extern "C" fn()>(next)() };
    }
}

/// Runs `test` as if objects were about to go.
pub(crate) fn as_if_removing<R>(test: impl FnOnce() -> R) -> R {
    TESTS.fetch_add(1, SeqCst);
    let result = test();
    TESTS.fetch_sub(1, SeqCst);
    result
}
