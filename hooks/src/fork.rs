//! After a fork: the child's registries must notice that they are not theirs.
//!
//! The kernel itself empties one page in every child that has memory of its own
//! (`MADV_WIPEONFORK`, madvise(2), Linux 4.14): also where no handler of
//! pthread_atfork(3) runs, after `_Fork` or a system call. The word that every hit
//! reads lies there, and says nothing good when it is 0; the slow path then asks for
//! the [`generation`], which is how a child finds out.
#![allow(unsafe_code)]

use crate::monitor::publish_everything;
use crate::settled;
use crate::{PAGE_SIZE, sys};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// What a child finds empty. A page, and nothing else in it.
#[repr(C, align(4096))]
pub(crate) struct Page {
    /// See `settled.rs`.
    pub(crate) settled: AtomicU64,
    /// The generation plus one.
    generation: AtomicU32,
    /// What is to be done in a new process is being done.
    taken: AtomicBool,
}

const _: () = assert!(size_of::<Page>() == PAGE_SIZE);

/// All zero, so that it lies in memory without a file, which alone can be wiped.
pub(crate) static PAGE: Page =
    Page { settled: AtomicU64::new(0), generation: AtomicU32::new(0), taken: AtomicBool::new(false) };

/// The kernel wipes the page.
static WIPED: AtomicBool = AtomicBool::new(false);
/// Whose turn it was last.
static PROCESS: AtomicI32 = AtomicI32::new(0);
/// The latest generation that this process, or one before it, has taken.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the process that installed the hooks and this one.
#[inline]
pub fn generation() -> u32 {
    // Acquire: pairs with `in_child`: what the parent's threads had under way is
    // forgotten.
    match PAGE.generation.load(Acquire) {
        0 => unknown(),
        generation => generation - 1,
    }
}

#[cold]
fn unknown() -> u32 {
    if !WIPED.load(Acquire) {
        return GENERATION.load(Acquire);
    }
    if !PAGE.taken.swap(true, AcqRel) {
        begin_anew();
    }
    match PAGE.generation.load(Acquire) {
        // Another thread of the child is at it, and has yet to count.
        0 => {
            let next = GENERATION.load(Acquire).wrapping_add(1);
            match PAGE.generation.load(Acquire) {
                0 => next,
                generation => generation - 1,
            }
        }
        generation => generation - 1,
    }
}

/// The handler of pthread_atfork(3): as a rule the child's first act, but another
/// handler may have asked for the generation before.
extern "C" fn in_child() {
    // Where the page was wiped this is 0. Emulators say yes and wipe nothing.
    let known = PAGE.generation.load(Acquire) != 0 && PROCESS.load(Acquire) == process();
    if !known {
        PAGE.taken.store(true, Release);
        begin_anew();
    }
}

/// What a child does once. Atomics only, as in a signal handler.
fn begin_anew() {
    // The thread that reads userfaultfd is the parent's.
    settled::resume();
    crate::text::forget_writers();
    // Whoever was looking at the loaded objects is not here: somebody has to.
    settled::objects_loaded();
    // Every next `get` takes its slow path, which compares the generation.
    publish_everything();
    PROCESS.store(process(), Release);
    let next = GENERATION.load(Acquire).wrapping_add(1);
    // Release: pairs with `generation`. The count of forks follows: see `unknown`.
    PAGE.generation.store(next.wrapping_add(1), Release);
    GENERATION.store(next, Release);
}

fn process() -> i32 {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

/// Notices forks from now on; [`install`](crate::install) does it too. Not for
/// hooks or signal handlers.
pub fn install() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, AcqRel) {
        return;
    }
    // SAFETY: a page of ours, which keeps its contents here. EINVAL (before Linux
    // 4.14, or larger pages) leaves the handler below.
    let wiped = unsafe { sys::madvise((&raw const PAGE).addr(), PAGE_SIZE, libc::MADV_WIPEONFORK) }.is_ok();
    PROCESS.store(process(), Relaxed);
    PAGE.taken.store(true, Relaxed);
    PAGE.generation.store(GENERATION.load(Relaxed).wrapping_add(1), Release);
    WIPED.store(wiped, Release);
    if cfg!(miri) {
        return; // it has no fork
    }
    // SAFETY: the handler is a plain function that lives as long as the process
    // (see `keep_loaded`). On ENOMEM a child would only miss the notice.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}
