//! A span: pages of one slab, carved into blocks of one class.

use crate::block::BlockRef;
use crate::classes::Class;
use crate::ranges::Bounds;
use crate::shared::Core;
use pinyard_registry::MemoryKey;
use std::cell::Cell;

/// Stands as long as any block of it is in use or in a magazine, and never
/// changes but for `gathered`.
pub(crate) struct Span {
    pub(crate) kind: Kind,
    pub(crate) key: MemoryKey,
    pub(crate) slab: Bounds,
    pub(crate) start: usize,
    pub(crate) blocks: Box<[BlockRef]>,
    /// Under the pool's lock: how many free blocks are in the lock holder's hands.
    pub(crate) gathered: Cell<usize>,
}

/// What a free needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) core: *const Core,
    pub(crate) block_bytes: usize,
    /// Blocks in a full magazine of the class.
    pub(crate) rounds: u32,
    pub(crate) class: Class,
    /// The core's own (`Core::watched`).
    pub(crate) watched: bool,
}

impl Span {
    pub(crate) fn bytes(&self) -> usize {
        self.kind.block_bytes * self.blocks.len()
    }
}
