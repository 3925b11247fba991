//! Putting the hooks in place, and knowing at any time whether they still are.
//!
//! One hook owner per process is the rule of the field, and others break it: a
//! library that is initialised later may patch over us. So every registration
//! asks [`verify`], which compares the entries' bytes (one load each); what has
//! changed is tested again and, where its calls escape, taken back in front of
//! the newcomer, which is then called in place of the system call.
#![allow(unsafe_code)]

use crate::entry::{NEXT, replacement};
use crate::monitor::publish_everything;
use crate::patch::{self, Trampolines};
use crate::report::{Function, FunctionReport, Owner, Report, Seen, Why};
use crate::{fork, loader, self_test};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};

const COUNT: usize = Function::COUNT;

/// Entry address per function, 0 where this libc has none. Written once.
static ENTRIES: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];
/// The first 8 bytes that stood at each entry when it was last looked at.
static WORDS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// Whether the last report had no gap; false before the first.
static COMPLETE: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);

struct State {
    trampolines: Option<Trampolines>,
    report: Option<Report>,
}

/// The installer's state behind a spin lock: installing is rare, is never done
/// in a hook, and must not need an allocator.
struct Guarded {
    held: AtomicBool,
    state: UnsafeCell<State>,
}
// SAFETY: `state` is only reached through `with`, which holds `held`.
unsafe impl Sync for Guarded {}
static GUARDED: Guarded = Guarded {
    held: AtomicBool::new(false),
    state: UnsafeCell::new(State { trampolines: None, report: None }),
};

fn with<R>(mut work: impl FnMut(&mut State) -> R) -> R {
    loop {
        if let Some(result) = try_with(&mut work) {
            return result;
        }
        // SAFETY: sched_yield has no preconditions.
        unsafe { libc::sched_yield() };
    }
}

/// `None` where another thread is inside.
fn try_with<R>(work: impl FnOnce(&mut State) -> R) -> Option<R> {
    if GUARDED.held.compare_exchange(false, true, Acquire, Relaxed).is_err() {
        return None;
    }
    // SAFETY: `held` was taken with Acquire and is given back with Release
    // below; `work` cannot reach this function again (it is private, and no
    // hook calls it), so the reference is the only one.
    let result = work(unsafe { &mut *GUARDED.state.get() });
    GUARDED.held.store(false, Release);
    Some(result)
}

/// Installs the hooks, once per process, and tests each of them by use.
///
/// A later call returns the same report while it is complete and the entries
/// are as they were, and tests anew otherwise (the test's own shmdt and brk make
/// every subscriber flush). Never fails as a whole: what could not be hooked is
/// in the report, with the call that failed.
/// Not for signal handlers. Best called before other threads run; see
/// [`FunctionReport::boundary`].
pub fn install() -> Report {
    with(install_locked)
}

fn install_locked(state: &mut State) -> Report {
    if let Some(report) = state.report.filter(|report| report.is_complete() && untouched()) {
        return report;
    }
    install_anew(state)
}

fn install_anew(state: &mut State) -> Report {
    if state.report.is_none() {
        fork::install();
        keep_loaded();
        find_entries();
    }
    let refused = if state.trampolines.is_none() { map_trampolines(state).err() } else { None };
    let mut report = self_test::run(|function| hook(state, function, refused));
    for line in &mut report.functions {
        if line.seen == Seen::No(self_test::UNSEEN) {
            // Its owner was not known to end elsewhere: go in front of it.
            *line = hook(state, line.function, refused);
        }
    }
    state.report = Some(report);
    COMPLETE.store(report.is_complete(), Release);
    INSTALLED.store(true, Release);
    report
}

/// Tests every function anew although nothing has changed, for a diagnosis. Makes
/// every subscriber flush. Otherwise as [`install`].
pub fn test_again() -> Report {
    with(install_anew)
}

/// The report of the last [`install`] or repair; `None` before the first.
pub fn report() -> Option<Report> {
    with(|state| state.report)
}

/// Whether every change of a mapping still reaches the inbox, as far as the
/// last report says so. One load per function while nobody has touched the
/// entries; otherwise tests and repairs, reports anew, and tells every
/// subscriber that anything may have changed while the entries were not ours.
///
/// Before [`install`]: false. Not for signal handlers or hooks.
pub fn verify() -> bool {
    if untouched() || !INSTALLED.load(Acquire) {
        return COMPLETE.load(Acquire);
    }
    // Another thread is at it, perhaps waiting for the loader: do not wait too.
    let complete = try_with(|state| install_locked(state).is_complete());
    publish_everything();
    complete.unwrap_or(false)
}

/// Whether the entries are as they were left: nobody has patched over them since
/// the last [`install`] or [`verify`]. Loads only: callable anywhere.
pub fn untouched() -> bool {
    (0..COUNT).all(|index| {
        let entry = ENTRIES[index].load(Acquire);
        // SAFETY: a non-zero entry is a function of libc, which is never
        // unloaded; glibc aligns functions to 16 bytes.
        entry == 0 || unsafe { patch::load_word(entry) } == WORDS[index].load(Relaxed)
    })
}

