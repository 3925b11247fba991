//! A block, and what is owed when it goes.

use super::Block;
use crate::fence::Fence;

/// A block of an adaptor. When it goes, first what counts it as in use does, then the
/// block, then what it had taken.
#[derive(Debug)]
pub struct Held<B, T, E = ()> {
    // In this order they are dropped.
    pub(super) early: E,
    pub(super) block: B,
    pub(super) owed: T,
}

impl<B, T> Held<B, T> {
    pub(super) fn new(block: B, owed: T) -> Held<B, T> {
        Held { early: (), block, owed }
    }
}

impl<B, E> Held<B, (), E> {
    pub(super) fn counted(block: B, early: E) -> Held<B, (), E> {
        Held { early, block, owed: () }
    }
}

impl<B, T, E> Held<B, T, E> {
    /// The block within, of the pool or the next adaptor.
    pub fn get(&self) -> &B {
        &self.block
    }
}

impl<B: Block, T: Send, E: Send> Block for Held<B, T, E> {
    fn address(&self) -> u64 {
        self.block.address()
    }

    /// The adaptor counts it as freed now: the fence is the pool's matter.
    fn defer_until(self, fence: Fence) {
        let Held { early, block, owed } = self;
        drop(early);
        block.defer_until(fence);
        drop(owed);
    }
}
