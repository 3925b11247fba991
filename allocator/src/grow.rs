//! What an allocation does that no magazine serves: bins and ranges, fences, what
//! other classes keep, a new slab; and before it fails, `squeeze.rs`.

use crate::block::BlockRef;
use crate::carve::Want;
use crate::counters::Counts;
use crate::deferred::Asker;
use crate::error::AllocError;
use crate::pool::{Handle, MOST};
use crate::shared::{Cold, Core};
use crate::slab::Slab;
use crate::source::DriverToken;
use crate::trace;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Fences asked on the way of an allocation, so that many that do not pass cost
/// each a little.
pub(crate) const FENCES: usize = 8;

/// Who adds a slab, as it was when what is left was to be looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// This thread.
    Ours,
    /// Another does already.
    Others,
    /// Nobody looks: without watermarks, for a warm-up, or beyond the limit.
    Any,
}

impl Handle {
    /// A block for `want`.
    #[cold]
    pub(crate) fn alloc_slow(&self, want: Want) -> Result<BlockRef, AllocError> {
        self.alloc_or(want, |error, token| self.squeeze(want, error, self.patience, token))
    }

    /// The same without waiting for a fence, and without a word to observers of shortages.
    pub(crate) fn alloc_now(&self, want: Want) -> Result<BlockRef, AllocError> {
        self.alloc_or(want, |error, token| self.squeeze_once(want, error, Duration::ZERO, token))
    }

    /// The same with a word to them.
    pub(crate) fn alloc_without_patience(&self, want: Want) -> Result<BlockRef, AllocError> {
        self.alloc_or(want, |error, token| self.squeeze(want, error, Duration::ZERO, token))
    }

    fn alloc_or(
        &self,
        want: Want,
        short: impl FnOnce(AllocError, &mut DriverToken) -> Result<BlockRef, AllocError>,
    ) -> Result<BlockRef, AllocError> {
        self.check_fork()?;
        let mut token = DriverToken::at_entry();
        let found = match self.search(want, &mut token)? {
            Some(block) => Ok(block),
            None => self.grow_for(want, &mut token),
        };
        let block = found.or_else(|error| short(error, &mut token))?;
        self.core.counters.add(Counts::allocation(want.block_bytes()));
        self.core.slow.fetch_add(1, Relaxed);
        Ok(block)
    }

    pub(crate) fn check_fork(&self) -> Result<(), AllocError> {
        if self.core.is_forked() { Err(AllocError::Forked) } else { Ok(()) }
    }

    /// In what the pool has. What has come back is taken back first, or the block would cut
    /// up a longer range instead.
    fn search(&self, want: Want, token: &mut DriverToken) -> Result<Option<BlockRef>, AllocError> {
        let core = &self.core;
        // Others may go on deferring.
        let mut deferred = core.deferred.count();
        loop {
            let passed = core.poll_fences(FENCES);
            deferred = deferred.saturating_sub(passed);
            let mut cold = core.lock(token);
            if let Some(block) = core.take(&mut cold, want)? {
                return Ok(Some(block));
            }
            if core.cached_bytes(&cold) >= (self.slab_bytes / 4).max(want.bytes()) {
                core.gather_all(&mut cold, false);
                if let Some(block) = core.take(&mut cold, want)? {
                    return Ok(Some(block));
                }
            }
            // Where as many have passed as were asked, more may have: that is cheaper than a slab.
            if passed < FENCES || deferred == 0 {
                return Ok(None);
            }
        }
    }

    pub(crate) fn grow_for(&self, want: Want, token: &mut DriverToken) -> Result<BlockRef, AllocError> {
        let bytes = want.bytes();
        loop {
            let turn = self.turn(bytes, token);
            let mut length = self.slab_bytes;
            if turn == Turn::Ours && self.is_low_for(bytes, token) {
                // What threads keep is about to be given back: it may suffice.
                if let Some(block) = self.take_kept(want, token)? {
                    return Ok(block);
                }
                if self.is_short_for(bytes, token) {
                    length = 0;
                    // So may what observers have freed.
                    if let Some(block) = self.take_kept(want, token)? {
                        return Ok(block);
                    }
                }
            }
            // `None` where another thread added a slab, and others took it all.
            if let Some(block) = self.grow(bytes, length, turn, token, |cold| self.core.take(cold, want))? {
                return Ok(block);
            }
        }
    }

    /// Who would add a slab of `least` bytes now: what cannot be had costs nobody what is free.
    fn turn(&self, least: usize, token: &mut DriverToken) -> Turn {
        if self.watermarks.is_none() {
            return Turn::Any;
        }
        let exact = least.checked_next_multiple_of(self.supplier.source.granularity());
        let cold = self.core.lock(token);
        if cold.growing.is_for_others() {
            return Turn::Others;
        }
        let room = self.limit().saturating_sub(cold.reserved);
        if exact.is_some_and(|exact| exact <= room) { Turn::Ours } else { Turn::Any }
    }

    /// In all that is free, whichever thread keeps it.
    fn take_kept(&self, want: Want, token: &mut DriverToken) -> Result<Option<BlockRef>, AllocError> {
        let mut cold = self.core.lock(token);
        self.core.gather_all(&mut cold, true);
        self.core.take(&mut cold, want)
    }

