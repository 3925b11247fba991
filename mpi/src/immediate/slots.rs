//! Where the messages of an operation lie.

use super::rings::Rings;
use crate::error::Error;
use crate::paths::{MESSAGE, Ring};

/// Messages of an operation: one that is sent, one that is received.
const MESSAGES: usize = 2;

/// The slots of an operation's ring, or where this rank could not have one, memory of the host's
/// for its messages alone: so it takes part, and tells the others why.
pub(super) enum Slots {
    Ring(Ring),
    Bare(Vec<u8>),
}

impl Slots {
    /// A short ring of `rings`. Without one the operation has failed here, if it had not before.
    pub(super) fn of(rings: &Rings, mine: Result<(), Error>) -> (Slots, Result<(), Error>) {
        match rings.short() {
            Ok(ring) => (Slots::Ring(ring), mine),
            Err(error) => (Slots::Bare(vec![0; MESSAGES * MESSAGE]), mine.and(Err(error))),
        }
    }

    /// For the next operation. No copy or request uses them.
    pub(super) fn give_back(self, rings: &Rings) {
        if let Slots::Ring(ring) = self {
            rings.keep(ring);
        }
    }

    /// What copies go through. None where this rank has failed.
    pub(super) fn ring(&mut self) -> Option<&mut Ring> {
        match self {
            Slots::Ring(ring) => Some(ring),
            Slots::Bare(_) => None,
        }
    }

    /// Message 0 or 1. No copy of it is under way.
    pub(super) fn message(&mut self, number: usize) -> &mut [u8] {
        match self {
            Slots::Ring(ring) => ring.bytes(number, MESSAGE),
            Slots::Bare(bytes) => &mut bytes[number * MESSAGE..][..MESSAGE],
        }
    }
}
