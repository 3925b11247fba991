//! The registration cache beside UCX's `ucs_rcache`, in one process, the two taking
//! turns of about a millisecond.
//!
//! Both caches hold the same regions (16 KiB at a stride of 32 KiB, dummy registration)
//! and answer the same sequences. Where UCX's libraries are not to be found, ours is
//! measured alone.

pub(crate) mod beside;
pub(crate) mod events;
pub(crate) mod hits;
pub(crate) mod inserts;
pub(crate) mod memory;

use crate::peer::{Memory, Ours, Peer, Ucx, load_ucx};
use crate::tell;
use pinyard_benches::turns::{REGION, STRIDE, or_fail};

/// Whether UCX takes part. Before the first registry, so that its hooks are in place
/// before ours look at the entries.
pub(crate) fn with_ucx() -> bool {
    tell::peer(Ucx::NAME, load_ucx()).is_some()
}

/// Both, of the same size.
pub(crate) struct Caches {
    pub(crate) ours: Ours,
    pub(crate) ucx: Option<Ucx>,
}

impl Caches {
    pub(crate) fn new(regions: usize, ucx: bool) -> Caches {
        Caches { ours: or_fail(Ours::new(regions)), ucx: ucx.then(|| or_fail(Ucx::new(regions))) }
    }

    fn each_ref(&self, ours: impl FnOnce(&Ours), theirs: impl FnOnce(&Ucx)) {
        ours(&self.ours);
        if let Some(peer) = &self.ucx {
            theirs(peer);
        }
    }
}

/// Brings `regions` regions into the cache.
fn fill(peer: &impl Peer, memory: &Memory, regions: usize) {
    (0..regions).for_each(|region| peer.hit(memory.at(region * STRIDE), REGION));
}
