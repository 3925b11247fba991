//! A reference to a registration.

use crate::backend::MemoryKey;
use crate::regions::Held;
use crate::registry::{Inner, Registry};
use std::sync::Arc;

macro_rules! accessors {
    () => {
        /// What the device needs to use the registration.
        #[inline]
        pub fn key(&self) -> MemoryKey {
            self.held.key
        }

        /// The local key; for io_uring the index of the fixed buffer.
        #[inline]
        pub fn lkey(&self) -> u64 {
            self.held.key.lkey
        }

        /// The remote key; 0 where the backend has none.
        #[inline]
        pub fn rkey(&self) -> u64 {
            self.held.key.rkey
        }

        /// Address of the registration's first byte, page-aligned, at or below
        /// the buffer's.
        #[inline]
        pub fn base(&self) -> usize {
            self.held.range.start
        }

        /// Bytes registered, a multiple of 4096.
        #[inline]
        #[allow(clippy::len_without_is_empty)] // never empty
        pub fn len(&self) -> usize {
            self.held.range.len()
        }
    };
}

/// Keeps a registration in force until it is dropped.
///
/// Dropping never calls the backend and takes no lock; the registration stays in
/// the cache. Can be dropped on another thread than it was got on. A lease that
/// is leaked keeps its pages pinned.
#[must_use = "the registration may go as soon as the lease is dropped"]
pub struct Lease<'r> {
    pub(crate) registry: &'r Registry,
    pub(crate) held: Held,
}

impl Lease<'_> {
    accessors!();

    /// The same reference, which keeps the registry alive instead of borrowing
    /// it. Costs an atomic increment that all such leases share.
    pub fn into_owned(self) -> OwnedLease {
        let inner = self.registry.inner.clone();
        let lease = std::mem::ManuallyDrop::new(self);
        let Held { slot, shard, key, range } = lease.held;
        OwnedLease { inner, held: Held { slot, shard, key, range } }
    }
}

impl Drop for Lease<'_> {
    #[inline]
    fn drop(&mut self) {
        self.registry.inner.release(&self.held);
    }
}

impl std::fmt::Debug for Lease<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("range", &self.held.range).field("key", &self.held.key).finish()
    }
}

/// As [`Lease`], without a borrow: for buffers that outlive the scope.
#[must_use = "the registration may go as soon as the lease is dropped"]
pub struct OwnedLease {
    inner: Arc<Inner>,
    held: Held,
}

impl OwnedLease {
    accessors!();
}

impl Drop for OwnedLease {
    fn drop(&mut self) {
        self.inner.release(&self.held);
    }
}

impl std::fmt::Debug for OwnedLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedLease").field("range", &self.held.range).field("key", &self.held.key).finish()
    }
}
