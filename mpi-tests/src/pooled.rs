//! pinyard's pool as the rounds' cache: buffers from slabs that are registered
//! once, whose key needs no lookup.
#![allow(unsafe_code)]

use crate::cache::{Cache, Counts, Failure};
use crate::registered::RegistryCache;
use crate::wire::Wire;
use pinyard_allocator::{Pool, PoolBuf};
use pinyard_registry::Events;

/// Bytes of a slab: a few buffers, and small enough for two ranks of a user whose
/// RLIMIT_MEMLOCK is 8 MiB.
const SLAB: usize = 2 << 20;

/// A pool and the registry that its slabs are registered with.
pub struct PoolCache {
    pool: Pool,
    cache: RegistryCache,
}

impl PoolCache {
    /// A pool over io_uring, under pinyard's hooks.
    pub fn new() -> Result<PoolCache, Failure> {
        let cache = RegistryCache::new(Events::Hooks)?;
        let pool = Pool::host(&cache.registry)
            .slab_bytes(SLAB)
            .build()
            .map_err(|error| Failure::refusal(error.to_string(), ""))?;
        Ok(PoolCache { pool, cache })
    }
}

impl Cache for PoolCache {
    type Buffer = PoolBuf<u8>;

    fn allocate(&self, len: usize) -> Result<PoolBuf<u8>, Failure> {
        self.pool.alloc(len).map_err(|error| Failure::new(error.to_string()))
    }

    fn send(&self, buffer: &PoolBuf<u8>, wire: &Wire) -> Result<(), Failure> {
        // SAFETY: the slab of a block in use stays registered.
        unsafe { self.cache.write(buffer.key(), buffer, wire) }
    }

    /// Not a lookup: the key is the slab's.
    #[inline]
    fn hit(&self, buffer: &PoolBuf<u8>) -> Result<(), Failure> {
        std::hint::black_box(std::hint::black_box(buffer).key());
        Ok(())
    }

    fn counts(&self) -> Counts {
        self.cache.counts()
    }
}
