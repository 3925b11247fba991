//! A source made of two closures.
#![allow(unsafe_code)]

use crate::source::{DriverToken, HostMemory, Segment, Source, SourceError};

type Grow = dyn Fn(usize) -> Result<Segment, SourceError> + Send + Sync;
type Shrink = dyn Fn(Segment) -> Result<(), SourceError> + Send + Sync;

/// Grows and shrinks with the caller's closures, which are never called under a
/// pool's lock and may call anything but the pool that they feed.
pub struct CustomSource {
    name: &'static str,
    granularity: usize,
    grow: Box<Grow>,
    shrink: Box<Shrink>,
}

impl CustomSource {
    /// A source of memory that need not be the host's.
    ///
    /// # Safety
    /// The closures keep [`Source`]'s contract with this `granularity`, and
    /// [`HostMemory`]'s if the source feeds a [`Pool`](crate::Pool).
    pub unsafe fn new(
        name: &'static str,
        granularity: usize,
        grow: impl Fn(usize) -> Result<Segment, SourceError> + Send + Sync + 'static,
        shrink: impl Fn(Segment) -> Result<(), SourceError> + Send + Sync + 'static,
    ) -> CustomSource {
        CustomSource { name, granularity, grow: Box::new(grow), shrink: Box::new(shrink) }
    }
}

// SAFETY: `new`'s contract.
unsafe impl Source for CustomSource {
    fn name(&self) -> &'static str {
        self.name
    }

    fn granularity(&self) -> usize {
        self.granularity
    }

    fn grow(&self, bytes: usize, _: &DriverToken) -> Result<Segment, SourceError> {
        (self.grow)(bytes)
    }

    unsafe fn shrink(&self, segment: Segment, _: &DriverToken) -> Result<(), SourceError> {
        (self.shrink)(segment)
    }
}

// SAFETY: `new`'s contract.
unsafe impl HostMemory for CustomSource {}
