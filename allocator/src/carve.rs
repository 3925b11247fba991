//! From ranges to blocks and back, under the pool's lock: spans are carved for a
//! class, and become ranges again when all their blocks are free.
#![allow(unsafe_code)]

use crate::block::{BlockRef, Magazine, Place};
use crate::classes::{self, CLASSES, Class, OVERSIZE};
use crate::error::AllocError;
use crate::ranges::Bounds;
use crate::shared::{Cold, Core};
use crate::slab::Slab;
use crate::span::{Kind, Span};
use pinyard_hooks::PAGE_SIZE;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What an allocation needs.
#[derive(Clone, Copy)]
pub(crate) enum Want {
    Class(Class),
    /// A span of its own: whole pages, aligned.
    Pages {
        bytes: usize,
        align: usize,
    },
}

impl Want {
    /// Bytes of a range that can hold it.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Want::Class(class) => classes::size_of(class) * classes::span_blocks(class),
            Want::Pages { bytes, .. } => bytes,
        }
    }

    /// Bytes of the block.
    pub(crate) fn block_bytes(self) -> usize {
        match self {
            Want::Class(class) => classes::size_of(class),
            Want::Pages { bytes, .. } => bytes,
        }
    }

    /// Blocks of a span.
    fn blocks(self) -> usize {
        match self {
            Want::Class(class) => classes::span_blocks(class),
            Want::Pages { .. } => 1,
        }
    }

    fn class(self) -> Class {
        match self {
            Want::Class(class) => class,
            Want::Pages { .. } => OVERSIZE,
        }
    }

    fn align(self) -> usize {
        match self {
            Want::Class(_) => PAGE_SIZE,
            Want::Pages { align, .. } => align,
        }
    }
}

/// Marks a span, in `gather`, as seen to be complete.
const COMPLETE: usize = usize::MAX;

impl Core {
    /// Under the lock: a free block, from a bin or carved.
    pub(crate) fn take(
        self: &Arc<Self>,
        cold: &mut Cold,
        want: Want,
    ) -> Result<Option<BlockRef>, AllocError> {
        if let Want::Class(class) = want {
            // Another thread may have carved, or freed, before we had the lock.
            let mut magazine = self.bins.pop(class);
            if let Some(block) = magazine.pop() {
                self.bins.push(class, magazine);
                return Ok(Some(block));
            }
        }
        self.dissolve_oversize(cold);
        self.carve(cold, want)
    }

    /// Under the lock: a new span, one of whose blocks is returned; the others go
    /// to the bin.
    fn carve(self: &Arc<Self>, cold: &mut Cold, want: Want) -> Result<Option<BlockRef>, AllocError> {
        self.make_places(cold, want.blocks())?;
        let Some((start, slab)) = cold.ranges.take(want.bytes(), want.align()) else { return Ok(None) };
        Ok(self.carve_at(cold, want, start, slab))
    }

    /// Under the lock: at least `count` blocks that have no place yet.
    pub(crate) fn make_places(&self, cold: &mut Cold, count: usize) -> Result<(), AllocError> {
        while cold.unplaced.len() < count {
            let ids = self.bins.arena.grow().ok_or(AllocError::TooManyBlocks { ids: u32::MAX })?;
            cold.unplaced.extend(ids.map(|id| self.bins.arena.get(id)));
        }
        Ok(())
    }

