//! The thread of a host pool: it asks the fences of deferred blocks while nobody uses
//! the pool, serves requests for memory to come, and when the last handle is gone it waits
//! for the last block.
//!
//! It begins with the pool's first slab, or the first request that waits. It sleeps without a timeout while no block
//! waits for a fence that it may ask, and no request for memory; either wakes it. While there
//! are any, it looks after pauses that double from 50 us to 5 ms, and begin anew when one has passed.
//! Of a closed pool it asks all fences, since nobody else is left.

use crate::deferred::Asker;
use crate::requests::thread_panicked;
use crate::shared::Core;
use crate::source::DriverToken;
use pinyard_hooks::{THREAD_STACK, stack_size};
use pinyard_worker::{ThreadId, log, spawn};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

/// Between two looks at fences.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(5);
/// Between two looks at leases that others hold of a closed pool's slabs.
const LEASED: Duration = Duration::from_millis(100);

impl Core {
    /// Starts it unless it was; a refusal is told, and tried again by the next call.
    pub(crate) fn start_worker(self: &Arc<Self>) -> bool {
        // Asks the loader: before the lock.
        let stack = stack_size(THREAD_STACK);
        // Of two threads that start it, neither goes on before it is there or refused.
        let mut has_worker = self.has_worker.lock();
        if *has_worker {
            return true;
        }
        let spawned =
            spawn("pinyard-fences", stack, self.clone(), |core: &Arc<Core>| core.work(), thread_panicked);
        match spawned {
            Ok(thread) => {
                *has_worker = true;
                let _ = self.worker_id.set(ThreadId::of(&thread));
                let _ = self.worker.set(thread.thread().clone());
                // What came before it was known.
                self.sleep.wake(self.worker.get());
                true
            }
            Err(error) => {
                log!(warn, %error, "no thread for a pool: blocks that wait for fences come back by use only");
                false
            }
        }
    }

    /// Whether this is that thread.
    pub(crate) fn is_worker(&self) -> bool {
        self.worker_id.get() == Some(&ThreadId::current())
    }

    fn work(&self) {
        let mut pause = SHORTEST;
        let mut token = DriverToken::at_entry();
        loop {
            if self.left_to_worker.load(SeqCst) {
                return self.wait_for_blocks(&mut token);
            }
            if self.ask_fences(Asker::Pool) > 0 {
                pause = SHORTEST;
            }
            let waits = self.serve();
            if waits || self.deferred.count_for(Asker::Pool) > 0 {
                thread::park_timeout(pause);
                pause = (pause * 2).min(LONGEST);
                continue;
            }
            pause = SHORTEST;
            self.sleep.announced(|| {
                let idle = self.deferred.count_for(Asker::Pool) == 0 && self.requests.is_empty();
                if idle && !self.left_to_worker.load(SeqCst) {
                    thread::park();
                }
            });
        }
    }

    /// Of a closed pool. Every block that goes to a bin wakes us.
    fn wait_for_blocks(&self, token: &mut DriverToken) {
        let mut pause = SHORTEST;
        loop {
            if self.ask_fences(Asker::User) > 0 {
                pause = SHORTEST;
            }
            let ended = self.sleep.announced(|| {
                let ended = self.release_free(token);
                // Unlocked before it parks: a scrutinee's guard lives as long as the match.
                let leased = self.lock(token).leased.len();
                match (self.deferred.count(), leased) {
                    _ if ended => {}
                    (0, 0) => thread::park(),
                    // A lease's end tells nobody.
                    (0, _) => thread::park_timeout(LEASED),
                    _ => thread::park_timeout(pause),
                }
                ended
            });
            if ended {
                return;
            }
            pause = (pause * 2).min(LONGEST);
        }
    }

    fn ask_fences(&self, asker: Asker) -> usize {
        self.deferred.poll(asker, usize::MAX, |block| self.free_for_all(block))
    }
}
