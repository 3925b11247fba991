//! Which thread adds a slab to a pool. The others wait for it, so that they share what it adds.

use pinyard_registry::is_in_backend;
use pinyard_worker::ThreadId;

/// The thread, under the pool's lock.
#[derive(Debug, Default)]
pub(crate) struct Growing(Option<ThreadId>);

impl Growing {
    /// Whether this thread waits for another, which adds one. Not where it is inside a backend's function:
    /// the other may wait for that to return. So both add one.
    pub(crate) fn is_for_others(&self) -> bool {
        self.0.is_some_and(|thread| thread != ThreadId::current()) && !is_in_backend()
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.0.is_some()
    }

    /// This thread adds one.
    pub(crate) fn begin(&mut self) {
        self.0 = Some(ThreadId::current());
    }

    /// It is added, or not to be had.
    pub(crate) fn end(&mut self) {
        self.0 = None;
    }
}
