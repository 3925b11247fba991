//! The end of a pool: blocks that are still in use keep their slabs, each slab is
//! released once, and never by the thread that drops a block.
//!
//! When the last handle goes, what is free is released at once. If blocks are left,
//! the pool's thread waits for them, parked: a dropped block wakes it. It ends with the
//! last slab.

use crate::requests::guarded;
use crate::shared::Core;
use crate::source::DriverToken;
use pinyard_worker::log;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

impl Core {
    /// No handle is left.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.is_forked() {
            // The copy of the parent's memory stays, and nothing of it is touched.
            std::mem::forget(self.clone());
            return;
        }
        let mut token = DriverToken::at_entry();
        let mut cold = self.lock(&mut token);
        self.closed.store(true, Relaxed);
        // Pairs with the fence in `wake_of_closed`.
        fence(SeqCst);
        // For good: owners find their magazines revoked and use the bins. Where the
        // kernel refuses, the magazines come back as their threads end.
        if self.revoke(&cold) {
            for cache in std::mem::take(&mut cold.caches) {
                self.counters.add(cache.counters.counts());
            }
        }
        drop(cold);
        self.poll_fences(usize::MAX);
        // Blocks in use rely on what follows.
        let ended = guarded("the end of a pool", || self.release_free(&mut token)).unwrap_or(false);
        if !ended && !self.start_worker() {
            log!(warn, "no thread to wait for the blocks of a closed pool: its memory stays");
            std::mem::forget(self.clone());
        }
        // Only now: what was free is gone when this returns.
        self.left_to_worker.store(true, SeqCst);
        self.sleep.wake(self.worker.get());
    }

    /// Releases every slab that is free. `true` if none is left.
    pub(crate) fn release_free(&self, token: &mut DriverToken) -> bool {
        let mut cold = self.lock(token);
        self.gather_all(&mut cold, false);
        let slabs = cold.detach_free_slabs(usize::MAX);
        let done = cold.slabs.is_empty();
        drop(cold);
        self.release(slabs, token);
        done && self.lock(token).leased.is_empty()
    }
}
