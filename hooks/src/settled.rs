//! Moments in which a hit could be wrong although nothing has been published: a
//! `get` then takes its slow path, which waits or looks.

use crate::fork::{self, PAGE};
use core::sync::atomic::{AtomicBool, Ordering::*};

/// An event has been read and is not published yet.
const READING: u64 = 1;
/// All that was loaded or mapped has been looked at, in this process: a fork's child
/// finds 0 (see `fork.rs`).
const LOOKED: u64 = 2;
/// Above the bits: how often objects were loaded.
const ONE_LOAD: u64 = 1 << 8;

/// Whether a hit has to take the slow path now. One load of a word that is
/// rarely written.
#[inline]
pub fn unsettled() -> bool {
    // Acquire: pairs with `resume`: what was read has been published.
    PAGE.settled.load(Acquire) & (READING | LOOKED) != LOOKED
}

/// Before the read that lets the changing call return.
pub(crate) fn suspend() {
    // SeqCst: before the read; whoever it lets go on sees this.
    PAGE.settled.fetch_or(READING, SeqCst);
}

/// What was read is published.
pub(crate) fn resume() {
    PAGE.settled.fetch_and(!READING, Release);
}

/// An io_uring was made that nothing in `/proc` shows.
static HIDDEN_RING: AtomicBool = AtomicBool::new(false);

/// Before [`objects_loaded`]. Called in a hook.
pub(crate) fn ring_hidden() {
    HIDDEN_RING.store(true, SeqCst);
}

/// Whether this process, or one that it was forked from, has made an io_uring by libc's `syscall` that has
/// neither a descriptor nor a mapping.
pub fn has_hidden_ring() -> bool {
    HIDDEN_RING.load(SeqCst)
}

/// Objects have been loaded, and none of their code has run; or shared memory has
/// been attached, or an io_uring made. Called in a hook.
pub(crate) fn objects_loaded() {
    PAGE.settled.fetch_add(ONE_LOAD, SeqCst);
    PAGE.settled.fetch_and(!LOOKED, SeqCst);
}

/// Has `look` look at the loaded objects if some were loaded since the last time,
/// or nobody has looked yet. Hits are suspended until it has.
pub fn look_at_loaded_objects(mut look: impl FnMut()) {
    // A child first publishes that it is one: the bit set below would hide it.
    fork::generation();
    loop {
        let before = PAGE.settled.load(SeqCst);
        if before & LOOKED != 0 {
            return;
        }
        look();
        // SeqCst: a load that came meanwhile has changed the count, and it looks again.
        let done = |now: u64| (now / ONE_LOAD == before / ONE_LOAD).then_some(now | LOOKED);
        if PAGE.settled.fetch_update(SeqCst, SeqCst, done).is_ok() {
            return;
        }
    }
}

/// Waits until what has been read is published: less than a microsecond unless
/// the thread that does it is not run. Not for hooks.
#[allow(unsafe_code)]
pub fn wait_until_published() {
    while PAGE.settled.load(Acquire) & READING != 0 {
        // SAFETY: sched_yield has no preconditions.
        unsafe { libc::sched_yield() };
    }
}
