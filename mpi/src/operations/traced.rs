//! An operation in the trace of its process (`PINYARD_TRACE`): from when it is known to be
//! possible to its end, whatever that is.

use crate::communicator::DeviceCommunicator;
use pinyard_trace::{Kind, Name, Record, Recorder};

/// Recorded when it is dropped.
pub(crate) struct Call {
    to: &'static Recorder,
    began: u64,
    record: Record,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.to.record_since(self.began, self.record);
    }
}

impl DeviceCommunicator {
    /// An operation that begins here; none where no trace is asked for. `bytes` are those
    /// of this rank's own buffer.
    pub(crate) fn traced(&self, operation: &'static str, bytes: usize) -> Option<Call> {
        let to = pinyard_trace::recorder()?;
        let name = Name::of(operation.trim_end_matches(" of device memory"));
        let path = Name::of(self.plan.path.name());
        let record = Record { name, path, bytes: bytes as u64, ..Record::of(Kind::Mpi) };
        Some(Call { to, began: to.now(), record })
    }
}
