//! Descriptors of blocks and of free ranges, beside the memory: device memory is
//! never read or written by the pool.
#![allow(unsafe_code)]

use super::census::Place;
use super::classes::Class;
use super::pool::PoolStream;
use super::slab::Slab;
use super::stream::StreamState;
use crate::fence::Fence;
use crate::inbox::Linked;
use std::cell::Cell;
use std::ops::Deref;
use std::ptr::NonNull;

/// The class of blocks that have none.
pub(super) const NO_CLASS: Class = Class::MAX;

/// Who may have a range.
pub(super) type Owner = u32;
/// Nobody's work is before it: any stream may have it.
pub(super) const ANYBODY: Owner = 0;

/// What a range is to the pool's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// In use, in a stream's hands, or waiting for a fence.
    Out,
    /// Free, for the owner's later work.
    Free(Owner),
    /// The end of an area.
    Edge,
    /// Given back to the source.
    Gone,
}

/// A block, or a range that is free.
///
/// Who may touch which cell: `state`, `noted` and the four neighbours only under the pool's
/// lock. All others belong to whoever holds the block: its user, a stream's cache
/// under that cache's lock, or the pool's lock.
pub(super) struct Block {
    pub(super) address: Cell<u64>,
    pub(super) bytes: Cell<usize>,
    pub(super) class: Cell<Class>,
    /// Of a small block.
    pub(super) span: Cell<Option<NonNull<Span>>>,
    /// Where it begins; null while it is no memory.
    pub(super) slab: Cell<*const Slab>,
    /// The stream in whose order it was allocated. Written under that stream's lock.
    pub(super) home: Cell<*const StreamState>,
    /// Bytes asked for; none while it is free. Written under its home's lock.
    pub(super) wanted: Cell<usize>,
    /// Who else uses it.
    pub(super) uses: Cell<Option<Box<Uses>>>,
    /// The next of whatever list it is in.
    pub(super) link: Cell<Option<BlockRef>>,

    pub(super) state: Cell<State>,
    /// Where a census found it, and which census.
    pub(super) noted: Cell<(u32, Place)>,
    /// Neighbours in memory.
    pub(super) before: Cell<Option<BlockRef>>,
    pub(super) after: Cell<Option<BlockRef>>,
    /// Neighbours in a free list.
    pub(super) previous: Cell<Option<BlockRef>>,
    pub(super) next: Cell<Option<BlockRef>>,
}

/// A stream's place and, as that is used again, `cuStreamGetId`.
pub(super) type User = (Owner, u64);

/// Users beside the home stream.
#[derive(Default)]
pub(super) struct Uses {
    /// Of the block's pool.
    pub(super) streams: Vec<User>,
    /// Of other pools.
    pub(super) foreign: Vec<PoolStream>,
    pub(super) fences: Vec<Fence>,
}

/// A range cut into small blocks of one class.
pub(super) struct Span {
    pub(super) range: BlockRef,
    pub(super) blocks: Box<[BlockRef]>,
    /// Under the pool's lock: blocks found free so far.
    pub(super) gathered: Cell<usize>,
}

impl Block {
    fn new() -> Block {
        Block {
            address: Cell::new(0),
            bytes: Cell::new(0),
            class: Cell::new(NO_CLASS),
            span: Cell::new(None),
            slab: Cell::new(std::ptr::null()),
            home: Cell::new(std::ptr::null()),
            wanted: Cell::new(0),
            uses: Cell::new(None),
            link: Cell::new(None),
            state: Cell::new(State::Out),
            noted: Cell::new((0, Place::Moving)),
            before: Cell::new(None),
            after: Cell::new(None),
            previous: Cell::new(None),
            next: Cell::new(None),
        }
    }
}

/// A reference to a descriptor.
///
/// Invariant of the module: it is used only while the pool's core stands, and each
/// cell only by those whom [`Block`] names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockRef(NonNull<Block>);

impl Deref for BlockRef {
    type Target = Block;
    #[inline(always)]
    fn deref(&self) -> &Block {
        // SAFETY: descriptors stand while the core does (the type's invariant).
        unsafe { self.0.as_ref() }
    }
}

// SAFETY: a pointer; who may use what is the type's invariant.
unsafe impl Send for BlockRef {}

impl BlockRef {
    /// Of the block's holder.
    #[inline(always)]
    pub(super) fn is_used_elsewhere(self) -> bool {
        // SAFETY: the cell is the holder's alone (`Block`), and not borrowed elsewhere.
        unsafe { (*self.uses.as_ptr()).is_some() }
    }

    pub(super) fn end(self) -> u64 {
        self.address.get() + self.bytes.get() as u64
    }
}

impl Linked for BlockRef {
    type Node = Block;

    fn into_ptr(self) -> *mut Block {
        self.0.as_ptr()
    }

    unsafe fn from_ptr(block: NonNull<Block>) -> BlockRef {
        BlockRef(block)
    }

    fn next(self) -> Option<BlockRef> {
        self.link.get()
    }

    fn set_next(self, next: Option<BlockRef>) {
        self.link.set(next);
    }
}

/// Blocks linked through their descriptors, newest first.
#[derive(Default)]
pub(super) struct Stack {
    first: Option<BlockRef>,
    count: usize,
}

impl Stack {
    #[inline(always)]
    pub(super) fn push(&mut self, block: BlockRef) {
        block.link.set(self.first);
        self.first = Some(block);
        self.count += 1;
    }

    #[inline(always)]
    pub(super) fn pop(&mut self) -> Option<BlockRef> {
        let block = self.first?;
        self.first = block.link.get();
        self.count -= 1;
        Some(block)
    }

    /// All of `other`, one by one.
    pub(super) fn append(&mut self, other: &mut Stack) {
        while let Some(block) = other.pop() {
            self.push(block);
        }
    }

    pub(super) fn take(&mut self) -> Stack {
        std::mem::take(self)
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = BlockRef> + '_ {
        std::iter::successors(self.first, |block| block.link.get())
    }
}

/// All descriptors of a pool. They never move, and go with the pool.
#[derive(Default)]
pub(super) struct Arena {
    chunks: Vec<Box<[Block]>>,
    spare: Vec<BlockRef>,
}

const CHUNK: usize = 256;

impl Arena {
    pub(super) fn make(&mut self) -> BlockRef {
        if let Some(block) = self.spare.pop() {
            return block;
        }
        let chunk: Box<[Block]> = (0..CHUNK).map(|_| Block::new()).collect();
        self.spare.extend(chunk.iter().map(|block| BlockRef(NonNull::from(block))));
        self.chunks.push(chunk);
        self.make()
    }

    /// Every descriptor, of memory or not.
    pub(super) fn all(&self) -> impl ExactSizeIterator<Item = BlockRef> + '_ {
        let count = self.chunks.len() * CHUNK;
        (0..count).map(|at| BlockRef(NonNull::from(&self.chunks[at / CHUNK][at % CHUNK])))
    }

    /// Nobody refers to it any more.
    pub(super) fn recycle(&mut self, block: BlockRef) {
        block.class.set(NO_CLASS);
        block.span.set(None);
        block.slab.set(std::ptr::null());
        block.uses.set(None);
        block.before.set(None);
        block.after.set(None);
        self.spare.push(block);
    }
}

// SAFETY: the cells are used by one thread at a time, as `Block` says.
unsafe impl Send for Arena {}
