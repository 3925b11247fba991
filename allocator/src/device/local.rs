//! What a stream keeps: small free blocks by class, and the large ones freed last.
//! All of it is free for the stream's later work, and for nobody else's yet.

use super::block::{BlockRef, NO_CLASS, Stack};
use super::classes::{self, CLASSES, Class};
use super::counts::{Counts, Sizes};
use super::index::bits;
use super::stream::StreamState;

const _: () = assert!(CLASSES <= u64::BITS as usize, "Local::filled has a bit for each");

/// Lengths of large blocks that are found again.
const LENGTHS: usize = 16;

/// Large blocks by their exact length, the one freed last first.
#[derive(Default)]
struct Exact {
    lengths: [usize; LENGTHS],
    blocks: [Stack; LENGTHS],
    /// Lengths so far.
    count: usize,
    /// The length that goes when there are more.
    hand: usize,
}

impl Exact {
    /// Later ones first: a program that goes on to other lengths finds these at once.
    #[inline(always)]
    fn place(&self, bytes: usize) -> Option<usize> {
        (0..self.count).rev().find(|&at| self.lengths[at] == bytes)
    }

    #[inline(always)]
    fn pop(&mut self, bytes: usize) -> Option<BlockRef> {
        self.blocks[self.place(bytes)?].pop()
    }

    /// What had to go is added to `rest`.
    #[inline(always)]
    fn push(&mut self, block: BlockRef, bytes: usize, rest: &mut Stack) {
        let at = self.place(bytes).unwrap_or_else(|| self.renamed(bytes, rest));
        self.blocks[at].push(block);
    }

    fn renamed(&mut self, bytes: usize, rest: &mut Stack) -> usize {
        let at = if self.count < LENGTHS {
            self.count += 1;
            self.count - 1
        } else {
            self.hand = (self.hand + 1) % LENGTHS;
            rest.append(&mut self.blocks[self.hand]);
            self.hand
        };
        self.lengths[at] = bytes;
        at
    }

    fn take(&mut self, to: &mut Stack) {
        self.blocks[..self.count].iter_mut().for_each(|blocks| to.append(blocks));
        self.count = 0;
    }
}

pub(super) struct Local {
    bins: Box<[Stack]>,
    /// Bit by class: bins that may hold blocks.
    filled: u64,
    exact: Exact,
    /// Other large blocks, for the heap.
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
            filled: 0,
            exact: Exact::default(),
            loose: Stack::default(),
            cached: 0,
            counts: Counts::default(),
            sizes: Sizes::default(),
            closed: false,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { allocations: self.sizes.sum(), ..self.counts }
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.counts.live_bytes
    }

    /// In use, those included that were dropped and have not come back.
    pub(super) fn live_blocks(&self) -> u64 {
        self.sizes.sum() - self.counts.frees
    }

    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// All blocks that are kept.
    pub(super) fn each_kept(&self, mut visit: impl FnMut(BlockRef)) {
        let stacks = self.bins.iter().chain(&self.exact.blocks).chain([&self.loose]);
        stacks.flat_map(Stack::iter).for_each(&mut visit);
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
        let block = self.exact.pop(bytes)?;
        self.cached -= bytes;
        Some(block)
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
        let class = block.class.get();
        if class != NO_CLASS {
            self.filled |= 1 << class;
            return self.bins[class as usize].push(block);
        }
        self.exact.push(block, bytes, &mut self.loose);
    }

    /// The large blocks, for the heap.
    pub(super) fn take_large(&mut self) -> Stack {
        let mut taken = self.loose.take();
        self.exact.take(&mut taken);
        let mut large = Stack::default();
        while let Some(block) = taken.pop() {
            self.cached -= block.bytes.get();
            large.push(block);
        }
        large
    }

    /// Small blocks of the classes of which there are enough for a span: nobody knows yet
    /// whether they are of one.
    pub(super) fn take_spans(&mut self) -> Vec<BlockRef> {
        let mut blocks = Vec::new();
        for class in bits(self.filled) {
            let bin = &mut self.bins[class];
            if bin.count() >= classes::span(class as Class).0 {
                blocks.extend(bin.iter());
                bin.take();
            }
        }
        self.cached -= blocks.iter().map(|block| block.bytes.get()).sum::<usize>();
        blocks
    }

    /// The small ones as well.
    pub(super) fn take_all(&mut self) -> Stack {
        let mut all = self.take_large();
        while self.filled != 0 {
            all.append(&mut self.bins[self.filled.trailing_zeros() as usize]);
            self.filled &= self.filled - 1;
        }
        self.cached = 0;
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::block::Arena;

    #[test]
    fn of_one_length_more_than_there_are_places_for_the_oldest_goes() {
        let mut arena = Arena::default();
        let (mut exact, mut rest) = (Exact::default(), Stack::default());
        let mut block_of = |bytes| {
            let block = arena.make();
            block.bytes.set(bytes);
            block
        };
        for bytes in 1..=LENGTHS {
            for _ in 0..3 {
                exact.push(block_of(bytes), bytes, &mut rest);
            }
        }
        assert_eq!(rest.count(), 0);
        exact.push(block_of(100), 100, &mut rest);
        assert_eq!(rest.count(), 3, "all of one length go together");
        let gone = rest.pop().unwrap().bytes.get();
        assert!(exact.pop(gone).is_none());
        for bytes in (1..=LENGTHS).filter(|&bytes| bytes != gone) {
            assert!((0..3).all(|_| exact.pop(bytes).is_some_and(|block| block.bytes.get() == bytes)));
            assert!(exact.pop(bytes).is_none());
        }
        exact.take(&mut rest);
        assert_eq!(rest.count(), 3, "the one of 100");
    }
}
