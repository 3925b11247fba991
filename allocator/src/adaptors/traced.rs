//! Records what passes, in the format of a pool's trace: of one part of a program, or
//! of what an inner adaptor lets through.

use super::{Allocate, Block, Held, Terms};
use crate::trace::{Event, Kind, Record, Ring, Trace};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

#[derive(Debug)]
struct Shared {
    ring: Ring,
    began: Instant,
    blocks: AtomicU64,
}

/// Records the last events.
#[derive(Debug)]
pub struct Traced<A> {
    upstream: A,
    shared: Arc<Shared>,
}

impl<A> Traced<A> {
    /// Records what passes to `upstream`, the last `events` events of it; 88 bytes each,
    /// allocated now. At least one.
    pub fn new(upstream: A, events: usize) -> Traced<A> {
        let ring = Ring::new(events, 0);
        Traced {
            upstream,
            shared: Arc::new(Shared { ring, began: Instant::now(), blocks: AtomicU64::new(0) }),
        }
    }

    /// What stands in the ring. Waits for nobody.
    pub fn trace(&self) -> Trace {
        let (records, lost) = self.shared.ring.read();
        let events = records.into_iter().map(|(record, _)| Event::of(record, Vec::new()));
        Trace::with_lost(events.collect(), lost)
    }

    /// What it is around.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }
}

impl Shared {
    fn push(&self, kind: Kind, stream: u64, bytes: u64, block: u64, address: u64) {
        let time_ns = self.began.elapsed().as_nanos() as u64;
        let thread = crate::trace::thread_number();
        let record = Record { time_ns, thread, stream, bytes, block, address, ..Record::of(kind) };
        self.ring.push(record, &[]);
    }
}

/// Records the end of a block.
#[derive(Debug)]
pub struct Recorded {
    block: u64,
    bytes: u64,
    stream: u64,
    address: u64,
    shared: Arc<Shared>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.shared.push(Kind::Free, self.stream, self.bytes, self.block, self.address);
    }
}

impl<A: Allocate> Allocate for Traced<A> {
    type Block = Held<A::Block, Recorded>;
    type Terms = A::Terms;
    type Error = A::Error;

    fn alloc(&self, bytes: usize, terms: &A::Terms) -> Result<Self::Block, A::Error> {
        let (shared, id, wanted) = (&self.shared, terms.stream_id(), bytes as u64);
        let failed = |_: &A::Error| shared.push(Kind::Oom, id, wanted, 0, 0);
        let block = self.upstream.alloc(bytes, terms).inspect_err(failed)?;
        let number = shared.blocks.fetch_add(1, Relaxed) + 1;
        let address = block.address();
        shared.push(Kind::Alloc, id, wanted, number, address);
        let owed = Recorded { block: number, bytes: wanted, stream: id, address, shared: shared.clone() };
        Ok(Held::new(block, owed))
    }
}
