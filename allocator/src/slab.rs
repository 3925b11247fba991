//! A slab: the unit of registration. Registered once, at birth.
#![allow(unsafe_code)]

use crate::error::AllocError;
use crate::ranges::Bounds;
use crate::source::{DriverToken, Segment, Source};
use pinyard_registry::{Access, MemoryKey, OwnedLease, Registry};
use std::sync::Arc;

/// What makes a pool's slabs. Held by the pool's handle and by each slab, so
/// that the last block of a closed pool does not need the pool.
pub(crate) struct Supplier {
    pub(crate) registry: Registry,
    pub(crate) source: Box<dyn Source>,
    pub(crate) access: Access,
}

/// A segment and its registration. Ends with [`release`](Slab::release).
pub(crate) struct Slab {
    segment: Segment,
    lease: OwnedLease,
    supplier: Arc<Supplier>,
}

impl Slab {
    /// Maps and registers `bytes`. On an error nothing stays mapped.
    pub(crate) fn birth(
        supplier: &Arc<Supplier>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Slab, AllocError> {
        let _span = tracing::debug_span!("slab", source = supplier.source.name(), bytes).entered();
        let segment = supplier.source.grow(bytes, token).map_err(|source| AllocError::Source {
            bytes,
            name: supplier.source.name(),
            source,
        })?;
        let range = (segment.start as *const u8, segment.bytes);
        // Whatever is still registered at these addresses is other memory.
        let fresh = supplier.registry.invalidate(range);
        match fresh.and_then(|()| supplier.registry.get(range, supplier.access)) {
            Ok(lease) => {
                tracing::debug!(
                    source = supplier.source.name(),
                    bytes = segment.bytes,
                    "a pool grew by a slab"
                );
                Ok(Slab { segment, lease: lease.into_owned(), supplier: supplier.clone() })
            }
            Err(source) => {
                // SAFETY: fresh from `grow`, seen by nobody, and not registered.
                warn(unsafe { supplier.source.shrink(segment, token) });
                Err(AllocError::Registration {
                    bytes: segment.bytes,
                    backend: supplier.registry.backend_name(),
                    source: Box::new(source),
                })
            }
        }
    }

    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { start: self.segment.start, bytes: self.segment.bytes }
    }

    pub(crate) fn key(&self) -> MemoryKey {
        self.lease.key()
    }

    /// Deregisters, then unmaps.
    ///
    /// # Safety
    /// No block of the slab is in use.
    pub(crate) unsafe fn release(self, token: &DriverToken) {
        let Slab { segment, lease, supplier } = self;
        tracing::debug!(source = supplier.source.name(), bytes = segment.bytes, "a pool gives a slab back");
        drop(lease);
        // Before the unmapping, which the hooks do not see. With our lease gone the
        // registration ends here, unless a caller holds one of its own. The only
        // refusal is that of a forked child, whose registrations are its parent's.
        let _ = supplier.registry.invalidate((segment.start as *const u8, segment.bytes));
        // SAFETY: nobody uses the memory (the caller's contract); the segment is
        // ours and goes back once, since `self` is consumed.
        warn(unsafe { supplier.source.shrink(segment, token) });
    }
}

/// Memory that its source does not take back stays mapped, and is nobody's.
fn warn(shrunk: Result<(), crate::SourceError>) {
    if let Err(error) = shrunk {
        tracing::warn!(%error, "a segment could not be given back");
    }
}
