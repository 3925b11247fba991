//! Refuses what exceeds a number of bytes in use: a share of a pool for a part of a
//! program. A pool's own limit is of its slabs.

use super::{Allocate, Held, Refusal};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// At most so many bytes in use, as asked for. Exact with any number of threads; one
/// atomic word for all of them.
#[derive(Debug)]
pub struct Limit<A> {
    upstream: A,
    limit: usize,
    used: Arc<AtomicUsize>,
}

impl<A> Limit<A> {
    /// At most `bytes` of `upstream` in use.
    pub fn new(upstream: A, bytes: usize) -> Limit<A> {
        Limit { upstream, limit: bytes, used: Arc::default() }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// What it is around.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }
}

/// Bytes that come back with the value.
#[derive(Debug)]
pub struct Share {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Relaxed);
    }
}

impl<A: Allocate> Allocate for Limit<A> {
    type Block = Held<A::Block, Share>;
    type Terms = A::Terms;
    type Error = A::Error;

    fn alloc(&self, bytes: usize, terms: &A::Terms) -> Result<Self::Block, A::Error> {
        let take = |used: usize| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        let refuse = |used: usize| A::Error::share(self.limit, bytes, used);
        self.used.fetch_update(Relaxed, Relaxed, take).map_err(refuse)?;
        // Before the allocation, so that a failed one gives them back.
        let share = Share { bytes, used: self.used.clone() };
        Ok(Held::new(self.upstream.alloc(bytes, terms)?, share))
    }
}
