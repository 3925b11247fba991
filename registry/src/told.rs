//! What is told by tracing. What happens under the lock or in a hook the reaper tells, as
//! sums since its last look. A registration has no span: one that nobody listens to takes
//! 30 instructions of a miss, and the trace of the process has each.

use crate::error::GetError;
use crate::stats::Counters;
use pinyard_hooks::{Why, userfaultfd};
use pinyard_worker::log;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A `get` that its caller is refused.
#[cold]
pub(crate) fn refused(backend: &'static str, error: &GetError) {
    log!(warn, backend, %error, "no registration");
}

/// userfaultfd is needed and cannot serve. Once per process: each miss finds it anew.
#[cold]
pub(crate) fn unwatched(why: &Why) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Relaxed) {
        return;
    }
    let remedy = userfaultfd::remedy(&why.to_string()).unwrap_or(
        "Linux 5.11 or newer with CONFIG_USERFAULTFD, and a seccomp profile that allows userfaultfd and \
         close_range",
    );
    log!(warn, %why, remedy, "code in this process calls the kernel past libc, so nothing is cached");
}

/// What was told of a registry.
#[derive(Debug, Default)]
pub(crate) struct Told {
    counters: Counters,
    lost: bool,
}

impl Told {
    /// Tells what is new. `lost`: the hooks do not hear everything any more.
    pub(crate) fn tell(&mut self, backend: &'static str, now: Counters, lost: bool) {
        let before = std::mem::replace(&mut self.counters, now);
        if lost && !self.lost {
            log!(warn, backend, "another library's hooks hide changes: nothing is cached any more");
        }
        self.lost = lost;
        if now.flushes > before.flushes {
            let flushes = now.flushes - before.flushes;
            log!(warn, backend, flushes, "every registration was taken out");
        }
        if now.overflows > before.overflows {
            let events = now.overflows - before.overflows;
            log!(debug, backend, events, "changes too wide for a hook were applied in slices");
        }
        if now.evictions > before.evictions {
            let regions = now.evictions - before.evictions;
            log!(debug, backend, regions, "regions made way for others");
        }
        if now.invalidations > before.invalidations {
            let regions = now.invalidations - before.invalidations;
            log!(trace, backend, regions, "mappings of regions have changed");
        }
    }
}
