//! Chunks through MPI: while one goes, the next comes from the device and the last goes
//! to it.
//!
//! ```text
//! piece i      load i      event      MPI i         store i       event
//! at step      i           i + 1      i + 1         i + flight    next use of the slot
//! ```
//!
//! Where MPI's call blocks, `store i` is at step i + 1 too: the next load goes on beside the call,
//! and the store beside the next call.
#![allow(unsafe_code)]

use super::ring::Ring;
use crate::calls::{Answer, Request};
use crate::error::MpiError;
use pinyard_allocator::DriverToken;
use pinyard_driver::{DevicePtr, DriverError};
use std::collections::VecDeque;

/// Device memory, its place in a slot, and bytes.
pub(crate) type Copies<'a> = &'a mut dyn FnMut(DevicePtr, usize, usize);

/// How it went. Where MPI starts no request that ends it; nothing else does, as the other ranks
/// wait for the pieces: they get some bytes, and are told at the end.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) device: Option<DriverError>,
    /// Of a request that could not be started.
    pub(crate) mpi: Option<MpiError>,
    /// Of one that was under way.
    pub(crate) lost: Option<MpiError>,
    /// MPI failed the first rank of this node, which goes between the nodes for it.
    pub(crate) is_cut: bool,
}

impl Outcome {
    pub(super) fn note(&mut self, result: Result<(), DriverError>) {
        if let Err(error) = result {
            self.device.get_or_insert(error);
        }
    }

    /// A request has ended.
    pub(crate) fn ended(&mut self, result: Answer<()>) {
        if let Err(error) = result {
            self.lost.get_or_insert(error);
        }
    }
}

