//! Putting the hooks in place, and knowing at any time whether they still are.
//!
//! One hook owner per process is the rule of the field, and others break it: a
//! library that is initialised later may patch over us. So every registration
//! asks [`verify`], which compares the entries' bytes (one load each); what has
//! changed is tested again and, where its calls escape, taken back in front of
//! the newcomer, which is then called in place of the system call.
#![allow(unsafe_code)]

use crate::entry::NEXT;
use crate::holder::{Found, Holder};
use crate::libc_functions::{self, entry_of};
use crate::monitor::publish_everything;
use crate::patch::{self, Mode};
use crate::report::{Function, FunctionReport, ModuleName, Owner, Report, Seen, Why};
use crate::{effect, fork, self_test, settled, text};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

const COUNT: usize = Function::COUNT;

/// The first 8 bytes that stood at each entry when it was last looked at.
static WORDS: [AtomicU64; COUNT] = [const { AtomicU64::new(0) }; COUNT];

/// Whether the last report had no gap; false before the first.
static COMPLETE: AtomicBool = AtomicBool::new(false);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// See [`repairs`].
static REPAIRS: AtomicU32 = AtomicU32::new(0);

/// [`prepare`] has come to its end.
static READY: AtomicBool = AtomicBool::new(false);

struct State {
    report: Option<Report>,
}

/// The installer's state behind its lock. Whoever is inside makes system calls and calls
/// the entries; it asks nothing of the loader.
struct Guarded {
    holder: Holder,
    state: UnsafeCell<State>,
}
// SAFETY: `state` is only reached by the thread that `holder` has let in.
unsafe impl Sync for Guarded {}
static GUARDED: Guarded = Guarded { holder: Holder::new(), state: UnsafeCell::new(State { report: None }) };

fn with<R>(work: impl FnOnce(&mut State) -> R) -> R {
    inside(GUARDED.holder.enter(fork::generation()), work)
}

/// `None` where another thread is inside.
fn try_with<R>(work: impl FnOnce(&mut State) -> R) -> Option<R> {
    GUARDED.holder.try_enter(fork::generation()).map(|found| inside(found, work))
}

fn inside<R>(found: Found, work: impl FnOnce(&mut State) -> R) -> R {
    // SAFETY: this thread has been let in, and leaves below; `work` cannot reach this
    // function again (it is private, and no hook calls it), so the reference is the only
    // one. A report is plain data: writing it over needs nothing of what stood there.
    let state = unsafe { &mut *GUARDED.state.get() };
    if found == Found::Abandoned {
        // What a thread of the parent's may have half written is dropped.
        *state = State { report: None };
    }
    let result = work(state);
    GUARDED.holder.leave();
    result
}

/// What is done once per process, outside the lock. Of two threads that come at once, both
/// do it, to the same end.
fn prepare() {
    if READY.load(Acquire) {
        return;
    }
    fork::install();
    effect::learn_kernel();
    libc_functions::find();
    READY.store(true, Release);
}

/// With the names of the objects that others' hooks lie in, which the loader knows.
fn named(mut report: Report) -> Report {
    for line in &mut report.functions {
        if let (Owner::Module(name), Some(entry)) = (&mut line.owner, entry_of(line.function)) {
            // SAFETY: a function of libc.
            *name = unsafe { patch::jump_target(entry) }.map_or(ModuleName::UNKNOWN, patch::module_of);
        }
    }
    report
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
    prepare();
    named(with(install_locked))
}

fn install_locked(state: &mut State) -> Report {
    if let Some(report) = state.report.filter(|report| report.is_complete() && untouched()) {
        return report;
    }
    install_anew(state)
}

fn install_anew(state: &mut State) -> Report {
    let report = patch_entries();
    state.report = Some(report);
    COMPLETE.store(report.is_complete(), Release);
    INSTALLED.store(true, Release);
    report
}

fn patch_entries() -> Report {
    let refused = map_trampolines().and_then(|()| patch::serialise()).err();
    let mut report = self_test::run(|function| hook(function, refused));
    for line in &mut report.functions {
        if line.seen == Seen::No(self_test::UNSEEN) {
            // Its owner was not known to end elsewhere: go in front of it.
            *line = hook(line.function, refused);
        }
    }
    report
}

/// Takes the hooks out, for a program that is done with registered memory, and
/// for tests. An entry gets its bytes back only where ours still stand; where
/// another patcher has come after us, its hook stays and calls past ours. No
/// event arrives any more: [`verify`] says so, until [`install`] is called again.
///
/// Whether every entry was given back. Not for signal handlers.
pub fn remove() -> bool {
    with(|state| {
        if !INSTALLED.load(Acquire) {
            return true;
        }
        COMPLETE.store(false, Release);
        state.report = None;
        let given_back = Function::ALL.map(take_out);
        // What was registered while events arrived is now on its own.
        publish_everything();
        given_back.iter().all(|&given_back| given_back)
    })
}

fn take_out(function: Function) -> bool {
    let Some(entry) = entry_of(function) else { return true };
    // SAFETY: a function of libc.
    let ours = unsafe { patch::jump_target(entry) } == Some(patch::current(function));
    let given_back = !ours || patch::take_out(function).is_ok();
    // Relaxed: stored under the lock, and in force since.
    patch::set_mode(function, Mode::Past(NEXT[function as usize].load(Relaxed)));
    remember(function);
    // SAFETY: as above.
    given_back && unsafe { patch::owner(entry) } == Owner::Libc
}

/// Tests every function anew although nothing has changed, for a diagnosis. Makes
/// every subscriber flush. Otherwise as [`install`].
pub fn test_again() -> Report {
    prepare();
    named(with(install_anew))
}

