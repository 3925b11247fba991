//! Asks somebody when memory is out, and tries again: as often as the answer is that
//! it helped.

use super::{Allocate, Refusal};
use std::fmt;

/// Tries again. The question is asked without a lock held, and may free blocks.
pub struct Retry<A, F> {
    upstream: A,
    help: F,
}

impl<A: Allocate, F: Fn(usize, &A::Error) -> bool + Send + Sync> Retry<A, F> {
    /// When memory is out, `help` is asked, with the bytes and the error: `true`, and the
    /// allocation is tried again; `false`, and it fails.
    pub fn new(upstream: A, help: F) -> Retry<A, F> {
        Retry { upstream, help }
    }

    /// What it is around.
    pub fn upstream(&self) -> &A {
        &self.upstream
    }
}

impl<A: Allocate, F: Fn(usize, &A::Error) -> bool + Send + Sync> Allocate for Retry<A, F> {
    type Block = A::Block;
    type Terms = A::Terms;
    type Error = A::Error;

    fn alloc(&self, bytes: usize, terms: &A::Terms) -> Result<A::Block, A::Error> {
        loop {
            match self.upstream.alloc(bytes, terms) {
                Err(error) if error.is_shortage() && (self.help)(bytes, &error) => {}
                result => return result,
            }
        }
    }
}

impl<A: fmt::Debug, F> fmt::Debug for Retry<A, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}
