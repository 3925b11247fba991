//! A reference to a registration.

use crate::backend::MemoryKey;
use crate::owner::Owner;
use crate::range::PageRange;
use crate::regions::{self, Held};
use crate::registry::Registry;
use pinyard_hooks::map::Slot;

macro_rules! accessors {
    () => {
        /// The pages registered.
        #[inline]
        fn range(&self) -> PageRange {
            regions::range_of(self.slot())
        }

        /// What the device needs to use the registration.
        #[inline]
        pub fn key(&self) -> MemoryKey {
            regions::key_of(self.slot())
        }

        /// The local key; for io_uring the index of the fixed buffer.
        #[inline]
        pub fn lkey(&self) -> u64 {
            self.key().lkey
        }

        /// The remote key; 0 where the backend has none.
        #[inline]
        pub fn rkey(&self) -> u64 {
            self.key().rkey
        }

        /// Address of the registration's first byte, page-aligned, at or below
        /// the buffer's.
        #[inline]
        pub fn base(&self) -> usize {
            self.range().start
        }

        /// Bytes registered, a multiple of 4096.
        #[inline]
        #[allow(clippy::len_without_is_empty)] // never empty
        pub fn len(&self) -> usize {
            self.range().len()
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

    #[inline]
    fn slot(&self) -> &Slot {
        self.registry.inner.cache.slot(self.held.0)
    }

    /// The same reference, which keeps the registry alive instead of borrowing
    /// it. Costs an atomic increment that all such leases share.
    pub fn into_owned(self) -> OwnedLease {
        let inner = self.registry.inner.clone();
        let lease = std::mem::ManuallyDrop::new(self);
        OwnedLease { inner, held: Held(lease.held.0) }
    }

    /// The same reference as a number, for an interface that cannot borrow. Until
    /// [`from_raw`](Lease::from_raw) takes it up again, the region stays in use.
    #[inline]
    pub fn into_raw(self) -> u32 {
        std::mem::ManuallyDrop::new(self).held.0
    }

    /// Takes up what [`into_raw`](Lease::into_raw) laid down.
    ///
    /// # Safety
    /// `raw` is of a lease of this registry, and was not taken up before.
    #[inline]
    #[allow(unsafe_code)]
    pub unsafe fn from_raw(registry: &Registry, raw: u32) -> Lease<'_> {
        Lease { registry, held: Held(raw) }
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
        f.debug_struct("Lease").field("range", &self.range()).field("key", &self.key()).finish()
    }
}

/// As [`Lease`], without a borrow: for buffers that outlive the scope.
#[must_use = "the registration may go as soon as the lease is dropped"]
pub struct OwnedLease {
    inner: Owner,
    held: Held,
}

impl OwnedLease {
    accessors!();

    #[inline]
    fn slot(&self) -> &Slot {
        self.inner.cache.slot(self.held.0)
    }
}

impl Drop for OwnedLease {
    fn drop(&mut self) {
        self.inner.release(&self.held);
    }
}

impl std::fmt::Debug for OwnedLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnedLease").field("range", &self.range()).field("key", &self.key()).finish()
    }
}
