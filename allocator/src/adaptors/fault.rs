//! Lets allocations fail on purpose: what a program does without memory is tested like
//! anything else.

use super::{Allocate, Refusal};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lets the allocations fail that a rule names by their number.
pub struct Fault<A, F> {
    upstream: A,
    fails: F,
    number: AtomicU64,
}

impl<A, F: Fn(u64, usize) -> bool + Send + Sync> Fault<A, F> {
    /// An allocation fails, and `upstream` is not asked, if `fails` says so of its number,
    /// from 0, and its bytes.
    pub fn new(upstream: A, fails: F) -> Fault<A, F> {
        Fault { upstream, fails, number: AtomicU64::new(0) }
    }

    /// Allocations so far, failed ones included.
    pub fn allocations(&self) -> u64 {
        self.number.load(Relaxed)
    }

    /// What it is around.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }
}

impl<A: Allocate, F: Fn(u64, usize) -> bool + Send + Sync> Allocate for Fault<A, F> {
    type Block = A::Block;
    type Terms = A::Terms;
    type Error = A::Error;

    fn alloc(&self, bytes: usize, terms: &A::Terms) -> Result<A::Block, A::Error> {
        let number = self.number.fetch_add(1, Relaxed);
        if (self.fails)(number, bytes) {
            return Err(A::Error::injected(number, bytes));
        }
        self.upstream.alloc(bytes, terms)
    }
}

impl<A: std::fmt::Debug, F> std::fmt::Debug for Fault<A, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fault")
            .field("upstream", &self.upstream)
            .field("allocations", &self.number)
            .finish_non_exhaustive()
    }
}