    /// Reserves until `bytes` are free in ranges.
    pub(crate) fn warm_up(&self, bytes: usize) -> Result<(), AllocError> {
        self.check_fork()?;
        let mut token = DriverToken::at_entry();
        loop {
            let cold = self.core.lock(&mut token);
            let missing = bytes.saturating_sub(cold.ranges.free_bytes());
            if missing == 0 {
                return Ok(());
            }
            // Before the first slab of many: a warm-up that cannot succeed reserves nothing.
            let limit = self.limit();
            if missing > limit.saturating_sub(cold.reserved) {
                return Err(self.limit_reached(&cold, limit, missing));
            }
            drop(cold);
            if missing > MOST {
                return Err(AllocError::Overflow { elements: missing, element_bytes: 1 });
            }
            // However little is left: what is free already would be given back for it.
            self.grow(missing.min(self.slab_bytes), self.slab_bytes, Turn::Any, &mut token, |_| {
                Ok(Some(()))
            })?;
        }
    }

    /// Adds a slab of at least `least` bytes, `length` if that is to be had, and runs `then` under
    /// the lock before others see it. Waits instead if another thread is adding one.
    fn grow<R>(
        &self,
        least: usize,
        length: usize,
        turn: Turn,
        token: &mut DriverToken,
        then: impl FnOnce(&mut Cold) -> Result<Option<R>, AllocError>,
    ) -> Result<Option<R>, AllocError> {
        let core = &self.core;
        let granularity = self.supplier.source.granularity();
        let mut cold = core.lock(token);
        if cold.growing.is_for_others() {
            core.grown.wait(&mut cold);
            return then(&mut cold);
        }
        if turn == Turn::Others {
            // It has ended meanwhile; for a slab of ours nobody has looked what is left.
            return then(&mut cold);
        }
        let limit = self.limit();
        let room = limit.saturating_sub(cold.reserved);
        let Some(exact) = least.checked_next_multiple_of(granularity).filter(|&exact| exact <= room) else {
            return Err(self.limit_reached(&cold, limit, least));
        };
        let preferred = length.max(exact).min(room - room % granularity);
        cold.growing.begin();
        cold.reserved += preferred;
        drop(cold);
        if self.fence_thread {
            self.core.start_worker();
        }
        let mut growth = Growth { core, reserved: preferred };

        let mut born = Slab::birth(&self.supplier, preferred, token);
        if born.is_err() && exact < preferred {
            growth.set_reserved(exact, token);
            born = Slab::birth(&self.supplier, exact, token);
        }
        let slab = born?;
        let bounds = slab.bounds();
        if let Some(traced) = core.traced {
            traced.slab(trace::Kind::Grow, bounds.start, bounds.bytes);
        }
        core.registrations.fetch_add(1, Relaxed);
        let mut cold = core.lock(token);
        cold.reserved += bounds.bytes - growth.reserved;
        growth.reserved = 0;
        cold.peak_reserved = cold.peak_reserved.max(cold.reserved);
        cold.slabs.insert(bounds.start, slab);
        cold.ranges.give(bounds.start, bounds.bytes, bounds);
        let result = then(&mut cold);
        drop(cold);
        drop(growth);
        result
    }

    #[cold]
    pub(crate) fn limit_reached(&self, cold: &Cold, limit: usize, wanted: usize) -> AllocError {
        let counts = self.core.counts(cold);
        AllocError::Limit {
            limit,
            wanted,
            reserved: cold.reserved,
            live: counts.live_bytes,
            live_blocks: counts.live_blocks(),
            deferred: self.core.deferred.count() as u64,
        }
    }
}

/// A slab that is being added. Its end, whatever it is, lets others try.
struct Growth<'a> {
    core: &'a Core,
    /// Bytes counted as reserved that no slab has.
    reserved: usize,
}

impl Growth<'_> {
    fn set_reserved(&mut self, bytes: usize, token: &mut DriverToken) {
        self.core.lock(token).reserved -= self.reserved - bytes;
        self.reserved = bytes;
    }
}

impl Drop for Growth<'_> {
    fn drop(&mut self) {
        let mut token = DriverToken::at_entry();
        let mut cold = self.core.lock(&mut token);
        cold.reserved -= self.reserved;
        cold.growing.end();
        drop(cold);
        self.core.grown.notify_all();
    }
}

impl Core {
    /// Asks up to `most` fences; how many have passed. Their blocks are free.
    pub(crate) fn poll_fences(&self, most: usize) -> usize {
        if self.is_forked() {
            return 0;
        }
        if self.is_worker() {
            // It keeps no blocks, and asks what any thread may ask.
            return self.deferred.poll(Asker::Pool, most, |block| self.free_for_all(block));
        }
        self.deferred.poll(Asker::User, most, Core::free)
    }

    /// Gives back all that is free; how many bytes.
    pub(crate) fn trim(&self) -> usize {
        if self.is_forked() {
            return 0;
        }
        self.give_back(usize::MAX, &mut DriverToken::at_entry())
    }

    /// Gives back slabs that are free: the shortest that has `bytes`, or the longest until they
    /// do; how many bytes.
    pub(crate) fn give_back(&self, bytes: usize, token: &mut DriverToken) -> usize {
        self.poll_fences(usize::MAX);
        let mut cold = self.lock(token);
        self.gather_all(&mut cold, true);
        let slabs = cold.detach_free_slabs(bytes);
        drop(cold);
        self.release(slabs, token)
    }
}
