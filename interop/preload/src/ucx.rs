//! UCX: told of changes that its own hooks do not hear.
//!
//! UCX tests its hooks when it installs them and never again. A library that patches
//! libc later, as libfabric's memhooks do, takes them away in silence: its cache goes
//! on and sends what was in pages that are gone (PyPI's Open MPI 5.0.11, pml ucx over
//! rc_verbs). Here a *canary* looks every 50 ms: a page of ours is emptied and
//! unmapped through libc, and a handler of ours in UCX must hear of both.
//!
//! From the moment in which somebody begins to write over libc's entries until the
//! next canary has come through, and for good where it does not, UCX is told by our
//! hooks (`ucm_vm_munmap`, which is there for this), inside the change as its own
//! hooks do it. Being told twice invalidates nothing more.

use crate::caller;
use crate::guarded;
use crate::loader;
use crate::object;
use crate::process;
use crate::say::say;
use crate::settings::{Level, Ucx, settings};
use crate::stubs::Seven;
use crate::ucx_cache::{self, Change, VM_UNMAPPED};
use core::ffi::{CStr, c_void};
use pinyard_hooks::{PAGE_SIZE, fork_generation, install, listener, repairs, sys, untouched};
use pinyard_libfabric::every_round;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};

/// `UCS_ERR_UNSUPPORTED`.
const UNSUPPORTED: isize = -22;
/// `UCM_EVENT_FLAG_NO_INSTALL` (`ucm/api/ucm.h`).
const NO_INSTALL: usize = 1 << 24;
/// After every other handler.
const PRIORITY: usize = 1_000_000;
/// One past the highest address of a 47-bit user space.
const TOP: usize = 1 << 47;

/// `ucm_vm_munmap(address, length)`.
type Tell = extern "C" fn(*mut c_void, usize);

/// Address of UCX's [`Tell`]; 0 before.
static TELL: AtomicUsize = AtomicUsize::new(0);
/// UCX hears of all that our hooks see, whatever its own hooks hear.
static ALWAYS: AtomicBool = AtomicBool::new(false);
/// The last canary was not heard of.
static DEAF: AtomicBool = AtomicBool::new(false);
/// [`repairs`] when the last canary flew.
static SETTLED: AtomicU32 = AtomicU32::new(0);
/// The process that UCX runs in, as a fork generation: a child's UCX is not told.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The page of the canary, and how often UCX has told of it.
static CANARY: AtomicUsize = AtomicUsize::new(0);
static HEARD: AtomicU32 = AtomicU32::new(0);

