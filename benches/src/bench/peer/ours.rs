//! pinyard's registry.

use super::{Cache, Peer, register};
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, Coarsen, MemoryKey, Registry};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// pinyard's registry with a dummy registration, hooks installed.
pub(crate) struct Ours {
    registry: Registry,
    made: Arc<AtomicU64>,
}

impl Ours {
    /// A cache of at most `regions`, whose registrations grow to huge pages.
    pub(crate) fn coarse(regions: usize) -> Result<Ours, String> {
        Ours::over(regions, Coarsen::HugePage)
    }

    fn over(regions: usize, coarsen: Coarsen) -> Result<Ours, String> {
        let made: Arc<AtomicU64> = Arc::default();
        let counter = made.clone();
        let register = move |_, _| {
            register(&counter);
            Ok(MemoryKey::default())
        };
        let backend = Custom::new("dummy", register, |_, _| Ok(()));
        let builder = Registry::builder().backend(backend).budget(usize::MAX).max_regions(regions);
        let registry = builder.coarsen(coarsen).build();
        registry.map(|registry| Ours { registry, made }).map_err(|error| error.to_string())
    }

    pub(crate) fn lookup(&self, at: *mut u8, len: usize) {
        black_box(self.registry.lookup((at, len), Access::LOCAL_WRITE));
    }

    /// Bytes registered now.
    pub(crate) fn pinned(&self) -> u64 {
        self.registry.stats().pinned_bytes
    }
}

impl Peer for Ours {
    const NAME: &'static str = "pinyard";

    fn new(regions: usize) -> Result<Ours, String> {
        Ours::over(regions, Coarsen::Never)
    }
}

impl Cache for Ours {
    #[inline]
    fn hit(&self, at: *mut u8, len: usize) {
        drop(black_box(self.registry.get((at, len), Access::LOCAL_WRITE)));
    }

    #[inline]
    fn event(&self, at: *mut u8, len: usize) {
        pinyard_hooks::notify_unmapped(at, len);
    }

    fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }
}