/// The report of the last [`install`] or repair; `None` before the first.
pub fn report() -> Option<Report> {
    with(|state| state.report).map(named)
}

/// Whether every change of a mapping still reaches the inbox, as far as the
/// last report says so. One load per function while nobody has touched the
/// entries; otherwise tests and repairs, reports anew, and tells every
/// subscriber that anything may have changed while the entries were not ours.
///
/// Before [`install`]: false. Not for signal handlers or hooks.
pub fn verify() -> bool {
    if !text::is_sealed() {
        // Somebody is patching at this moment: nothing is repaired meanwhile.
        return false;
    }
    if untouched() || !INSTALLED.load(Acquire) {
        return COMPLETE.load(Acquire);
    }
    // Release: before anything is repaired; see `repairs`.
    REPAIRS.fetch_add(1, Release);
    // Another thread is at it: no registration waits for that.
    let complete = try_with(|state| install_locked(state).is_complete());
    // What was mapped while calls escaped us has to be looked for.
    settled::objects_loaded();
    publish_everything();
    complete.unwrap_or(false)
}

/// How often [`verify`] has found the entries touched. Counted before they are
/// repaired: whoever finds this unchanged and [`untouched`] true afterwards knows that
/// no other patcher has been there in between.
pub fn repairs() -> u32 {
    REPAIRS.load(Acquire)
}

/// Whether the entries are as they were left: nobody has patched over them since
/// the last [`install`] or [`verify`], nor is about to. Loads only: callable
/// anywhere.
pub fn untouched() -> bool {
    text::is_sealed()
        && (0..COUNT).all(|index| {
            let word = WORDS[index].load(Relaxed);
            // SAFETY: an entry is a function of libc, which is never unloaded; glibc
            // aligns functions to 16 bytes.
            entry_of(Function::ALL[index]).is_none_or(|entry| unsafe { patch::load_word(entry) } == word)
        })
}

fn remember(function: Function) {
    if let Some(entry) = entry_of(function) {
        // SAFETY: a function of libc.
        let code = unsafe { patch::prologue(entry) };
        WORDS[function as usize].store(patch::first_word(&code), Relaxed);
    }
}

fn map_trampolines() -> Result<(), Why> {
    // SAFETY: sysconf has no preconditions.
    if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize != crate::PAGE_SIZE {
        return Err(Why { call: "not patched: this kernel's pages are not of 4096 bytes", errno: 0 });
    }
    match entry_of(Function::Munmap) {
        Some(near) => patch::map(near),
        None => Err(Why { call: "dlsym(libc.so.6, munmap): not a glibc process", errno: 0 }),
    }
}

/// Puts our jump at the entry of `function` unless its calls are seen as it is,
/// and remembers the entry as it then is: what failed is not tried again until
/// somebody touches it.
fn hook(function: Function, refused: Option<Why>) -> FunctionReport {
    let line = patch_and_test(function, refused);
    remember(function);
    line
}

fn patch_and_test(function: Function, refused: Option<Why>) -> FunctionReport {
    let line = |owner, seen, boundary| FunctionReport { function, owner, seen, boundary };
    let Some(entry) = entry_of(function) else {
        let why = Why { call: "this libc has no such function", errno: 0 };
        return line(Owner::Absent, Seen::NotExercised(why), false);
    };
    // SAFETY: a function of libc.
    let (owner, at_entry) = unsafe { (patch::owner(entry), patch::jump_target(entry)) };
    let failed = |why| line(owner, Seen::No(why), false);
    if let Some(why) = refused {
        return failed(why);
    }
    // Another's hook, where one stands.
    let next = at_entry.filter(|&target| !patch::is_ours(target));
    if function == Function::Sbrk && at_entry.is_none() {
        // libc's own, which calls brk's entry: it is seen as brk is. Another's that stood
        // here may be unloaded by now.
        NEXT[function as usize].store(0, Release);
        let seen = if self_test::brk_is_seen() {
            Seen::Yes
        } else {
            Seen::No(Why { call: "libc's sbrk calls brk, whose calls are not seen", errno: 0 })
        };
        return line(Owner::Libc, seen, false);
    }
    let mut boundary = false;
    if at_entry != Some(patch::current(function)) {
        if next.is_some() && self_test::surely_seen(function) {
            // Another's hook that ends in one of ours (Open MPI's ends in
            // `syscall`): leave both as they are.
            return line(owner, Seen::Yes, false);
        }
        match put_in(function, entry, next) {
            Ok(covered) => boundary = covered,
            Err(why) => return failed(why),
        }
    }
    patch::set_mode(function, Mode::Hook);
    line(Owner::Pinyard, self_test::call(function), boundary)
}

/// Puts our jump at the entry, in front of `next` where somebody else's stands.
fn put_in(function: Function, entry: usize, next: Option<usize>) -> Result<bool, Why> {
    let index = function as usize;
    if let Some(next) = next {
        // Relaxed: stored under the lock. Who comes back in front of us is not
        // called from behind as well.
        let before = NEXT[index].load(Relaxed);
        patch::renew(function, if before == next { 0 } else { before })?;
    }
    // Release: pairs with the Acquire in `entry::real`; in force before the jump is.
    NEXT[index].store(next.unwrap_or(0), Release);
    patch::set_mode(function, Mode::Hook);
    // SAFETY: a function of libc; the slot leads to a replacement of the same
    // signature.
    unsafe { patch::put_in(function, entry, patch::current(function), self_test::single_threaded) }
}
