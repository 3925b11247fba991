//! Moments in which a hit could be wrong although nothing has been published: a
//! `get` then takes its slow path, which waits or looks.

use core::sync::atomic::{AtomicU64, Ordering::*};

/// An event has been read and is not published yet.
const READING: u64 = 1;
/// Objects were loaded, or memory mapped, that nobody has looked at.
const OBJECTS: u64 = 2;
/// Above the bits: how often objects were loaded.
const ONE_LOAD: u64 = 1 << 8;

static UNSETTLED: AtomicU64 = AtomicU64::new(OBJECTS);

/// Whether a hit has to take the slow path now. One load of a word that is
/// rarely written.
#[inline]
pub fn unsettled() -> bool {
    // Acquire: pairs with `resume`: what was read has been published.
    UNSETTLED.load(Acquire) & (READING | OBJECTS) != 0
}

/// Before the read that lets the changing call return.
pub(crate) fn suspend() {
    // SeqCst: before the read; whoever it lets go on sees this.
    UNSETTLED.fetch_or(READING, SeqCst);
}

/// What was read is published.
pub(crate) fn resume() {
    UNSETTLED.fetch_and(!READING, Release);
}

/// Objects have been loaded, and none of their code has run; or shared memory has
/// been attached. Called in a hook.
pub(crate) fn objects_loaded() {
    UNSETTLED.fetch_add(ONE_LOAD, SeqCst);
    UNSETTLED.fetch_or(OBJECTS, SeqCst);
}

/// Has `look` look at the loaded objects if some were loaded since the last time,
/// or nobody has looked yet. Hits are suspended until it has.
pub fn look_at_loaded_objects(mut look: impl FnMut()) {
    loop {
        let before = UNSETTLED.load(SeqCst);
        if before & OBJECTS == 0 {
            return;
        }
        look();
        // SeqCst: a load that came meanwhile has changed the count, and the flag
        // stays.
        let done = |now: u64| (now / ONE_LOAD == before / ONE_LOAD).then_some(now & !OBJECTS);
        if UNSETTLED.fetch_update(SeqCst, SeqCst, done).is_ok() {
            return;
        }
    }
}

/// Waits until what has been read is published: less than a microsecond unless
/// the thread that does it is not run. Not for hooks.
#[allow(unsafe_code)]
pub fn wait_until_published() {
    while UNSETTLED.load(Acquire) & READING != 0 {
        // SAFETY: sched_yield has no preconditions.
        unsafe { libc::sched_yield() };
    }
}