/// In a hook: a change. Atomics, and what UCX does in its own hooks.
extern "C" fn changes(address: *mut c_void, len: usize) {
    let settled = repairs() == SETTLED.load(Acquire) && untouched();
    // UCX has hooks for mappings, and none for files.
    let hears_itself = settled
        && !DEAF.load(Acquire)
        && !ALWAYS.load(Acquire)
        && !listener::is_of_a_file(address.addr(), len);
    let tell = TELL.load(Acquire);
    if hears_itself
        || tell == 0
        || address.addr() == CANARY.load(Acquire)
        || OWNER.load(Acquire) != fork_generation()
    {
        return;
    }
    // SAFETY: the calling thread's errno, which hooks keep.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: stored as this function's address, of a library that is never unloaded.
    let tell = unsafe { core::mem::transmute::<usize, Tell>(tell) };
    tell(address, len);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// UCX's handler: in a hook.
extern "C" fn heard(_: i32, event: *const Change, _: *mut c_void) {
    // SAFETY: UCX passes the event that the handler was set for, for the time of the call.
    let event = unsafe { &*event };
    let canary = CANARY.load(Acquire);
    if canary != 0 && event.address <= canary && canary < event.address.saturating_add(event.size) {
        HEARD.fetch_add(1, AcqRel);
    }
}

/// `ucm_set_event_handler(events, priority, callback, argument)`, which every user of
/// UCX's hooks calls.
#[allow(clippy::too_many_arguments)]
pub(crate) extern "C" fn set_event_handler(
    events: usize,
    priority: usize,
    callback: usize,
    argument: usize,
    e: usize,
    f: usize,
    g: usize,
    caller: usize,
) -> isize {
    let Some(real) = caller::real(c"ucm_set_event_handler", caller) else { return UNSUPPORTED };
    let settings = settings();
    if settings.on && settings.ucx == Ucx::Everything {
        // Whatever this handler is for: UCX installs all its hooks with the first.
        guarded(|| take_over(real));
    }
    let wanted = events & VM_UNMAPPED != 0 && settings.on && settings.ucx != Ucx::Nothing;
    let (callback, argument) = ucx_cache::in_place_of(events, callback, argument);
    // SAFETY: UCX's own function, with the caller's arguments.
    let result =
        unsafe { core::mem::transmute::<usize, Seven>(real) }(events, priority, callback, argument, e, f, g);
    // `ucs_status_t` is a byte.
    if result as i8 != 0 {
        ucx_cache::refused(argument);
    } else if wanted {
        guarded(|| watch(real));
    }
    result
}

fn once(flag: &AtomicBool) -> bool {
    !flag.swap(true, AcqRel)
}

/// Has our hooks tell UCX of every change, so that it installs none of its own.
fn take_over(real: usize) {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !once(&ONCE) {
        return;
    }
    let report = install();
    let Some(object) = object::name_at(real) else { return };
    let external = loader::in_object(object, c"ucm_set_external_event");
    let (true, true, Some(external)) = (report.is_complete(), begin(object), external) else {
        say(
            Level::Error,
            format_args!(
                "UCX ({}): left to its own hooks: {}",
                object.to_string_lossy(),
                process::in_words(&report)
            ),
        );
        return;
    };
    ALWAYS.store(true, Release);
    // SAFETY: the function of this name takes a mask of events (`ucm/api/ucm.h`).
    let external = unsafe { core::mem::transmute::<usize, extern "C" fn(i32)>(external) };
    external(VM_UNMAPPED as i32);
    say(
        Level::Info,
        format_args!(
            "UCX ({}): pinyard's hooks serve it; {}",
            object.to_string_lossy(),
            process::in_words(&report)
        ),
    );
}

/// UCX hears of changes from now on; see to it that it goes on hearing.
fn watch(real: usize) {
    static ONCE: AtomicBool = AtomicBool::new(false);
    if !once(&ONCE) {
        return;
    }
    let report = install();
    let Some(object) = object::name_at(real) else { return };
    if !report.is_complete() || !begin(object) {
        say(
            Level::Error,
            format_args!("UCX ({}): not watched: {}", object.to_string_lossy(), process::in_words(&report)),
        );
        return;
    }
    // SAFETY: UCX's own function.
    let set = unsafe { core::mem::transmute::<usize, Seven>(real) };
    let events = VM_UNMAPPED | NO_INSTALL;
    let refused = set(events, PRIORITY, heard as *const () as usize, 0, 0, 0, 0) as i8 != 0;
    if refused || every_round(fly).is_err() {
        // Nobody can look: then it is told, whether it hears by itself or not.
        ALWAYS.store(true, Release);
    }
    if !ALWAYS.load(Acquire) {
        say(
            Level::Info,
            format_args!(
                "UCX ({}): its own hooks are watched, and replaced where they no longer hear; {}",
                object.to_string_lossy(),
                process::in_words(&report)
            ),
        );
    }
}

/// Makes the way to UCX; tells nothing yet. False where there is none.
fn begin(object: &CStr) -> bool {
    let Some(tell) = loader::in_object(object, c"ucm_vm_munmap") else { return false };
    OWNER.store(fork_generation(), Release);
    TELL.store(tell, Release);
    // SAFETY: `changes` keeps to the rules of a hook but for UCX's own function, which
    // is made to be called in hooks; this library is never unloaded.
    unsafe { listener::listen(changes) }
}

/// The canary, by the helper thread every 50 ms.
fn fly(_complete: bool) {
    if OWNER.load(Acquire) != fork_generation() || ALWAYS.load(Acquire) {
        return;
    }
    let before = repairs();
    let was_deaf = DEAF.load(Acquire);
    let hears = hears();
    if !hears && !was_deaf {
        // In force before UCX forgets what it may have missed.
        DEAF.store(true, Release);
        say(
            Level::Error,
            format_args!(
                "UCX no longer hears of changes: another library has patched over its hooks; told by pinyard"
            ),
        );
    }
    if (!hears && !was_deaf) || before != SETTLED.load(Acquire) {
        tell_everything();
    }
    if hears && was_deaf {
        DEAF.store(false, Release);
    }
    // Release: whoever sees this sees DEAF.
    SETTLED.store(before, Release);
}

/// Somebody has patched: what happened meanwhile may not have been told.
fn tell_everything() {
    let tell = TELL.load(Acquire);
    if tell != 0 {
        let low = core::ptr::without_provenance_mut(PAGE_SIZE);
        // SAFETY: as in `changes`; this thread is in no hook and holds no lock.
        let tell = unsafe { core::mem::transmute::<usize, Tell>(tell) };
        tell(low, TOP - PAGE_SIZE);
    }
}

/// Whether UCX's hooks hear of madvise and munmap: libc's own, as programs call them.
#[allow(clippy::disallowed_methods)] // through the hooks is what is tested
fn hears() -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping that nobody else knows.
    let Ok(page) = (unsafe { sys::mmap(0, PAGE_SIZE, libc::PROT_READ | libc::PROT_WRITE, flags) }) else {
        return true; // nothing can be said
    };
    HEARD.store(0, Release);
    CANARY.store(page, Release);
    let at = page as *mut c_void;
    // SAFETY: a page of our own.
    let emptied = unsafe { libc::madvise(at, PAGE_SIZE, libc::MADV_DONTNEED) } == 0;
    let of_madvise = HEARD.swap(0, AcqRel) > 0;
    // SAFETY: as above; nobody refers to it any more.
    let unmapped = unsafe { libc::munmap(at, PAGE_SIZE) } == 0;
    let of_munmap = HEARD.load(Acquire) > 0;
    CANARY.store(0, Release);
    (of_madvise || !emptied) && (of_munmap || !unmapped)
}
