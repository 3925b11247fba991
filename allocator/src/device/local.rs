//! What a stream keeps: small free blocks by class, and the large ones freed last.
//! All of it is free for the stream's later work, and for nobody else's yet.

use super::block::{BlockRef, NO_CLASS, Stack};
use super::classes::{CLASSES, Class};
use super::counts::{Counts, Sizes};
use super::stream::StreamState;

/// Large blocks that are found again by their exact length.
const QUICK: usize = 8;

pub(super) struct Local {
    bins: Box<[Stack]>,
    quick: [Option<BlockRef>; QUICK],
    lengths: [usize; QUICK],
    quick_count: usize,
    /// Large blocks for the heap.
    loose: Stack,
    /// Bytes of all of these.
    cached: usize,
    counts: Counts,
    /// Allocations by size.
    sizes: Sizes,
    /// The stream is retired: nothing is handed out for its later work.
    closed: bool,
}

impl Local {
    pub(super) fn new() -> Local {
        Local {
            bins: (0..CLASSES).map(|_| Stack::default()).collect(),
            quick: [None; QUICK],
            lengths: [0; QUICK],
            quick_count: 0,
            loose: Stack::default(),
            cached: 0,
            counts: Counts::default(),
            sizes: Sizes::NONE,
            closed: false,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { allocations: self.sizes.sum(), ..self.counts }
    }

    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// All blocks that are kept.
    pub(super) fn each_kept(&self, mut visit: impl FnMut(BlockRef)) {
        let stacks = self.bins.iter().chain([&self.loose]);
        stacks.flat_map(Stack::iter).chain(self.quick.iter().flatten().copied()).for_each(&mut visit);
    }

    #[inline(always)]
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn cached(&self) -> usize {
        self.cached
    }

    /// A block for `wanted` bytes, more than none, in the order of this cache's stream.
    #[inline(always)]
    pub(super) fn allocated(
        &mut self,
        block: BlockRef,
        wanted: usize,
        home: *const StreamState,
        slot: usize,
    ) {
        block.home.set(home);
        self.counts.allocated(block, wanted);
        self.sizes.count(slot);
    }

    #[inline(always)]
    pub(super) fn pop_small(&mut self, class: Class) -> Option<BlockRef> {
        let block = self.bins[class as usize].pop()?;
        self.cached -= block.bytes.get();
        Some(block)
    }

    #[inline(always)]
    pub(super) fn pop_large(&mut self, bytes: usize) -> Option<BlockRef> {
        for at in (0..self.quick_count).rev() {
            if self.lengths[at] == bytes {
                self.quick_count -= 1;
                self.quick.swap(at, self.quick_count);
                self.lengths.swap(at, self.quick_count);
                self.cached -= bytes;
                return self.quick[self.quick_count].take();
            }
        }
        None
    }

    /// A block that its user has dropped.
    #[inline(always)]
    pub(super) fn freed(&mut self, block: BlockRef) {
        self.counts.freed(block);
        self.put(block);
    }

    /// The same, of one that does not come back here.
    pub(super) fn retrieved(&mut self, block: BlockRef) {
        self.counts.freed(block);
    }

    /// A free block.
    #[inline(always)]
    pub(super) fn put(&mut self, block: BlockRef) {
        let bytes = block.bytes.get();
        self.cached += bytes;
        if block.class.get() != NO_CLASS {
            return self.bins[block.class.get() as usize].push(block);
        }
        if self.quick_count == QUICK {
            self.spill();
        }
        self.quick[self.quick_count] = Some(block);
        self.lengths[self.quick_count] = bytes;
        self.quick_count += 1;
    }

    fn spill(&mut self) {
        for block in self.quick.iter_mut().filter_map(Option::take) {
            self.loose.push(block);
        }
        self.quick_count = 0;
    }

    /// The large blocks, for the heap.
    pub(super) fn take_large(&mut self) -> Stack {
        self.spill();
        let mut taken = self.loose.take();
        let mut large = Stack::default();
        while let Some(block) = taken.pop() {
            self.cached -= block.bytes.get();
            large.push(block);
        }
        large
    }

    /// The small ones as well.
    pub(super) fn take_all(&mut self) -> Stack {
        let mut all = self.take_large();
        for bin in &mut self.bins {
            while let Some(block) = bin.pop() {
                all.push(block);
            }
        }
        self.cached = 0;
        all
    }
}
