//! No slab is to be had. In this order: every fence is asked, and what every thread keeps
//! is taken back and searched; slabs that are free are traded for one of the right length,
//! as many as are needed; while blocks wait for fences, the same again when one has
//! passed, until the patience is over; observers are told; then the error says who holds
//! what. No lock is held while a fence, the source, the backend or an observer is called.

use crate::block::BlockRef;
use crate::carve::Want;
use crate::error::AllocError;
use crate::pool::Handle;
use crate::shared::Cold;
use crate::source::DriverToken;
use crate::stats::PoolShortage;
use pinyard_worker::log;
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at fences.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

/// Bytes to give back.
enum Missing {
    /// As the limit has it.
    Limit(usize),
    /// So that the source or the backend may have as many; how many it has, nobody knows.
    Memory(usize),
}

impl Handle {
    pub(crate) fn squeeze(
        &self,
        want: Want,
        error: AllocError,
        patience: Duration,
        token: &mut DriverToken,
    ) -> Result<BlockRef, AllocError> {
        let error = match self.squeeze_once(want, error, patience, token) {
            Ok(block) => return Ok(block),
            Err(error) => error,
        };
        let observers = self.core.observers.lock().clone();
        let error = if observers.is_empty() {
            error
        } else {
            let (wanted, limit) = (want.bytes(), self.limit());
            let shortage = PoolShortage { wanted, limit, stats: self.core.stats() };
            observers.iter().for_each(|observer| observer(&shortage));
            match self.squeeze_once(want, error, patience, token) {
                Ok(block) => return Ok(block),
                Err(error) => error,
            }
        };
        let stats = self.core.stats();
        log!(warn, source = self.supplier.source.name(), %error, ?stats, "no memory in a pool");
        Err(error)
    }

    pub(crate) fn squeeze_once(
        &self,
        want: Want,
        mut error: AllocError,
        patience: Duration,
        token: &mut DriverToken,
    ) -> Result<BlockRef, AllocError> {
        let core = &self.core;
        let began = Instant::now();
        let over = || began.elapsed() >= patience;
        loop {
            let passed = core.deferred.passed();
            core.poll_fences(usize::MAX);
            let mut cold = core.lock(token);
            core.gather_all(&mut cold, true);
            if let Some(block) = core.take(&mut cold, want)? {
                return Ok(block);
            }
            let slabs = match self.missing(&cold, want) {
                None => return Err(error),
                // For nothing: they would be registered anew.
                Some(Missing::Limit(bytes)) if cold.ranges.whole_slab_bytes() < bytes => Vec::new(),
                Some(Missing::Limit(bytes) | Missing::Memory(bytes)) => cold.detach_free_slabs(bytes),
            };
            drop(cold);
            if core.release(slabs, token) > 0 {
                match self.grow_for(want, token) {
                    Ok(block) => return Ok(block),
                    Err(refused) => error = refused,
                }
            } else if over() || !self.wait_for_fence(want, &error, passed, over, token) {
                return Err(error);
            }
        }
    }

    /// Bytes of slabs to give back before one that has what is wanted may be had; `None`
    /// if the limit is against it for ever.
    fn missing(&self, cold: &Cold, want: Want) -> Option<Missing> {
        let exact = want.bytes().checked_next_multiple_of(self.supplier.source.granularity())?;
        let limit = self.limit();
        match cold.reserved.checked_add(exact)?.saturating_sub(limit) {
            _ if exact > limit => None,
            // With room it was the source or the backend that refused.
            0 => Some(Missing::Memory(exact)),
            // More than that where the limit was lowered.
            over => Some(Missing::Limit(over)),
        }
    }

    /// Whether a deferred block has come back since there were `passed`, until it is `over`.
    fn wait_for_fence(
        &self,
        want: Want,
        error: &AllocError,
        passed: u64,
        over: impl Fn() -> bool,
        token: &mut DriverToken,
    ) -> bool {
        let core = &self.core;
        if matches!(error, AllocError::Limit { .. }) {
            // Blocks in use that wait for nothing leave too little, whatever passes.
            let counts = core.counts(&core.lock(token));
            let stays = (counts.live_bytes as usize).saturating_sub(core.deferred.bytes());
            if self.limit().saturating_sub(stays) < want.bytes() {
                return core.deferred.passed() != passed;
            }
        }
        let mut pause = SHORTEST;
        while core.deferred.passed() == passed {
            if core.deferred.count() == 0 || over() {
                return core.deferred.passed() != passed;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
            core.poll_fences(usize::MAX);
        }
        true
    }
}
