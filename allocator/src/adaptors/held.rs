//! A block, and what is owed when it goes.

use super::Block;
use crate::device::PoolStream;
use crate::fence::Fence;
use pinyard_driver::DevicePtr;

/// A block of an adaptor. First the block goes, then what the adaptor does about it.
#[derive(Debug)]
pub struct Held<B, T> {
    block: B,
    _owed: T,
}

impl<B, T> Held<B, T> {
    pub(super) fn new(block: B, owed: T) -> Held<B, T> {
        Held { block, _owed: owed }
    }

    /// The block within, of the pool or the next adaptor.
    pub fn get(&self) -> &B {
        &self.block
    }
}

impl<B: Block, T: Send> Block for Held<B, T> {
    fn ptr(&self) -> DevicePtr {
        self.block.ptr()
    }

    fn len(&self) -> usize {
        self.block.len()
    }

    fn record_use(&mut self, stream: &PoolStream) {
        self.block.record_use(stream);
    }

    /// The adaptor counts it as freed now: the fence is the pool's matter.
    fn defer_until(self, fence: Fence) {
        self.block.defer_until(fence);
    }
}
