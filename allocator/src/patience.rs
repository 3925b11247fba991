//! Waiting for the fences of deferred blocks: in place of a slab that would take longer, and
//! before an allocation fails. Without a lock; the caller asks the fences meanwhile, as they
//! may be ones that only it can ask.

use crate::block::BlockRef;
use crate::carve::Want;
use crate::error::AllocError;
use crate::pool::Handle;
use crate::shared::Core;
use crate::source::DriverToken;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at fences.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);
/// The part of a slab's time that may go by before it is asked for.
const SHARE: u32 = 2;

/// What slabs take. Guesses for whoever decides whether to wait: no order is needed.
#[derive(Default)]
pub(crate) struct Pace {
    /// Of the slab that was added last, registration included; 0 before the first.
    picoseconds_per_byte: AtomicU64,
    /// How many blocks had come back when a wait was last in vain, and one.
    in_vain: AtomicU64,
}

impl Pace {
    /// A slab of `bytes` was added.
    pub(crate) fn grew(&self, bytes: usize, took: Duration) {
        let picoseconds = took.as_nanos().saturating_mul(1000) / bytes.max(1) as u128;
        self.picoseconds_per_byte.store(u64::try_from(picoseconds).unwrap_or(u64::MAX), Relaxed);
    }

    fn expected(&self, bytes: usize) -> Duration {
        let picoseconds = self.picoseconds_per_byte.load(Relaxed).saturating_mul(bytes as u64);
        Duration::from_nanos(picoseconds / 1000)
    }
}

impl Handle {
    /// A block for `want` from what comes back within half the time that a slab would take,
    /// if as much is deferred. Once in vain, not again before another block has come back: a
    /// fence that stays, such as a request that nobody answers, costs this once.
    pub(crate) fn await_blocks(
        &self,
        want: Want,
        token: &mut DriverToken,
    ) -> Result<Option<BlockRef>, AllocError> {
        let core = &self.core;
        let began = Instant::now();
        let most = core.pace.expected(self.slab_bytes.max(want.bytes())) / SHARE;
        while core.deferred.bytes() >= want.bytes() {
            let passed = core.deferred.passed();
            if most < SHORTEST || core.pace.in_vain.load(Relaxed) == passed + 1 {
                return Ok(None);
            }
            if !core.wait_for_fence(passed, began, most) {
                core.pace.in_vain.store(passed + 1, Relaxed);
                return Ok(None);
            }
            if let Some(block) = self.search(want, token)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

impl Core {
    /// Whether a deferred block has come back since there were `passed`, within `most` from
    /// `began`.
    pub(crate) fn wait_for_fence(&self, passed: u64, began: Instant, most: Duration) -> bool {
        let mut pause = SHORTEST;
        while self.deferred.passed() == passed {
            if self.deferred.count() == 0 || began.elapsed() >= most {
                return self.deferred.passed() != passed;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
            self.poll_fences(usize::MAX);
        }
        true
    }
}
