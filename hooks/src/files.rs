//! Changes that name a file: truncating it, or punching a hole into it, takes
//! pages away from every mapping of it.
//!
//! The call knows a descriptor or a path, and finding the mappings would take
//! system calls. So registration says whether it has ever pinned pages of a file
//! or of shared memory, and until then a program that truncates its output files
//! pays one load. From then on each such call publishes everything.

use crate::effect::{EVERYTHING, NO_PAGE, Ranges};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Registrations of shared pages end unnoticed here: one is for ever. The low bits
/// count self-tests that are running.
static SHARED: AtomicU32 = AtomicU32::new(0);
const EVER: u32 = 1 << 31;

/// Declares that pages of a file or of shared memory are about to be registered
/// and found again later. Call before
/// [`begin_registration`](crate::begin_registration).
pub fn declare_shared() {
    if SHARED.load(Relaxed) & EVER == 0 {
        // SeqCst: before `begin_registration`'s increment, which a hook that is
        // past its look here compares after its change.
        SHARED.fetch_or(EVER, SeqCst);
    }
}

/// What a change of some file publishes.
#[inline]
pub(crate) fn change() -> Ranges {
    // Acquire: pairs with `declare_shared`.
    if SHARED.load(Acquire) == 0 { NO_PAGE } else { EVERYTHING }
}

/// Runs `test` as if such pages were registered.
pub(crate) fn as_if_shared<R>(test: impl FnOnce() -> R) -> R {
    SHARED.fetch_add(1, SeqCst);
    let result = test();
    SHARED.fetch_sub(1, SeqCst);
    result
}
