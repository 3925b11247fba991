//! A registry in the trace of its process. Each event asks whether there is one: a relaxed
//! load. Keys are not recorded, and nothing is from a hook: an invalidation is where it is
//! drained.

use crate::range::PageRange;
use pinyard_trace::{Kind, Name, Record, Recorder};

/// The registry's place in the trace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traced {
    number: u32,
    name: Name,
}

impl Traced {
    /// Of one that registers with `backend`. Nothing where no trace is asked for.
    pub(crate) fn new(backend: &'static str) -> Traced {
        pinyard_trace::recorder()
            .map_or_else(Traced::default, |to| Traced { number: to.number(), name: Name::of(backend) })
    }

    /// When a call of the backend begins, if it is recorded.
    #[inline(always)]
    pub(crate) fn begin(self) -> Option<Call> {
        pinyard_trace::recorder().map(|to| Call { to, began: to.now() })
    }

    /// What happened to a range.
    #[inline(always)]
    pub(crate) fn event(self, kind: Kind, range: PageRange) {
        if let Some(to) = pinyard_trace::recorder() {
            to.record(self.of(kind, range));
        }
    }

    fn of(self, kind: Kind, range: PageRange) -> Record {
        let (address, bytes) = (range.start as u64, range.len() as u64);
        Record { of: self.number, name: self.name, address, bytes, ..Record::of(kind) }
    }
}

/// A call of the backend that has begun.
pub(crate) struct Call {
    to: &'static Recorder,
    began: u64,
}

impl Call {
    #[cold]
    pub(crate) fn end(self, traced: Traced, kind: Kind, range: PageRange) {
        self.to.record_since(self.began, traced.of(kind, range));
    }
}
