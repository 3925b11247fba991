//! Where allocations that a stream's cache did not serve found their memory.

use super::stats::Hits;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy)]
pub(super) enum Level {
    Pool,
    Settled,
    Others,
    Growth,
    Squeeze,
}

const LEVELS: usize = Level::Squeeze as usize + 1;

/// Of one stream. Off the fast path, so atomics cost nothing that shows.
#[derive(Default)]
pub(super) struct Levels {
    hits: [AtomicU64; LEVELS],
    failures: AtomicU64,
}

impl Levels {
    pub(super) fn hit(&self, level: Level) {
        self.hits[level as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// With what the cache served: all other allocations.
    pub(super) fn hits(&self, allocations: u64) -> Hits {
        let [pool, settled, others, growth, squeeze] = [0, 1, 2, 3, 4].map(|at| self.hits[at].load(Relaxed));
        let beyond = pool + settled + others + growth + squeeze;
        Hits {
            // A hit that is counted before its allocation makes it short by one.
            cache: allocations.saturating_sub(beyond),
            pool,
            settled,
            others,
            growth,
            squeeze,
            failures: self.failures.load(Relaxed),
        }
    }
}
