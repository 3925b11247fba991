//! The registration cache beside UCX's `ucs_rcache` and libfabric's `ofi_mr_cache`, in one
//! process, taking turns of about a millisecond.
//!
//! All caches hold the same regions (16 KiB at a stride of 32 KiB, dummy registration)
//! and answer the same sequences. Where a peer's libraries are not to be found, ours is
//! measured without it.

pub(crate) mod beside;
pub(crate) mod events;
pub(crate) mod hits;
pub(crate) mod inserts;
pub(crate) mod memory;

use crate::peer::libfabric::{self, Monitor};
use crate::peer::{Cache, Libfabric, Memory, Ours, Peer, Ucx, ucx};
use crate::tell;
use pinyard_benches::turns::{REGION, STRIDE, or_fail};

/// More regions than any benchmark has, as libfabric's limit.
pub(crate) const NO_LIMIT: usize = 1 << 30;

/// Which peers take part.
#[derive(Clone, Copy)]
pub(crate) struct Present {
    pub(crate) ucx: bool,
    pub(crate) libfabric: bool,
}

impl Present {
    /// Opens their libraries. Before the first registry, so that UCX's hooks are in place
    /// before ours look at the entries; libfabric, whose hooks would be a third patcher, gets
    /// a monitor of ours.
    pub(crate) fn find() -> Present {
        Present {
            ucx: tell::peer(Ucx::NAME, ucx::load()).is_some(),
            libfabric: tell::peer(Libfabric::NAME, libfabric::load(NO_LIMIT, Monitor::Imported)).is_some(),
        }
    }

    /// The names of all that are measured.
    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        [(Ours::NAME, true), (Ucx::NAME, self.ucx), (Libfabric::NAME, self.libfabric)]
            .into_iter()
            .filter_map(|(name, present)| present.then_some(name))
    }
}

/// All of them, of the same size.
pub(crate) struct Caches {
    pub(crate) ours: Ours,
    pub(crate) ucx: Option<Ucx>,
    pub(crate) libfabric: Option<Libfabric>,
}

impl Caches {
    pub(crate) fn new(regions: usize, present: Present) -> Caches {
        Caches {
            ours: or_fail(Ours::new(regions)),
            ucx: present.ucx.then(|| or_fail(Ucx::new(regions))),
            libfabric: present.libfabric.then(|| or_fail(Libfabric::new(regions))),
        }
    }

    /// Each with its name, ours first.
    fn each(&self) -> impl Iterator<Item = (&'static str, &dyn Cache)> {
        let ucx = self.ucx.as_ref().map(|cache| (Ucx::NAME, cache as &dyn Cache));
        let libfabric = self.libfabric.as_ref().map(|cache| (Libfabric::NAME, cache as &dyn Cache));
        [(Ours::NAME, &self.ours as &dyn Cache)].into_iter().chain(ucx).chain(libfabric)
    }
}

/// Brings `regions` regions into the cache.
fn fill(cache: &(impl Cache + ?Sized), memory: &Memory, regions: usize) {
    (0..regions).for_each(|region| cache.hit(memory.at(region * STRIDE), REGION));
}
