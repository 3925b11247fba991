//! The pipeline of [`run`](crate::paths::run), in steps: chunks through MPI, while the next
//! comes from the device and the last goes to it.
#![allow(unsafe_code)]

use super::steps::{done, passed};
use crate::calls::{Answer, Request};
use crate::paths::{Outcome, Ring};
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, DriverError};
use std::collections::VecDeque;

/// Device memory, its place in a slot, and bytes. A piece has none that is not copied, or several.
pub(super) type Copy = (DevicePtr, usize, usize);

/// Takes `pieces` through the ring. `load` and `store` name the copies of a piece, `start`
/// starts its MPI request on the slot's address, in the order of the pieces.
///
/// # Safety
/// The device memory that `load` names stands unwritten, and what `store` names is nobody's,
/// until the future is done or dropped. Requests use no more than the slot.
pub(super) async unsafe fn flow<L: IntoIterator<Item = Copy>, S: IntoIterator<Item = Copy>>(
    ring: &mut Ring,
    pieces: usize,
    mut load: impl FnMut(usize) -> L,
    mut start: impl FnMut(usize, *mut u8) -> Answer<Request>,
    mut store: impl FnMut(usize) -> S,
) -> Outcome {
    let slots = ring.slots();
    let flight = (slots - 1).max(1);
    let mut outcome = Outcome::default();
    // Dropped early, requests are waited for before the ring is used again.
    let mut under_way: VecDeque<Request> = VecDeque::with_capacity(flight);
    for step in 0..pieces + flight {
        if step < pieces {
            if step >= slots {
                note(&mut outcome, passed(ring, step).await);
            }
            for (from, offset, bytes) in load(step) {
                let token = DriverToken::at_entry();
                // SAFETY: the caller's contract; waited for before MPI gets the slot.
                note(&mut outcome, unsafe { ring.load(step, offset, from, bytes, &token) });
                note(&mut outcome, ring.loaded(step, &token));
            }
        }
        if let Some(piece) = step.checked_sub(1).filter(|&piece| piece < pieces) {
            note(&mut outcome, passed(ring, piece).await);
            match start(piece, ring.slot(piece)) {
                Ok(request) => under_way.push_back(request),
                Err(error) => {
                    outcome.mpi = Some(error);
                    break;
                }
            }
        }
        let Some(piece) = step.checked_sub(flight).filter(|&piece| piece < pieces) else { continue };
        let Some(request) = under_way.pop_front() else { continue };
        outcome.ended(done(request).await.map(drop));
        for (to, offset, bytes) in store(piece) {
            let token = DriverToken::at_entry();
            // SAFETY: the caller's contract; waited for before the slot is used again, and
            // below.
            note(&mut outcome, unsafe { ring.store(piece, offset, to, bytes, &token) });
            note(&mut outcome, ring.stored(piece, &token));
        }
    }
    drop(under_way);
    for slot in 0..slots.min(pieces) {
        note(&mut outcome, passed(ring, slot).await);
    }
    if outcome.device.is_some() {
        // An event that was not recorded, or not asked, says nothing of its copies.
        note(&mut outcome, ring.wait_all(&DriverToken::at_entry()));
    }
    outcome
}

fn note(outcome: &mut Outcome, result: Result<(), DriverError>) {
    if let Err(error) = result {
        outcome.device.get_or_insert(error);
    }
}
