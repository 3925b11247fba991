//! mlock(2): keeps pages resident, names them to no device.
//!
//! Locks do not nest, and registrations may overlap for a while (a merged region
//! and the one that it replaces), so what is unlocked are only the pages that no
//! other registration holds.

use super::{Backend, BackendError, Limits, MemoryKey, Unlocked};
use crate::access::Access;
use crate::diagnose;
use crate::range::PageRange;
use parking_lot::Mutex;
use pinyard_hooks::sys;

/// Pins with mlock and munlock. RLIMIT_MEMLOCK applies without CAP_IPC_LOCK.
#[derive(Default)]
pub struct Mlock {
    /// Ranges locked now, one entry per registration.
    locked: Mutex<Vec<PageRange>>,
}

impl Mlock {
    /// A backend that has locked nothing.
    pub fn new() -> Mlock {
        Mlock::default()
    }
}

impl Backend for Mlock {
    fn name(&self) -> &'static str {
        "mlock"
    }

    fn locks_memory(&self) -> bool {
        true
    }
    fn limits(&self) -> Limits {
        Limits::NONE
    }

    fn register(&self, range: PageRange, access: Access, _: &Unlocked) -> Result<MemoryKey, BackendError> {
        let failed = |errno| BackendError::new(format!("mlock({range})"), errno);
        if access.writes()
            && let Some(at) = diagnose::first_read_only(range)
        {
            let call = format!("mlock({range}) for writing, mapping at {at:#x}");
            return Err(BackendError::new(call, libc::EACCES));
        }
        // Listed first: a deregistration of an overlapping range that runs now
        // must not unlock what is being locked.
        self.locked.lock().push(range);
        sys::mlock(range.start, range.len()).map_err(|errno| {
            self.unlist_and_unlock(range);
            failed(errno)
        })?;
        Ok(MemoryKey::default())
    }

    fn deregister(&self, _: MemoryKey, range: PageRange, _: &Unlocked) -> Result<(), BackendError> {
        self.unlist_and_unlock(range);
        Ok(())
    }
}

impl Mlock {
    /// Unlocks the parts of `range` that no other registration holds. Pages that
    /// are gone were unlocked by their unmapping: ENOMEM says so and is no error.
    fn unlist_and_unlock(&self, range: PageRange) {
        let mut locked = self.locked.lock();
        if let Some(at) = locked.iter().position(|&other| other == range) {
            locked.swap_remove(at);
        }
        let mut others: Vec<PageRange> =
            locked.iter().copied().filter(|other| other.overlaps(range)).collect();
        others.sort_unstable_by_key(|other| other.start);
        let mut from = range.start;
        for other in others {
            if from < other.start {
                let _ = sys::munlock(from, other.start - from);
            }
            from = from.max(other.end);
        }
        if from < range.end {
            let _ = sys::munlock(from, range.end - from);
        }
    }
}
