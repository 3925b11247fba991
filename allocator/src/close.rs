//! The end of a pool: blocks that are still in use keep their slabs, each slab is
//! released once, and never by the thread that drops a block.
//!
//! When the last handle goes, what is free is released at once. If blocks are left,
//! a thread waits for them, parked: a dropped block wakes it. It ends with the last
//! slab. It also asks the fences of deferred blocks, every millisecond while there
//! are any.

use crate::shared::Core;
use crate::source::DriverToken;
use pinyard_hooks::SignalsBlocked;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};
use std::thread;
use std::time::Duration;

/// Between two looks at fences.
const PERIOD: Duration = Duration::from_millis(1);

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
        // Pairs with the fence in `wake_drain`.
        fence(SeqCst);
        // For good: owners find their magazines revoked and use the bins. Where the
        // kernel refuses, the magazines come back as their threads end.
        if self.revoke(&cold) {
            for cache in std::mem::take(&mut cold.caches) {
                self.counters.add(cache.counters.counts());
            }
        }
        drop(cold);
        if self.release_free(&mut token) {
            return;
        }
        let core = self.clone();
        let _blocked = SignalsBlocked::now();
        let spawned =
            thread::Builder::new().name("pinyard-drain".to_owned()).spawn(move || core.wait_for_blocks());
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread to wait for the blocks of a closed pool: its memory stays");
            std::mem::forget(self.clone());
        }
    }

    fn wait_for_blocks(&self) {
        let _ = self.drain.set(thread::current());
        // Pairs with the fence in `wake_drain`.
        fence(SeqCst);
        let mut token = DriverToken::at_entry();
        while !self.release_free(&mut token) {
            if self.deferred.count() > 0 { thread::park_timeout(PERIOD) } else { thread::park() }
        }
    }

    /// Releases every slab that is free. `true` if none is left.
    fn release_free(&self, token: &mut DriverToken) -> bool {
        self.poll_fences(usize::MAX);
        let mut cold = self.lock(token);
        self.gather_all(&mut cold, false);
        let slabs = cold.detach_free_slabs();
        let done = cold.slabs.is_empty();
        drop(cold);
        self.release(slabs, token);
        done
    }
}