    /// The same in a range of `slab` that was taken for it, with as many blocks without a place.
    pub(crate) fn carve_at(
        self: &Arc<Self>,
        cold: &mut Cold,
        want: Want,
        start: usize,
        slab: Bounds,
    ) -> Option<BlockRef> {
        let (class, block_bytes, count) = (want.class(), want.block_bytes(), want.blocks());
        let key = cold.slabs.get(&slab.start).map(Slab::key)?;
        let rounds = if class == OVERSIZE { 0 } else { classes::rounds(class) as u32 };
        let blocks = cold.unplaced.split_off(cold.unplaced.len() - count).into_boxed_slice();
        let span = Box::new(Span {
            // Of the whole Arc: a free makes another owner of it.
            kind: Kind { core: Arc::as_ptr(self), class, rounds, block_bytes, watched: self.watched },
            key,
            slab,
            start,
            blocks,
            gathered: Cell::new(0),
        });
        cold.cut.add(class, block_bytes, count);
        let span = NonNull::from(Box::leak(span));
        // SAFETY: just made; nobody frees it before its blocks are gathered.
        let blocks = unsafe { &span.as_ref().blocks };
        let mut magazine = Magazine::EMPTY;
        for (index, &block) in blocks.iter().enumerate() {
            block.set_place(Place { address: start + index * block_bytes, span });
            if index > 0 {
                self.stow(&mut magazine, class, rounds, block);
            }
        }
        self.bins.push(class, magazine);
        blocks.first().copied()
    }

    /// Adds a block to a magazine that goes to the bin when it is full.
    fn stow(&self, magazine: &mut Magazine, class: Class, rounds: u32, block: BlockRef) {
        magazine.push(block);
        if magazine.count() >= rounds.max(1) {
            self.bins.push(class, magazine.take());
        }
    }

    /// Under the lock: blocks outside every class go back to the ranges.
    pub(crate) fn dissolve_oversize(&self, cold: &mut Cold) {
        if !self.bins.is_empty(OVERSIZE) {
            self.gather(cold, OVERSIZE);
        }
    }

    /// Under the lock: takes the free blocks of `class` out of its bin. Spans whose
    /// blocks are all among them become ranges again; the other blocks go back, or
    /// stay in the lock holder's hands if the pool is closed.
    pub(crate) fn gather(&self, cold: &mut Cold, class: Class) {
        let mut gathered = Vec::new();
        loop {
            let mut magazine = self.bins.pop(class);
            if magazine.count() == 0 {
                break;
            }
            while let Some(block) = magazine.pop() {
                // SAFETY: popped, so ours; the span stands while a block of it is out.
                let span = unsafe { block.place().span.as_ref() };
                span.gathered.set(span.gathered.get() + 1);
                gathered.push(block);
            }
        }
        let mut complete: Vec<NonNull<Span>> = Vec::new();
        let mut magazine = Magazine::EMPTY;
        let closed = self.closed.load(Relaxed);
        for block in gathered {
            let pointer = block.place().span;
            // SAFETY: spans are freed below, after the last block is looked at.
            let span = unsafe { pointer.as_ref() };
            if span.gathered.get() == span.blocks.len() {
                span.gathered.set(COMPLETE);
                complete.push(pointer);
            } else if span.gathered.get() != COMPLETE && !closed {
                span.gathered.set(0);
                self.stow(&mut magazine, class, span.kind.rounds, block);
            }
        }
        self.bins.push(class, magazine);
        for span in complete {
            // SAFETY: made by `carve`; all its blocks are in our hands, none is used
            // again before it has a new place.
            let span = unsafe { Box::from_raw(span.as_ptr()) };
            cold.cut.remove(class, span.kind.block_bytes, span.blocks.len());
            cold.ranges.give(span.start, span.bytes(), span.slab);
            cold.unplaced.extend(span.blocks);
        }
    }

    /// Under the lock: gathers every class, after taking every thread's magazines
    /// if `everyone`.
    pub(crate) fn gather_all(&self, cold: &mut Cold, everyone: bool) {
        if everyone && self.revoke(cold) {
            self.restore(cold);
        }
        for class in 0..=CLASSES as Class {
            if !self.bins.is_empty(class) {
                self.gather(cold, class);
            }
        }
    }
}

impl Cold {
    /// Takes out slabs that are free from end to end: the shortest that has `bytes`, or
    /// the longest until they do. They count as reserved until they are released.
    pub(crate) fn detach_free_slabs(&mut self, bytes: usize) -> Vec<Slab> {
        let whole: Vec<Bounds> = self.ranges.take_whole_slabs(bytes);
        whole.iter().filter_map(|slab| self.slabs.remove(&slab.start)).collect()
    }
}
