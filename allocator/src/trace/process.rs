//! A pool in the trace of its process.

use pinyard_trace::{Kind, Name, Record, Recorder};

/// The pool's place in the process's trace. Made with the pool, if a trace is recorded
/// then: a pool that is not traced never asks again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traced {
    number: u32,
    name: Name,
}

impl Traced {
    /// None where no trace is asked for.
    pub(crate) fn new(source: &'static str) -> Option<Traced> {
        let recorder = pinyard_trace::recorder()?;
        Some(Traced { number: recorder.number(), name: Name::of(source) })
    }

    fn record(self, to: &Recorder, record: Record) {
        to.record(Record { of: self.number, name: self.name, ..record });
    }

    /// In the process's trace a block in use is known by its address.
    pub(crate) fn pass_on(self, record: Record) {
        if let Some(recorder) = pinyard_trace::recorder() {
            let is_block = record.block != 0 || matches!(record.kind, Kind::Alloc | Kind::Free);
            let block = if is_block { record.address } else { 0 };
            self.record(recorder, Record { block, ..record });
        }
    }

    /// Of a block: `bytes` as asked for, 0 where that is forgotten.
    pub(crate) fn block(self, kind: Kind, at: usize, bytes: usize, block_bytes: usize, slab: usize) {
        self.pass_on(Record {
            bytes: bytes as u64,
            block_bytes: block_bytes as u64,
            block: at as u64,
            address: at as u64,
            slab: slab as u64,
            ..Record::of(kind)
        });
    }

    /// Of a slab.
    pub(crate) fn slab(self, kind: Kind, at: usize, bytes: usize) {
        self.pass_on(Record { bytes: bytes as u64, address: at as u64, ..Record::of(kind) });
    }
}
