//! A slab: what a source gave in one piece, registered once.

use super::classes::Kind;
use crate::source::{DriverToken, Segment, SourceError};
use pinyard_registry::MemoryKey;
use std::cell::Cell;

/// Makes a device's slabs known to a NIC or another user of addresses. Called
/// when a slab is made and before it goes, never under a lock of the pool's. A panic is an
/// error like another, with the panic's text, on whichever thread.
pub trait Registrar: Send + Sync {
    /// Registers the whole slab.
    fn register(&self, slab: Segment, token: &DriverToken) -> Result<MemoryKey, SourceError>;

    /// Takes the registration back. After an error the slab's memory stays, and it is
    /// called again when the pool next gives slabs back.
    fn deregister(&self, slab: Segment, key: MemoryKey, token: &DriverToken) -> Result<(), SourceError>;
}

/// Stands as long as a block lies in it.
pub(super) struct Slab {
    pub(super) segment: Segment,
    pub(super) key: MemoryKey,
    pub(super) kind: Kind,
    /// When a block was last taken of it, in the heap's ticks. Under the pool's lock.
    pub(super) used: Cell<u32>,
}

impl Slab {
    pub(super) fn start(&self) -> u64 {
        self.segment.start as u64
    }

    pub(super) fn end(&self) -> u64 {
        (self.segment.start + self.segment.bytes) as u64
    }
}
