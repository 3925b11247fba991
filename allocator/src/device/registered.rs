//! Slabs registered through the project's registry: once at birth, gone before their
//! memory goes.

use super::slab::Registrar;
use crate::slab::Ending;
use crate::source::{DriverToken, Segment, SourceError};
use parking_lot::Mutex;
use pinyard_registry::{Access, GetError, MemoryKey, OwnedLease, Registry};
use std::collections::BTreeMap;

/// A lease per slab. A `get` or `lookup` of a block's range finds its slab's
/// registration: a transport that asks the registry registers nothing of the pool's.
pub(super) struct Registered {
    registry: Registry,
    access: Access,
    /// By start, until its deregistration has ended.
    slabs: Mutex<BTreeMap<usize, Held>>,
}

#[derive(Default)]
struct Held {
    /// None once the slab is to go.
    lease: Option<OwnedLease>,
    ending: Ending,
}

impl Registered {
    pub(super) fn new(registry: Registry, access: Access) -> Registered {
        Registered { registry, access, slabs: Mutex::default() }
    }
}

fn range(slab: Segment) -> (*const u8, usize) {
    (std::ptr::without_provenance(slab.start), slab.bytes)
}

fn failed(what: &str, slab: Segment, error: &GetError) -> SourceError {
    SourceError {
        call: format!("{what} of {} bytes at {:#x}", slab.bytes, slab.start),
        reason: error.to_string(),
        hint: String::new(),
    }
}

impl Registrar for Registered {
    fn register(&self, slab: Segment, _: &DriverToken) -> Result<MemoryKey, SourceError> {
        // Whatever is still registered at these addresses is other memory: the hooks do
        // not see a driver's mappings change.
        let fresh = self.registry.invalidate(range(slab));
        let lease = fresh.and_then(|()| self.registry.get(range(slab), self.access));
        let lease = lease.map_err(|error| failed("Registry::get", slab, &error))?.into_owned();
        let key = lease.key();
        self.slabs.lock().insert(slab.start, Held { lease: Some(lease), ending: Ending::default() });
        Ok(key)
    }

    /// A slab that somebody else has a lease of stays: its memory must not become
    /// another's while a device may write to it.
    fn deregister(&self, slab: Segment, _: MemoryKey, _: &DriverToken) -> Result<(), SourceError> {
        // Unlocked before it is dropped, which may call the backend.
        let mut held = self.slabs.lock().remove(&slab.start).unwrap_or_default();
        drop(held.lease.take());
        let ended = held.ending.retire(&self.registry, slab);
        if ended.map_err(|error| failed("Registry::invalidate", slab, &error))? {
            return Ok(());
        }
        self.slabs.lock().insert(slab.start, held);
        Err(SourceError {
            call: format!("deregistration of {} bytes at {:#x}", slab.bytes, slab.start),
            reason: "somebody holds a lease of it".to_owned(),
            hint: "; the slab stays until the lease is dropped and the pool is trimmed".to_owned(),
        })
    }
}