/// Calls `function` through its entry as it stands, and says whether its event
/// arrived.
pub(crate) fn try_entry(function: Function) -> Seen {
    with(|state| {
        if state.report.is_none() {
            find_entries();
        }
        self_test::call(function)
    })
}

/// See [`keep_loaded`].
pub(crate) fn stay_loaded() {
    keep_loaded();
}

/// Our code is jumped to from libc for ever: forbid dlclose of the object it is in.
fn keep_loaded() {
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    // SAFETY: dladdr fills `info` for an address of our own; dlopen with NOLOAD
    // only adds a flag to the object that is loaded already. For a static
    // executable's own name it fails, and there is nothing to keep.
    unsafe {
        if libc::dladdr(keep_loaded as *const _, &raw mut info) != 0 && !info.dli_fname.is_null() {
            libc::dlopen(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
        }
    }
}

fn find_entries() {
    // SAFETY: the C library is loaded in every process that got here; NOLOAD
    // finds it without loading another.
    let libc_handle = unsafe { libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    loader::find(libc_handle);
    for function in Function::ALL {
        let at = if libc_handle.is_null() {
            core::ptr::null_mut()
        } else {
            // SAFETY: a live handle and a NUL-terminated name.
            unsafe { libc::dlsym(libc_handle, function.c_name().as_ptr()) }
        };
        ENTRIES[function as usize].store(at.addr(), Release);
        remember(function);
    }
}

/// The address of `function` in libc, or `None`.
pub(crate) fn entry_of(function: Function) -> Option<usize> {
    Some(ENTRIES[function as usize].load(Acquire)).filter(|&entry| entry != 0)
}

fn remember(function: Function) {
    if let Some(entry) = entry_of(function) {
        // SAFETY: a function of libc.
        let code = unsafe { patch::prologue(entry) };
        WORDS[function as usize].store(patch::first_word(&code), Relaxed);
    }
}

fn map_trampolines(state: &mut State) -> Result<(), Why> {
    let Some(near) = entry_of(Function::Munmap) else {
        return Err(Why { call: "dlsym(libc.so.6, munmap): not a glibc process", errno: 0 });
    };
    let targets = Function::ALL.map(replacement);
    state.trampolines = Some(Trampolines::map_near(near, &targets)?);
    Ok(())
}

/// Puts our jump at the entry of `function` unless its calls are seen as it is,
/// and remembers the entry as it then is: what failed is not tried again until
/// somebody touches it.
fn hook(state: &State, function: Function, refused: Option<Why>) -> FunctionReport {
    let line = patch_and_test(state, function, refused);
    remember(function);
    line
}

fn patch_and_test(state: &State, function: Function, refused: Option<Why>) -> FunctionReport {
    let line = |owner, seen, boundary| FunctionReport { function, owner, seen, boundary };
    let Some(entry) = entry_of(function) else {
        let why = Why { call: "this libc has no such function", errno: 0 };
        return line(Owner::Absent, Seen::NotExercised(why), false);
    };
    // SAFETY: a function of libc.
    let code = unsafe { patch::prologue(entry) };
    let boundary = patch::covers_boundary(&code);
    let failed = |why| line(patch::owner(entry, &code), Seen::No(why), boundary);
    let Some(trampolines) = &state.trampolines else {
        let why = Why { call: "no trampoline page", errno: 0 };
        return failed(refused.unwrap_or(why));
    };
    let ours = trampolines.slot(function as usize);
    let at_entry = patch::jump_target(entry, &code);
    if function == Function::Sbrk && at_entry.is_none() {
        // libc's own, which calls brk's patched entry.
        return line(Owner::Libc, self_test::call(function), false);
    }
    if at_entry != Some(ours) {
        if at_entry.is_some() && self_test::call(function) == Seen::Yes {
            // Another's hook that ends in one of ours (Open MPI's ends in
            // `syscall`): leave both as they are.
            return line(patch::owner(entry, &code), Seen::Yes, false);
        }
        if at_entry.is_none() && code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
            return failed(Why {
                call: "the entry starts with endbr64: no 5-byte instruction to replace",
                errno: 0,
            });
        }
        let Some(word) = patch::jump_word(entry, &code, ours) else {
            return failed(Why { call: "the trampoline page is out of reach of this entry", errno: 0 });
        };
        // Release: pairs with the Acquire in `entry::real`; in force before the jump is.
        NEXT[function as usize].store(at_entry.unwrap_or(0), Release);
        // SAFETY: a function of libc; the word is a jump to a trampoline that
        // tail-calls a replacement of the same signature. The bytes behind it
        // are unchanged; a boundary among the first five is reported.
        if let Err(why) = unsafe { patch::store(entry, word) } {
            return failed(why);
        }
    }
    line(Owner::Pinyard, self_test::call(function), boundary && at_entry.is_none())
}
