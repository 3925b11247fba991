//! The io_urings that are the backend's own: they change no mapping.
//!
//! Atomics alone, so that a forked child cannot find a lock taken; what it inherits is
//! still the backend's.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::*};

/// Own rings that can be told from others at a time; one more counts as another's, which
/// costs time and nothing else.
const MOST: usize = 256;
const NONE: i32 = -1;

static OWN: [AtomicI32; MOST] = [const { AtomicI32::new(NONE) }; MOST];
/// Rings that are being made or closed.
static CHANGING: AtomicU32 = AtomicU32::new(0);

/// Lives while a ring of the backend's is made or closed.
pub(crate) struct Changing(());

impl Changing {
    pub(crate) fn begin() -> Changing {
        CHANGING.fetch_add(1, SeqCst);
        Changing(())
    }

    /// It is made.
    pub(crate) fn add(&self, fd: i32) {
        let _ = OWN.iter().any(|own| own.compare_exchange(NONE, fd, SeqCst, Relaxed).is_ok());
    }

    /// It is about to be closed: its number may be another's next.
    pub(crate) fn remove(&self, fd: i32) {
        let _ = OWN.iter().any(|own| own.compare_exchange(fd, NONE, SeqCst, Relaxed).is_ok());
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.fetch_sub(1, SeqCst);
    }
}

/// Whether the descriptor is a ring of the backend's. Waits a little for those that are
/// being made or closed at this moment.
pub(super) fn is_own(fd: i32) -> bool {
    // A forked child may wait for a thread that it has not: not for ever.
    const PATIENCE: u32 = 1000;
    for _ in 0..PATIENCE {
        let known = OWN.iter().any(|own| own.load(SeqCst) == fd);
        if known || CHANGING.load(SeqCst) == 0 {
            return known;
        }
        std::thread::yield_now();
    }
    false
}
