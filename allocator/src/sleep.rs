//! How a worker falls asleep without missing what comes at that moment. Whoever brings
//! something pays a fence and a load, and wakes it only if it sleeps.

use crate::sync::{AtomicBool, Thread, fence};
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};

pub(crate) struct Sleep {
    /// It sleeps until it is woken, or is about to.
    announced: AtomicBool,
}

impl Sleep {
    pub(crate) fn new() -> Sleep {
        Sleep { announced: AtomicBool::new(false) }
    }

    /// Runs `look`, which parks the thread if it finds nothing to do. Only the worker.
    pub(crate) fn announced<R>(&self, look: impl FnOnce() -> R) -> R {
        self.announced.store(true, Relaxed);
        // Pairs with the fence in `wake`: we find what was brought, or it finds this.
        fence(SeqCst);
        let found = look();
        self.announced.store(false, Relaxed);
        found
    }

    /// Something was brought, by any store.
    pub(crate) fn wake(&self, worker: Option<&Thread>) {
        // Pairs with the fence in `announced`.
        fence(SeqCst);
        if self.announced.load(Relaxed)
            && let Some(worker) = worker
        {
            worker.unpark();
        }
    }
}
