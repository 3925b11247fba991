//! Blocks by address: what C holds of a pool.
//!
//! ```text
//! alloc   Pool | PoolStream -> Blocks::insert                 (the shard's lock, for the entry alone)
//! free    Blocks::remove -> the block is dropped              (no lock)
//! ```
//!
//! Every address is looked up, so a wrong one is refused and harms nothing: only whoever
//! frees a block twice after somebody else was given the same address is not found out.

use super::pools::{Memory, Pooled};
use super::status::{Failure, failed, pny_status::*};
use pinyard_allocator::device::{DeviceBuf, PoolStream};
use pinyard_allocator::{Fence, PoolBuf};
use pinyard_hooks::Uncancelled;
use pinyard_registry::MemoryKey;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SHARDS: usize = 16;
/// Most that a block may be aligned to: what slabs are.
const LARGEST_ALIGN: usize = 2 << 20;
/// What every block of device memory is aligned to.
const DEVICE_ALIGN: usize = 256;

/// A block in use.
pub(super) struct Block {
    /// Where the caller's bytes begin.
    pub(super) start: usize,
    /// Bytes asked for.
    pub(super) bytes: usize,
    memory: Held,
}

enum Held {
    Host(PoolBuf<u8>),
    Device(DeviceBuf),
}

/// Where a block lies.
pub(super) struct Place {
    pub(super) start: usize,
    pub(super) bytes: usize,
    pub(super) key: MemoryKey,
    pub(super) slab_start: usize,
    pub(super) slab_bytes: usize,
}

impl Block {
    pub(super) fn place(&self) -> Place {
        let (key, slab_start, slab_bytes) = match &self.memory {
            Held::Host(block) => (block.key(), block.slab_base(), block.slab_bytes()),
            Held::Device(block) => (block.key(), block.slab_base().0 as usize, block.slab_bytes()),
        };
        Place { start: self.start, bytes: self.bytes, key, slab_start, slab_bytes }
    }

    pub(super) fn defer_until(self, fence: Fence) {
        match self.memory {
            Held::Host(block) => block.defer_until(fence),
            Held::Device(block) => block.defer_until(fence),
        }
    }

    fn record_use(&mut self, stream: &PoolStream) -> Result<(), Failure> {
        match &mut self.memory {
            Held::Device(block) => {
                block.record_use(stream);
                Ok(())
            }
            Held::Host(_) => Err(Failure::new(
                PNY_ERR_INVALID,
                "the pool's memory is not a device's; pny_pool_free_after waits for a stream",
            )),
        }
    }
}

impl Pooled {
    /// A block that C is to hold, not entered yet. `stream` is some in a device pool.
    pub(super) fn block(
        &self,
        bytes: usize,
        align: usize,
        stream: Option<&PoolStream>,
    ) -> Result<Block, Failure> {
        match (&self.memory, stream) {
            (Memory::Host(pool), _) => {
                let block = match pool.alloc_kept(bytes, align).map_err(failed)? {
                    Some(block) => block,
                    None => {
                        let _uncancelled = Uncancelled::now();
                        pool.alloc_aligned(bytes, align).map_err(failed)?
                    }
                };
                Ok(Block::on_host(block))
            }
            (Memory::Device { .. }, Some(stream)) => {
                let _uncancelled = Uncancelled::now();
                if !align.is_power_of_two() || align > LARGEST_ALIGN {
                    let cause = format!(
                        "alignment {align} is refused: a power of two up to {LARGEST_ALIGN} is possible"
                    );
                    return Err(Failure::new(PNY_ERR_INVALID, cause));
                }
                if bytes == 0 {
                    return Err(failed(pinyard_allocator::device::DeviceError::Empty));
                }
                // What the pool's own alignment lacks is room at the beginning.
                let room = align.saturating_sub(DEVICE_ALIGN);
                let whole = bytes.checked_add(room).ok_or_else(|| {
                    Failure::new(
                        PNY_ERR_INVALID,
                        format!("{bytes} bytes exceed the address space: check the size"),
                    )
                })?;
                Ok(Block::on_device(stream.alloc(whole).map_err(failed)?, bytes, align))
            }
            (Memory::Device { .. }, None) => Err(Failure::null("stream")),
        }
    }

    /// A block of each size, or none.
    pub(super) fn batch(&self, sizes: &[usize], stream: Option<&PoolStream>) -> Result<Vec<Block>, Failure> {
        match (&self.memory, stream) {
            (Memory::Host(pool), _) => {
                Ok(pool.alloc_batch(sizes).map_err(failed)?.into_iter().map(Block::on_host).collect())
            }
            (Memory::Device { .. }, Some(stream)) => {
                let blocks = stream.alloc_batch(sizes).map_err(failed)?.into_iter().zip(sizes);
                Ok(blocks.map(|(block, &bytes)| Block::on_device(block, bytes, 1)).collect())
            }
            (Memory::Device { .. }, None) => Err(Failure::null("stream")),
        }
    }
}

impl Block {
    fn on_host(block: PoolBuf<u8>) -> Block {
        Block { start: block.as_ptr().addr(), bytes: block.len(), memory: Held::Host(block) }
    }

    fn on_device(block: DeviceBuf, bytes: usize, align: usize) -> Block {
        let start = (block.ptr().0 as usize).next_multiple_of(align);
        Block { start, bytes, memory: Held::Device(block) }
    }
}

/// Blocks of one pool.
pub(super) struct Blocks {
    shards: [Mutex<BTreeMap<usize, Block>>; SHARDS],
}

impl Blocks {
    pub(super) fn new() -> Blocks {
        Blocks { shards: [const { Mutex::new(BTreeMap::new()) }; SHARDS] }
    }

    fn shard(&self, at: usize) -> MutexGuard<'_, BTreeMap<usize, Block>> {
        // Neighbours of 256 bytes and of 64 KiB alike.
        self.shards[((at >> 8) ^ (at >> 16)) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a block; its address.
    pub(super) fn insert(&self, block: Block) -> usize {
        let at = block.start;
        self.shard(at).insert(at, block);
        at
    }

    /// Takes out the block that begins there.
    pub(super) fn remove(&self, at: usize) -> Result<Block, Failure> {
        let found = self.shard(at).remove(&at);
        found.ok_or_else(|| self.refusal(at))
    }

    pub(super) fn record_use(&self, at: usize, stream: &PoolStream) -> Result<(), Failure> {
        if let Some(block) = self.shard(at).get_mut(&at) {
            return block.record_use(stream);
        }
        Err(self.refusal(at))
    }

    /// Where the block lies that `at` is in: its beginning or any other byte of it.
    pub(super) fn find(&self, at: usize) -> Option<Place> {
        let exact = self.shard(at).get(&at).map(Block::place);
        exact.or_else(|| {
            self.shards.iter().find_map(|shard| {
                let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
                let (&start, block) = shard.range(..at).next_back()?;
                (at - start < block.bytes).then(|| block.place())
            })
        })
    }

    pub(super) fn count(&self) -> usize {
        let lengths =
            self.shards.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner).len());
        lengths.sum()
    }

    /// Why no block begins there.
    #[cold]
    fn refusal(&self, at: usize) -> Failure {
        match self.find(at) {
            _ if at == 0 => Failure::null("block"),
            Some(Place { start, .. }) => {
                let cause = format!("{at:#x} lies in the block at {start:#x}, not at its beginning");
                Failure::new(PNY_ERR_INVALID, cause)
            }
            None => {
                let cause =
                    format!("{at:#x} is no block of this pool that is in use: freed before, or another's");
                Failure::new(PNY_ERR_STALE, cause)
            }
        }
    }
}
