//! pinyard's registry as the rounds' cache, with and without its hooks.
#![allow(unsafe_code)]

use crate::cache::{Cache, Counts, Failure};
use crate::wire::Wire;
use pinyard_registry::backend::{IoUring, MemoryKey};
use pinyard_registry::{Access, Events, GetError, Registry};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Regions that can be registered at a time: the rounds need few, those that
/// wait to be deregistered included.
const SLOTS: u32 = 1024;

/// A registry over io_uring, and the ring to move bytes with.
pub struct RegistryCache {
    pub(crate) registry: Registry,
    pub(crate) ring: Arc<IoUring>,
}

impl RegistryCache {
    /// A registry that hears of changed mappings through its hooks, or, with
    /// [`Events::NotifyOnly`] and nobody notifying, never.
    pub fn new(events: Events) -> Result<RegistryCache, Failure> {
        let ring = Arc::new(IoUring::new(SLOTS)?);
        let registry = Registry::builder()
            .backend(ring.clone())
            .events(events)
            .build()
            .map_err(|error| Failure::refusal(error.to_string(), ""))?;
        Ok(RegistryCache { registry, ring })
    }

    /// Moves all of `bytes` to `wire` through the pages that `key` pins.
    ///
    /// # Safety
    /// The registration of `key` is held by the caller until this returns.
    pub(crate) unsafe fn write(&self, key: MemoryKey, bytes: &[u8], wire: &Wire) -> Result<(), Failure> {
        let to: BorrowedFd<'_> = wire.rewind()?;
        // SAFETY: the caller holds the registration, and `bytes` is borrowed, so
        // nobody changes it meanwhile.
        let written = unsafe { self.ring.write_fixed(to, key, bytes.as_ptr(), bytes.len()) };
        crate::wire::all_written(written, bytes.len())
    }
}

fn get_failed(error: GetError) -> Failure {
    Failure::new(error.to_string())
}

impl Cache for RegistryCache {
    type Buffer = Vec<u8>;

    fn allocate(&self, len: usize) -> Result<Vec<u8>, Failure> {
        Ok(vec![0; len])
    }

    fn send(&self, buffer: &Vec<u8>, wire: &Wire) -> Result<(), Failure> {
        let lease = self.registry.get(buffer, Access::LOCAL_READ).map_err(get_failed)?;
        // SAFETY: the lease lives until the write is over.
        unsafe { self.write(lease.key(), buffer, wire) }
    }

    #[inline]
    fn hit(&self, buffer: &Vec<u8>) -> Result<(), Failure> {
        let lease = self.registry.get(buffer, Access::LOCAL_READ).map_err(get_failed)?;
        std::hint::black_box(lease.key());
        Ok(())
    }

    fn counts(&self) -> Counts {
        let stats = self.registry.stats();
        Counts {
            hits: stats.hits,
            misses: stats.misses,
            invalidations: stats.invalidations,
            registrations: stats.registrations,
        }
    }
}
