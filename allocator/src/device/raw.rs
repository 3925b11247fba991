//! Blocks by address, for callers that cannot hold a [`DeviceBuf`]: a C program, a
//! framework's plug-in.

use super::buf::DeviceBuf;
use super::error::DeviceError;
use super::misuse::{Misuse, Offence};
use super::pool::{DevicePool, PoolStream};
use parking_lot::Mutex;
use pinyard_driver::DevicePtr;
use std::collections::BTreeMap;

const SHARDS: usize = 16;

/// A pool whose blocks are known by their addresses.
///
/// Every address is looked up, so a wrong one is refused and harms nothing. In a pool
/// that is watched (traced or poisoned) the refusal says who allocated and who freed the
/// block. Any thread may call; a call takes one of sixteen short locks besides what the
/// pool does. In a forked child frees do nothing, as a drop does there.
pub struct RawPool {
    pool: DevicePool,
    shards: [Mutex<BTreeMap<u64, DeviceBuf>>; SHARDS],
}

impl RawPool {
    /// Blocks of `pool`. They are freed with the value.
    pub fn new(pool: DevicePool) -> RawPool {
        RawPool { pool, shards: [const { Mutex::new(BTreeMap::new()) }; SHARDS] }
    }

    /// The pool.
    pub fn pool(&self) -> &DevicePool {
        &self.pool
    }

    fn shard(&self, at: u64) -> &Mutex<BTreeMap<u64, DeviceBuf>> {
        // Neighbours of 256 bytes and of 64 KiB alike.
        &self.shards[((at >> 8 ^ at >> 16) as usize) % SHARDS]
    }

    /// See [`DevicePool::alloc`].
    pub fn alloc(&self, bytes: usize, stream: &PoolStream) -> Result<DevicePtr, DeviceError> {
        let block = self.pool.alloc(bytes, stream)?;
        let at = block.ptr();
        self.shard(at.0).lock().insert(at.0, block);
        Ok(at)
    }

    /// Whether a block begins there.
    pub fn holds(&self, at: DevicePtr) -> bool {
        !self.pool.core().is_forked() && self.shard(at.0).lock().contains_key(&at.0)
    }

    /// Frees the block that begins there. Refused, nothing has changed.
    #[allow(clippy::result_large_err)] // a refusal is a fault of the program
    pub fn free(&self, at: DevicePtr) -> Result<(), Misuse> {
        if self.pool.core().is_forked() {
            return Ok(());
        }
        let block = self.shard(at.0).lock().remove(&at.0);
        // Dropped without the shard's lock.
        block.map(drop).ok_or_else(|| self.refusal(at))
    }

    /// The same of a block that was allocated with so many bytes: of another length it
    /// is refused, and stays in use.
    #[allow(clippy::result_large_err)]
    pub fn free_sized(&self, at: DevicePtr, bytes: usize) -> Result<(), Misuse> {
        if self.pool.core().is_forked() {
            return Ok(());
        }
        let mut shard = self.shard(at.0).lock();
        let allocated = shard.get(&at.0).map(DeviceBuf::len);
        let block = if allocated == Some(bytes) { shard.remove(&at.0) } else { None };
        drop(shard);
        match (allocated, block) {
            (Some(_), Some(block)) => {
                drop(block);
                Ok(())
            }
            (Some(allocated), None) => {
                let offence = Offence::WrongSize { allocated: allocated as u64, given: bytes as u64 };
                Err(self.pool.watch().misuse_of_block(offence, at.0))
            }
            (None, _) => Err(self.refusal(at)),
        }
    }

    /// See [`DeviceBuf::record_use`].
    #[allow(clippy::result_large_err)]
    pub fn record_use(&self, at: DevicePtr, stream: &PoolStream) -> Result<(), Misuse> {
        if self.pool.core().is_forked() {
            return Ok(());
        }
        if let Some(block) = self.shard(at.0).lock().get_mut(&at.0) {
            block.record_use(stream);
            return Ok(());
        }
        Err(self.refusal(at))
    }

    /// The block that `at` lies in, at its beginning or further on: where it begins, its
    /// bytes as asked for, and where its slab begins, and the slab's bytes. Looks through
    /// all of them: not for hot paths.
    pub fn find(&self, at: DevicePtr) -> Option<(DevicePtr, usize, DevicePtr, usize)> {
        if self.pool.core().is_forked() {
            return None;
        }
        self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            let (&start, block) = shard.range(..=at.0).next_back()?;
            (at.0 - start < block.len() as u64)
                .then(|| (DevicePtr(start), block.len(), block.slab_base(), block.slab_bytes()))
        })
    }

    /// Why there is no such block.
    #[cold]
    fn refusal(&self, at: DevicePtr) -> Misuse {
        let inside = self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            let (&start, block) = shard.range(..at.0).next_back()?;
            (at.0 < start + block.block_bytes() as u64).then_some(start)
        });
        self.pool.watch().refused(at.0, inside)
    }
}

impl std::fmt::Debug for RawPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawPool").field("pool", &self.pool).finish_non_exhaustive()
    }
}
