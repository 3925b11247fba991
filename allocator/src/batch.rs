//! Several blocks at a time, of a host pool.

use crate::block::BlockRef;
use crate::buf::PoolBuf;
use crate::carve::Want;
use crate::counters::Counts;
use crate::error::AllocError;
use crate::pool::{Handle, Pool};
use crate::shared::{Cold, Core};
use crate::source::DriverToken;
use bytemuck::Pod;
use pinyard_hooks::PAGE_SIZE;

impl Pool {
    /// A block for each of these numbers of elements, in their order, or none. Taken under one
    /// lock, those beyond an eighth of a slab (or 32 MiB) side by side, where the pool has them;
    /// the others one by one, as [`alloc`](Pool::alloc) does, which is also faster for few small
    /// ones: a thread has those without a lock.
    pub fn alloc_batch<T: Pod>(&self, elements: &[usize]) -> Result<Vec<PoolBuf<T>>, AllocError> {
        let wants = elements.iter().map(|&elements| self.want::<T>(elements, align_of::<T>()));
        let wants = wants.collect::<Result<Vec<Want>, AllocError>>()?;
        let buffer = |block: BlockRef, elements: usize| {
            if self.handle.core.watched {
                self.inspect(block, elements * size_of::<T>());
            }
            PoolBuf::<T>::new(block, elements)
        };
        let taken = self.handle.take_all(&wants)?.into_iter().zip(elements);
        // Buffers from here on: an error gives them back.
        let taken: Vec<_> =
            taken.map(|(block, &elements)| block.map(|block| buffer(block, elements))).collect();
        let one = |((taken, want), elements): ((Option<PoolBuf<T>>, Want), &usize)| match taken {
            Some(buf) => Ok(buf),
            None => self.handle.alloc_slow(want).map(|block| buffer(block, *elements)),
        };
        taken.into_iter().zip(wants).zip(elements).map(one).collect()
    }

    /// Reserves and registers slabs for `count` blocks of each number of bytes, cut to size and
    /// for any thread: as many in use at a time need no further slab, but for what threads keep of
    /// what they have freed. What the limit leaves no room for is refused before anything is
    /// reserved.
    pub fn warmup_sizes(&self, sizes: &[(usize, usize)]) -> Result<(), AllocError> {
        let (mut wanted, mut blocks) = (0usize, Vec::new());
        for &(bytes, count) in sizes {
            let block_bytes = self.want::<u8>(bytes, 1)?.block_bytes();
            let sum = block_bytes.checked_mul(count).and_then(|more| wanted.checked_add(more));
            wanted = sum.ok_or(AllocError::Overflow { elements: count, element_bytes: bytes })?;
        }
        self.handle.check_room(wanted)?;
        for &(bytes, count) in sizes {
            blocks.extend(self.alloc_batch::<u8>(&vec![bytes; count])?);
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
        let mut cold = core.lock(&mut token);
        let mut row = core.take_row(&mut cold, wants).into_iter().flatten();
        let taken = wants.iter().map(|&want| {
            let pages = if let Want::Pages { .. } = want { row.next() } else { None };
            // Why there is none says who asks for it alone.
            let block = pages.or_else(|| core.take(&mut cold, want).ok().flatten());
            block.inspect(|_| core.counters.add(Counts::allocation(want.block_bytes())))
        });
        Ok(taken.collect())
    }

    /// Whether `wanted` bytes of blocks may be in use with those that are.
    fn check_room(&self, wanted: usize) -> Result<(), AllocError> {
        self.check_fork()?;
        let mut token = DriverToken::at_entry();
        let cold = self.core.lock(&mut token);
        let live = self.core.counts(&cold).live_bytes as usize;
        match wanted <= self.limit().saturating_sub(live) {
            true => Ok(()),
            false => Err(self.limit_reached(&cold, wanted)),
        }
    }
}

impl Core {
    /// Under the lock: blocks for all of `wants` that are whole pages, side by side.
    fn take_row(&self, cold: &mut Cold, wants: &[Want]) -> Option<Vec<BlockRef>> {
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
