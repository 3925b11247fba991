//! A slab: the unit of registration. Registered once, at birth.
#![allow(unsafe_code)]

use crate::error::AllocError;
use crate::ranges::Bounds;
use crate::source::{DriverToken, Segment, Source, by_program};
use pinyard_registry::{Access, GetError, MemoryKey, OwnedLease, Registry};
use pinyard_worker::{log, span};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

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
    key: MemoryKey,
    /// Until it is released.
    lease: Option<OwnedLease>,
    ending: Ending,
    supplier: Arc<Supplier>,
}

impl Slab {
    /// Maps and registers `bytes`. On an error nothing stays mapped.
    pub(crate) fn birth(
        supplier: &Arc<Supplier>,
        bytes: usize,
        token: &DriverToken,
    ) -> Result<Slab, AllocError> {
        let _span = span!(debug_span, "slab", source = supplier.source.name(), bytes);
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
                log!(debug, source = supplier.source.name(), bytes = segment.bytes, "a pool grew by a slab");
                let (key, lease) = (lease.key(), Some(lease.into_owned()));
                Ok(Slab { segment, key, lease, ending: Ending::default(), supplier: supplier.clone() })
            }
            Err(source) => {
                // SAFETY: fresh from `grow`, seen by nobody, and not registered.
                let shrink = || unsafe { supplier.source.shrink(segment, token) };
                warn(by_program("Source::shrink", segment, shrink));
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
        self.key
    }

    /// Deregisters, then unmaps. `Err`: somebody else holds a lease of it, whose device may
    /// still write there; to be tried again.
    ///
    /// # Safety
    /// No block of the slab is in use.
    pub(crate) unsafe fn release(mut self, token: &DriverToken) -> Result<(), Slab> {
        drop(self.lease.take());
        let Slab { segment, ref supplier, .. } = self;
        let (source, bytes) = (supplier.source.name(), segment.bytes);
        // Before the unmapping, which the hooks do not see. The only refusal is that of a
        // forked child, whose registrations are its parent's.
        let is_first = self.ending.0.is_none();
        let ended = self.ending.retire(&supplier.registry, segment).unwrap_or(true);
        if !ended {
            if is_first {
                log!(warn, source, bytes, "a slab stays: somebody holds a lease of it");
            }
            return Err(self);
        }
        log!(debug, source, bytes, "a pool gives a slab back");
        // SAFETY: nobody uses the memory (the caller's contract); the segment is
        // ours and goes back once, since `self` is consumed.
        let shrink = || unsafe { supplier.source.shrink(segment, token) };
        warn(by_program("Source::shrink", segment, shrink));
        Ok(())
    }
}

/// Whether those who had leases of a slab when it was to go have ended them.
#[derive(Default)]
pub(crate) struct Ending(Option<Arc<AtomicBool>>);

impl Ending {
    /// Takes out what is registered of `segment`, whose own lease is gone; whether nobody has
    /// a registration of it any more. While somebody has, a further call is one load.
    pub(crate) fn retire(&mut self, registry: &Registry, segment: Segment) -> Result<bool, GetError> {
        if self.0.as_ref().is_some_and(|told| !told.load(SeqCst)) {
            return Ok(false);
        }
        let range = (std::ptr::without_provenance::<u8>(segment.start), segment.bytes);
        registry.invalidate(range)?;
        // Called at once if that was all.
        let gone = Arc::new(AtomicBool::new(false));
        let told = gone.clone();
        registry.invalidate_then(range, move || told.store(true, SeqCst))?;
        let over = gone.load(SeqCst);
        self.0 = Some(gone).filter(|_| !over);
        Ok(over)
    }
}

/// Memory that its source does not take back stays mapped, and is nobody's.
fn warn(shrunk: Result<(), crate::SourceError>) {
    if let Err(error) = shrunk {
        log!(warn, %error, "a segment could not be given back");
    }
}
