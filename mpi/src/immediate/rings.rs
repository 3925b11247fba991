//! Pinned chunks for operations that do not block, and for messages that do: each has a ring of its own, as long as what it
//! moves needs, and all of a communicator share a few streams.

use crate::buffers::Gpu;
use crate::error::Error;
use crate::paths::{MESSAGE, Plan, Ring, Streams};
use crate::report::Report;
use pinyard_allocator::DriverToken;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Pairs of streams. Copies of one stream follow each other, so that one with few bytes may wait
/// for one with many; a device has only so many copy engines behind them.
const PAIRS: usize = 4;
/// Slots of a ring that has messages alone: one that is sent, one that is received.
const MESSAGES: usize = 2;
/// Rings that are kept for the next operations: at most so many, with no more bytes together than
/// so many of the longest.
const KEPT: usize = 64;
const KEPT_LONGEST: usize = 4;

pub(super) struct Rings {
    gpu: Gpu,
    report: Report,
    chunks: usize,
    chunk_bytes: usize,
    streams: RefCell<Vec<Arc<Streams>>>,
    /// Rings so far.
    made: Cell<usize>,
    kept: RefCell<Vec<Ring>>,
}

impl Rings {
    pub(super) fn new(gpu: &Gpu, plan: &Plan, report: Report) -> Rings {
        Rings {
            gpu: gpu.clone(),
            report,
            chunks: plan.chunks,
            chunk_bytes: plan.chunk_bytes,
            streams: RefCell::default(),
            made: Cell::new(0),
            kept: RefCell::default(),
        }
    }

    /// For messages, and copies between devices.
    pub(super) fn short(&self) -> Result<Ring, Error> {
        self.take(MESSAGES, MESSAGE)
    }

    /// Of as many chunks as the plan has, for pieces of `bytes`.
    pub(super) fn long(&self, bytes: usize) -> Result<Ring, Error> {
        self.take(self.chunks, class(bytes, self.chunk_bytes))
    }

    fn take(&self, slots: usize, bytes: usize) -> Result<Ring, Error> {
        let bytes = bytes.next_multiple_of(Ring::ALIGN);
        let mut kept = self.kept.borrow_mut();
        if let Some(at) = kept.iter().position(|ring| (ring.slots(), ring.slot_bytes()) == (slots, bytes)) {
            return Ok(kept.swap_remove(at));
        }
        let token = DriverToken::at_entry();
        let streams = self.streams(&token).map_err(|error| self.report.driver(error))?;
        let ring = Ring::on(&streams, &self.gpu, (slots, bytes), &token);
        ring.map_err(|source| self.report.staging(source))
    }

    /// Each pair in its turn.
    fn streams(&self, token: &DriverToken) -> Result<Arc<Streams>, pinyard_driver::DriverError> {
        let (mut streams, turn) = (self.streams.borrow_mut(), self.made.get());
        if streams.len() < PAIRS {
            streams.push(Arc::new(Streams::new(&self.gpu, token)?));
        }
        self.made.set(turn + 1);
        Ok(streams[turn % PAIRS.min(streams.len())].clone())
    }

    /// For the next operation. No copy or request uses it.
    pub(super) fn keep(&self, ring: Ring) {
        let mut kept = self.kept.borrow_mut();
        let bytes = |ring: &Ring| ring.slots() * ring.slot_bytes();
        let together = kept.iter().map(bytes).sum::<usize>() + bytes(&ring);
        if kept.len() < KEPT
            && together <= KEPT_LONGEST * self.chunks * class(self.chunk_bytes, self.chunk_bytes)
        {
            kept.push(ring);
        }
    }
}

/// Bytes of a slot for pieces of `bytes`: of a few lengths alone, so that rings serve again.
fn class(bytes: usize, chunk: usize) -> usize {
    let (bytes, chunk) = (bytes.next_multiple_of(Ring::ALIGN), chunk.next_multiple_of(Ring::ALIGN));
    if bytes >= chunk { bytes } else { bytes.next_power_of_two().min(chunk) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::awareness::{Awareness, Source};
    use crate::paths::Path;
    use pinyard_driver::{Call, Simulated};

    fn rings(simulated: &Arc<Simulated>) -> Rings {
        let gpu = Gpu::new(simulated.clone()).unwrap();
        let plan = Plan {
            path: Path::Staged,
            reason: String::new(),
            ranks: 2,
            nodes: 2,
            awareness: Awareness { aware: false, source: Source::Program },
            chunk_bytes: 1 << 20,
            chunks: 4,
            chunks_are_shared: false,
            checks: false,
        };
        Rings::new(&gpu, &plan, Report::of(0))
    }

    #[test]
    fn a_ring_is_as_long_as_what_it_moves_needs_and_serves_again() {
        let simulated = Arc::new(Simulated::new(64 << 20));
        let rings = rings(&simulated);
        let shape = |ring: &Ring| (ring.slots(), ring.slot_bytes());
        let (short, long) = (rings.short().unwrap(), rings.long(100_000).unwrap());
        assert_eq!((shape(&short), shape(&long)), ((2, 4096), (4, 128 << 10)));
        rings.keep(short);
        rings.keep(long);
        let made = simulated.calls(Call::EventCreate);
        assert_eq!(shape(&rings.short().unwrap()), (2, 4096));
        assert_eq!(shape(&rings.long(128 << 10).unwrap()), (4, 128 << 10));
        assert_eq!(simulated.calls(Call::EventCreate), made);
        assert_eq!(shape(&rings.long(3).unwrap()), (4, 4096));
        assert_eq!(shape(&rings.long((1 << 20) + 1).unwrap()), (4, (1 << 20) + 4096));
    }

    #[test]
    fn many_short_ones_share_streams_and_few_long_ones_are_kept() {
        let simulated = Arc::new(Simulated::new(64 << 20));
        let rings = rings(&simulated);
        let streams = || simulated.calls(Call::StreamCreate);
        let before = streams();
        let short: Vec<Ring> = (0..300).map(|_| rings.short().unwrap()).collect();
        assert_eq!(streams() - before, 2 * PAIRS as u64);
        short.into_iter().for_each(|ring| rings.keep(ring));
        assert_eq!(rings.kept.borrow().len(), KEPT);
        rings.kept.borrow_mut().clear();
        let long: Vec<Ring> = (0..6).map(|_| rings.long(1 << 20).unwrap()).collect();
        long.into_iter().for_each(|ring| rings.keep(ring));
        assert_eq!(rings.kept.borrow().len(), KEPT_LONGEST);
        assert_eq!(streams() - before, 2 * PAIRS as u64);
    }

    #[test]
    fn without_a_stream_there_is_no_ring_and_the_next_one_is_tried_again() {
        let simulated = Arc::new(Simulated::new(64 << 20));
        let rings = rings(&simulated);
        for _ in 0..2 {
            simulated.fail_next(Call::StreamCreate, 1, 2);
            assert!(
                matches!(rings.short().err(), Some(Error::Driver { rank: 0, source }) if source.code == 2)
            );
        }
        assert!(rings.short().is_ok());
    }
}
