//! Changes that name a file: truncating it, or punching a hole into it, takes
//! pages away from every mapping of it.
//!
//! The call knows a descriptor or a path, and finding the mappings would take
//! system calls. So registration says whether it has ever pinned pages of a file
//! or of shared memory, and until then a program that truncates its output files
//! pays one load. From then on each such call publishes everything.

use crate::effect::{self, EVERYTHING, NO_PAGE, Ranges};
use core::sync::atomic::{AtomicBool, Ordering::*};

/// Registrations of shared pages end unnoticed here: one is for ever.
static SHARED: AtomicBool = AtomicBool::new(false);

/// Declares that pages of a file or of shared memory are about to be registered
/// and found again later. Call before
/// [`begin_registration`](crate::begin_registration).
pub fn declare_shared() {
    if !SHARED.load(Relaxed) {
        // SeqCst: before `begin_registration`'s increment, which a hook that is
        // past its look here compares after its change.
        SHARED.store(true, SeqCst);
    }
}

/// What a change of some file publishes.
#[inline]
pub(crate) fn change() -> Ranges {
    // Acquire: pairs with `declare_shared`.
    if SHARED.load(Acquire) { EVERYTHING } else { NO_PAGE }
}

/// What a call that names no file publishes, which changes nothing: the page that its
/// offset would be as an address. By that a self-test knows its own call among others'.
#[inline]
pub(crate) fn no_file(offset: i64) -> Ranges {
    effect::munmap(offset as usize, crate::PAGE_SIZE)
}
