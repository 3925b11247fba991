//! After a fork: the child's registries must notice that they are not theirs.
#![allow(unsafe_code)]

use crate::monitor::publish_everything;
use crate::userfaultfd;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

static GENERATION: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the process that installed the hooks and this one.
pub fn generation() -> u32 {
    GENERATION.load(Acquire)
}

/// Runs in the child, before fork returns: atomics only, as a signal handler.
extern "C" fn in_child() {
    GENERATION.fetch_add(1, Release);
    userfaultfd::forget_parent();
    crate::text::forget_writers();
    // Whoever was looking at the loaded objects is not here: somebody has to.
    crate::settled::objects_loaded();
    // Every next `get` takes its slow path, which compares the generation.
    publish_everything();
}

/// Notices forks from now on; [`install`](crate::install) does it too. Not for
/// hooks or signal handlers.
pub fn install() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, AcqRel) {
        return;
    }
    // SAFETY: the handler is a plain function that lives as long as the process
    // (see `keep_loaded`). On ENOMEM a child would only miss the notice.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}