/// Takes `pieces` through the ring. `load` and `store` name the copies of a piece,
/// `start` starts its MPI requests on the slot's address, in the order of the pieces; where it
/// returns none MPI is done with the piece.
///
/// # Safety
/// The device memory that `load` names stands unwritten, and what `store` names is
/// nobody's, until the call returns. Requests use no more than the slot.
pub(crate) unsafe fn run(
    ring: &mut Ring,
    pieces: usize,
    token: &DriverToken,
    mut load: impl FnMut(usize, Copies<'_>),
    mut start: impl FnMut(usize, *mut u8) -> Answer<[Option<Request>; 2]>,
    mut store: impl FnMut(usize, Copies<'_>),
) -> Outcome {
    let slots = ring.slots();
    // One slot loads, one stores, the others are with MPI.
    let flight = (slots - 1).max(1);
    let mut outcome = Outcome::default();
    let mut under_way: VecDeque<[Option<Request>; 2]> = VecDeque::with_capacity(flight);
    let mut stored = 0;
    for step in 0..pieces + flight {
        if step < pieces {
            if step >= slots {
                // The stores of the piece that had the slot before.
                outcome.note(ring.wait(step, token));
            }
            load(step, &mut |from, offset, bytes| {
                // SAFETY: the caller's contract; waited for before MPI gets the slot.
                outcome.note(unsafe { ring.load(step, offset, from, bytes, token) });
            });
            outcome.note(ring.loaded(step, token));
        }
        if let Some(piece) = step.checked_sub(1).filter(|&piece| piece < pieces) {
            outcome.note(ring.wait(piece, token));
            match start(piece, ring.slot(piece)) {
                Ok(requests) => under_way.push_back(requests),
                Err(error) => {
                    outcome.mpi = Some(error);
                    break;
                }
            }
        }
        while stored + flight <= step || under_way.front().is_some_and(is_done) {
            let Some(requests) = under_way.pop_front() else { break };
            for request in requests.into_iter().flatten() {
                outcome.ended(request.wait());
            }
            store(stored, &mut |to, offset, bytes| {
                // SAFETY: the caller's contract; waited for before the slot is used again, and
                // below.
                outcome.note(unsafe { ring.store(stored, offset, to, bytes, token) });
            });
            outcome.note(ring.stored(stored, token));
            stored += 1;
        }
    }
    // Requests that are left end here (after a failure), and then the copies.
    drop(under_way);
    let is_whole = outcome.mpi.is_none() && outcome.device.is_none();
    // Every load was waited for, unless something failed.
    outcome.note(if is_whole { ring.wait_stores(token) } else { ring.wait_all(token) });
    outcome
}

fn is_done(requests: &[Option<Request>; 2]) -> bool {
    requests.iter().all(Option::is_none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffers::Gpu;
    use pinyard_driver::{Call, Simulated};
    use std::sync::Arc;

    const PIECE: usize = 4096;

    /// Through a ring without MPI: what is loaded is stored elsewhere.
    fn through(slots: usize, pieces: usize) -> (Arc<Simulated>, Outcome, bool) {
        let simulated = Arc::new(Simulated::new(64 << 20));
        let gpu = Gpu::new(simulated.clone()).unwrap();
        let token = DriverToken::at_entry();
        let stream = gpu.stream().unwrap();
        let mut from = gpu.alloc::<u8>(pieces * PIECE, &stream).unwrap();
        let mut to = gpu.alloc::<u8>(pieces * PIECE, &stream).unwrap();
        let bytes: Vec<u8> = (0..pieces * PIECE).map(|at| (at / PIECE * 31 + at) as u8).collect();
        from.write(&bytes).unwrap();
        to.write(&vec![0; bytes.len()]).unwrap();
        let mut ring = Ring::new(&gpu, slots, PIECE, &token).unwrap();
        let (source, target) = (from.ptr().0, to.ptr().0);
        let mut started = Vec::new();
        // SAFETY: both buffers have the pieces and stand.
        let outcome = unsafe {
            run(
                &mut ring,
                pieces,
                &token,
                |piece, copy| copy(DevicePtr(source + (piece * PIECE) as u64), 0, PIECE),
                |piece, _| {
                    started.push(piece);
                    Ok([None, None])
                },
                |piece, copy| copy(DevicePtr(target + (piece * PIECE) as u64), 0, PIECE),
            )
        };
        assert_eq!(started, (0..pieces).collect::<Vec<_>>());
        let same = to.to_vec().unwrap() == bytes;
        (simulated, outcome, same)
    }

    #[test]
    fn every_piece_goes_through_whatever_the_ring() {
        for slots in [2, 3, 4, 7] {
            for pieces in [0, 1, 2, 3, 4, 8, 33].into_iter().filter(|&pieces| pieces > 0) {
                let (simulated, outcome, same) = through(slots, pieces);
                assert!(outcome.device.is_none() && outcome.mpi.is_none());
                assert!(same, "{slots} slots, {pieces} pieces");
                assert_eq!(simulated.offences(), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn a_refused_copy_is_told_and_the_other_pieces_still_go_to_mpi() {
        let simulated = Arc::new(Simulated::new(64 << 20));
        let gpu = Gpu::new(simulated.clone()).unwrap();
        let token = DriverToken::at_entry();
        let stream = gpu.stream().unwrap();
        let from = gpu.alloc::<u8>(9 * PIECE, &stream).unwrap();
        let mut ring = Ring::new(&gpu, 3, PIECE, &token).unwrap();
        simulated.fail_next(Call::CopyToHost, 1, 700);
        let (source, mut started) = (from.ptr().0, 0);
        // SAFETY: the buffer has the pieces and stands.
        let outcome = unsafe {
            run(
                &mut ring,
                9,
                &token,
                |piece, copy| copy(DevicePtr(source + (piece * PIECE) as u64), 0, PIECE),
                |_, _| {
                    started += 1;
                    Ok([None, None])
                },
                |_, _| {},
            )
        };
        assert_eq!((outcome.device.unwrap().code, started), (700, 9));
    }

    #[test]
    fn mpis_failure_ends_it() {
        let gpu = Gpu::new(Arc::new(Simulated::new(64 << 20))).unwrap();
        let token = DriverToken::at_entry();
        let mut ring = Ring::new(&gpu, 4, PIECE, &token).unwrap();
        let failure = MpiError { call: "MPI_Ibcast", code: 15, text: "truncated".to_owned() };
        // SAFETY: no copies.
        let outcome = unsafe {
            run(
                &mut ring,
                9,
                &token,
                |_, _| {},
                |piece, _| if piece == 4 { Err(failure.clone()) } else { Ok([None, None]) },
                |_, _| {},
            )
        };
        assert_eq!(outcome.mpi, Some(failure));
    }
}
