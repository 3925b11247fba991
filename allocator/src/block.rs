//! Blocks: what is known about each piece of memory, kept beside it.
//!
//! Nothing is ever written into a free block: it may lie in device memory, and a
//! NIC may still be reading it. Blocks live in an arena that only grows while its
//! pool lives, so that a thread that holds a stale reference in a bin's `pop`
//! reads a word that is there.
#![allow(unsafe_code)]

use crate::span::Span;
use crate::sync::{AtomicPtr, AtomicU32, FIRST_SEGMENT, UnsafeCell};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// One block. Every field but `below` belongs to whoever owns the block: a
/// magazine, a caller, or the thread that carves it.
pub(crate) struct Block {
    place: UnsafeCell<Place>,
    link: UnsafeCell<Link>,
    /// In a bin, for the first of a magazine: the id of the magazine below.
    /// Read by threads that do not own the block, hence an atomic.
    pub(crate) below: AtomicU32,
    /// Its own number in the arena.
    pub(crate) id: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: usize,
    pub(crate) span: NonNull<Span>,
}

#[derive(Clone, Copy)]
struct Link {
    /// The next block of the same magazine.
    next: Option<BlockRef>,
    /// In a bin, for the first of a magazine: how many it holds.
    count: u32,
}

/// A reference to a block.
///
/// Invariant of the crate: it is dereferenced only while the arena stands, that
/// is while the pool's core does, and its fields only by the block's owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRef(NonNull<Block>);

// SAFETY: a pointer; who may use it when is the invariant above.
unsafe impl Send for BlockRef {}

impl BlockRef {
    #[inline(always)]
    pub(crate) fn get(&self) -> &Block {
        // SAFETY: the arena stands (the type's invariant).
        unsafe { self.0.as_ref() }
    }

    /// Where it is. By the owner.
    #[inline(always)]
    pub(crate) fn place(self) -> Place {
        // SAFETY: only the owner reads or writes it (the type's invariant).
        self.get().place.with(|place| unsafe { *place })
    }

    /// Puts it somewhere. By the owner.
    pub(crate) fn set_place(self, place: Place) {
        // SAFETY: as in `place`.
        self.get().place.with_mut(|old| unsafe { *old = place });
    }

    #[inline(always)]
    fn link(self) -> Link {
        // SAFETY: only the owner reads or writes it (the type's invariant).
        self.get().link.with(|link| unsafe { *link })
    }

    #[inline(always)]
    fn set_link(self, link: Link) {
        // SAFETY: as in `link`.
        self.get().link.with_mut(|old| unsafe { *old = link });
    }
}

/// Free blocks of one class: a stack linked through the blocks' descriptors.
pub(crate) struct Magazine {
    first: Option<BlockRef>,
    count: u32,
}

impl Magazine {
    pub(crate) const EMPTY: Magazine = Magazine { first: None, count: 0 };

    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, block: BlockRef) {
        block.set_link(Link { next: self.first, count: 0 });
        self.first = Some(block);
        self.count += 1;
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<BlockRef> {
        let block = self.first?;
        self.first = block.link().next;
        self.count -= 1;
        Some(block)
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Magazine {
        std::mem::replace(self, Magazine::EMPTY)
    }

    /// Leaves the count with the first block, for [`unpack`](Self::unpack).
    pub(crate) fn pack(self) -> Option<BlockRef> {
        let first = self.first?;
        first.set_link(Link { next: first.link().next, count: self.count });
        Some(first)
    }

    /// The magazine that `pack` took apart.
    pub(crate) fn unpack(first: BlockRef) -> Magazine {
        Magazine { first: Some(first), count: first.link().count }
    }
}

/// Number of segments: ids are 32 bits.
const SEGMENTS: usize = (32 - FIRST_SEGMENT) as usize;

/// All blocks of a pool, by id. Segments double in length and never move.
pub(crate) struct Arena {
    segments: [AtomicPtr<Block>; SEGMENTS],
}

impl Arena {
    /// The id that stands for no block.
    pub(crate) const NONE: u32 = 0;
    /// The first id, one bit at the place of the first segment's length.
    pub(crate) const FIRST: u32 = 1 << FIRST_SEGMENT;

    pub(crate) fn new() -> Arena {
        Arena { segments: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())) }
    }

    /// The block of an `id` that `grow` gave.
    #[inline]
    pub(crate) fn get(&self, id: u32) -> BlockRef {
        let doubling = id.ilog2();
        // Acquire: pairs with the Release in `grow`.
        let segment = self.segments[(doubling - FIRST_SEGMENT) as usize].load(Acquire);
        // SAFETY: `grow` stored a segment of 2^doubling blocks here before it gave
        // out the id, whose lower bits are below 2^doubling.
        let block = unsafe { segment.add((id - (1 << doubling)) as usize) };
        // SAFETY: an element of a segment is not null.
        BlockRef(unsafe { NonNull::new_unchecked(block) })
    }

    /// Adds the next segment and returns its ids; `None` when all ids are used.
    /// Callers are serialised.
    pub(crate) fn grow(&self) -> Option<std::ops::Range<u32>> {
        // Relaxed: only callers of this function store, and they are serialised.
        let at = self.segments.iter().position(|segment| segment.load(Relaxed).is_null())?;
        let first = Self::FIRST << at;
        let ids = first..first.checked_mul(2)?;
        let blocks: Box<[Block]> = ids
            .clone()
            .map(|id| Block {
                place: UnsafeCell::new(Place { address: 0, span: NonNull::dangling() }),
                link: UnsafeCell::new(Link { next: None, count: 0 }),
                below: AtomicU32::new(Self::NONE),
                id,
            })
            .collect();
        // Release: pairs with the Acquire in `get`.
        self.segments[at].store(Box::into_raw(blocks).cast(), Release);
        Some(ids)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (at, segment) in self.segments.iter().enumerate() {
            let blocks = segment.load(Relaxed);
            if !blocks.is_null() {
                let length = (Self::FIRST as usize) << at;
                // SAFETY: made by `grow` from a box of this length; nobody refers to
                // blocks any more (BlockRef's invariant).
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(blocks, length)) });
            }
        }
    }
}

// SAFETY: the cells of a block are used by its owner alone.
unsafe impl Send for Arena {}
// SAFETY: as above; the segments are atomics.
unsafe impl Sync for Arena {}
