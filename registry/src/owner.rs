//! Who keeps a registry: its handles and its owned leases.
//!
//! The last of them closes it, in its own thread and before it returns, so that the
//! caller may then take the device away: `ibv_dealloc_pd` refuses while a
//! registration is left. A plain `Arc` would leave that to the reaper whenever
//! it is at work at that moment.

use crate::backend::Unlocked;
use crate::range::PageRange;
use crate::registry::Inner;
use crate::room;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::*};

/// Owners of one registry.
pub(crate) struct Owners(AtomicUsize);

pub(crate) struct Owner(Arc<Inner>);

impl Owners {
    /// None yet.
    pub(crate) fn none() -> Owners {
        Owners(AtomicUsize::new(0))
    }
}

impl Owner {
    pub(crate) fn new(inner: Arc<Inner>) -> Owner {
        inner.owners.0.fetch_add(1, Relaxed);
        Owner(inner)
    }
}

impl Clone for Owner {
    fn clone(&self) -> Owner {
        Owner::new(self.0.clone())
    }
}

impl Deref for Owner {
    type Target = Inner;
    #[inline(always)]
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // AcqRel: what every other owner did comes before closing.
        if self.0.owners.0.fetch_sub(1, AcqRel) == 1 {
            self.0.close();
        }
    }
}

impl Inner {
    /// Deregisters everything. In a forked child nothing is done: the
    /// registrations and the reaper are the parent's.
    fn close(&self) {
        if self.is_forked() {
            return;
        }
        let reaper = self.reaper.lock().take();
        if let Some(reaper) = reaper {
            reaper.stop();
        }
        let mut unlocked = Unlocked::at_entry();
        self.cache.lock(&mut unlocked).flush();
        self.tidy(&mut unlocked);
        self.cache.lock(&mut unlocked).nobody_is_left();
        // Another registry of the same budget may be burying ours.
        room::bury_and_wait(self, &mut unlocked, PageRange::ALL, 0);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // There is still one in a forked child: there is no such thread to wait for.
        if let Some(reaper) = self.reaper.get_mut().take() {
            reaper.forget();
        }
    }
}
