//! Changes that name a file: truncating it, or punching a hole into it, takes
//! pages away from every mapping of it.
//!
//! The call knows a descriptor or a path, and finding the mappings would take
//! system calls. So registration says whether it has ever pinned pages of a file
//! or of shared memory, and until then a program that truncates its output files
//! pays one load. From then on each such call takes out every region that has such pages, and no
//! other (`Map::files`).

use crate::effect::{self, Ranges};
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

/// Whether pages of a file or of shared memory may be registered.
#[inline]
pub(crate) fn are_registered() -> bool {
    // Acquire: pairs with `declare_shared`.
    SHARED.load(Acquire)
}

/// What a call that names no file publishes, which changes nothing: the page that its
/// offset would be as an address. By that a self-test knows its own call among others'.
#[inline]
pub(crate) fn no_file(offset: i64) -> Ranges {
    effect::munmap(offset as usize, crate::PAGE_SIZE)
}
