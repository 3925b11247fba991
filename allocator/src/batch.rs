//! Several blocks at a time, of a host pool.

use crate::block::BlockRef;
use crate::buf::PoolBuf;
use crate::carve::Want;
use crate::counters::Counts;
use crate::error::AllocError;
use crate::grow::FENCES;
use crate::pool::{Handle, MOST, Pool};
use crate::shared::{Cold, Core};
use crate::source::DriverToken;
use bytemuck::Pod;
use pinyard_hooks::PAGE_SIZE;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Blocks of a warm-up that are taken under one lock.
const AT_ONCE: usize = 1024;

impl Pool {
    /// A block for each of these numbers of elements, in their order, or none. Taken under one
    /// lock, those beyond an eighth of a slab (or 32 MiB) side by side, where the pool has them;
    /// the others one by one, as [`alloc`](Pool::alloc) does, which is also faster for few small
    /// ones: a thread has those without a lock. Fails as `alloc` does for the first that is not to
    /// be had; any thread, but no signal handler.
    pub fn alloc_batch<T: Pod>(&self, elements: &[usize]) -> Result<Vec<PoolBuf<T>>, AllocError> {
        let wants = elements.iter().map(|&elements| self.want::<T>(elements, align_of::<T>()));
        let wants = wants.collect::<Result<Vec<Want>, AllocError>>()?;
        let taken = self.handle.take_all(&wants)?.into_iter().zip(elements);
        // Buffers from here on: an error, or a panic, gives them back.
        let buffer = |block, elements| PoolBuf::<T>::new(block, elements);
        let taken: Vec<_> =
            taken.map(|(block, &elements)| block.map(|block| buffer(block, elements))).collect();
        taken.iter().flatten().for_each(|buf| self.look_at(buf));
        let one = |((taken, want), &elements): ((Option<PoolBuf<T>>, Want), &usize)| match taken {
            Some(buf) => Ok(buf),
            None => {
                let buf = buffer(self.handle.alloc_one(want)?, elements);
                self.look_at(&buf);
                Ok(buf)
            }
        };
        taken.into_iter().zip(wants).zip(elements).map(one).collect()
    }

    fn look_at<T: Pod>(&self, buf: &PoolBuf<T>) {
        if self.handle.core.watched {
            self.inspect(buf.block(), size_of_val::<[T]>(buf));
        }
    }

    /// Reserves and registers slabs for `count` blocks of each number of bytes, cut to size and
    /// for any thread: as many in use at a time need no further slab, but for what threads keep of
    /// what they have freed. Blocks that together are more than the limit leaves, whatever the slabs,
    /// are refused before anything is reserved; slabs made before a later error stay, free. Fails as
    /// [`alloc`](Pool::alloc) does; any thread, but no signal handler.
    pub fn warmup_sizes(&self, sizes: &[(usize, usize)]) -> Result<(), AllocError> {
        let (mut wanted, mut blocks) = (0usize, Vec::new());
        for &(bytes, count) in sizes {
            let block_bytes = self.want::<u8>(bytes, 1)?.block_bytes();
            let sum = block_bytes.checked_mul(count).and_then(|more| wanted.checked_add(more));
            let overflow = AllocError::Overflow { elements: count, element_bytes: bytes };
            wanted = sum.filter(|&sum| sum <= MOST).ok_or(overflow)?;
        }
        self.handle.check_room(wanted)?;
        for &(bytes, count) in sizes {
            for done in (0..count).step_by(AT_ONCE) {
                blocks.extend(self.alloc_batch::<u8>(&vec![bytes; AT_ONCE.min(count - done)])?);
            }
        }
        let core = &self.handle.core;
        blocks.into_iter().for_each(|block| core.free_for_all(block.into_block()));
        Ok(())
    }
}

impl Handle {
    /// Blocks for those of `wants` that the pool has without a slab more.
    fn take_all(&self, wants: &[Want]) -> Result<Vec<Option<BlockRef>>, AllocError> {
        self.check_fork()?;
        let (core, mut token) = (&self.core, DriverToken::at_entry());
        // As for one: what has come back is taken back first.
        core.poll_fences(FENCES);
        let mut cold = core.lock(&mut token);
        let mut row = core.take_row(&mut cold, wants).into_iter().flatten();
        let taken = wants.iter().map(|&want| {
            let pages = if let Want::Pages { .. } = want { row.next() } else { None };
            // Why there is none says who asks for it alone.
            let block = pages.or_else(|| core.take(&mut cold, want).ok().flatten());
            block.inspect(|_| {
                core.counters.add(Counts::allocation(want.block_bytes()));
                core.slow.fetch_add(1, Relaxed);
            })
        });
        Ok(taken.collect())
    }

    fn alloc_one(&self, want: Want) -> Result<BlockRef, AllocError> {
        let kept = if let Want::Class(class) = want { self.core.alloc_fast(class) } else { None };
        kept.map_or_else(|| self.alloc_slow(want), Ok)
    }

    /// Whether `wanted` bytes of blocks may be in use with those that are and wait for no fence.
    fn check_room(&self, wanted: usize) -> Result<(), AllocError> {
        self.check_fork()?;
        let mut token = DriverToken::at_entry();
        self.core.poll_fences(usize::MAX);
        let cold = self.core.lock(&mut token);
        // Below nothing where a free was counted and its allocation not yet.
        let live = (self.core.counts(&cold).live_bytes as i64).max(0) as usize;
        let stays = live.saturating_sub(self.core.deferred.bytes());
        let limit = self.limit();
        // Slabs beyond a limit that was lowered serve as well.
        match wanted <= limit.max(cold.reserved).saturating_sub(stays) {
            true => Ok(()),
            false => Err(self.limit_reached(&cold, limit, wanted)),
        }
    }
}

impl Core {
    /// Under the lock: blocks for all of `wants` that are whole pages, side by side.
    fn take_row(self: &Arc<Self>, cold: &mut Cold, wants: &[Want]) -> Option<Vec<BlockRef>> {
        let is_row = |want: &Want| matches!(want, Want::Pages { align, .. } if *align <= PAGE_SIZE);
        let row: Vec<Want> = wants.iter().copied().filter(is_row).collect();
        let bytes = row.iter().try_fold(0usize, |sum, want| sum.checked_add(want.bytes()))?;
        if row.len() < 2 {
            return None;
        }
        self.make_places(cold, row.len()).ok()?;
        self.dissolve_oversize(cold);
        let (mut at, slab) = cold.ranges.take(bytes, PAGE_SIZE)?;
        let carve = |want: Want| {
            let block = self.carve_at(cold, want, at, slab);
            at += want.bytes();
            block
        };
        Some(row.into_iter().filter_map(carve).collect())
    }
}
