//! A bin: the full magazines of one class that any thread may push and pop.
//!
//! A Treiber stack of magazines. The head word holds the id of the topmost
//! magazine's first block and a count of changes: a `pop` that slept while the
//! same magazine left and came back fails, instead of installing a `below` that
//! is no longer below (the ABA problem). The count has 32 bits: a thread would
//! have to sleep through exactly 2^32 changes of one bin to be deceived.

use crate::block::{Arena, Magazine};
use crate::sync::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

pub(crate) struct Bin {
    /// Changes in the upper half, id of the topmost block in the lower.
    head: AtomicU64,
}

fn id(head: u64) -> u32 {
    head as u32
}

fn changed(head: u64, id: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | u64::from(id)
}

impl Bin {
    pub(crate) fn new() -> Bin {
        Bin { head: AtomicU64::new(u64::from(Arena::NONE)) }
    }

    /// Puts a magazine on top. An empty one is nothing.
    pub(crate) fn push(&self, magazine: Magazine) {
        let Some(first) = magazine.pack() else { return };
        let first = first.get();
        let mut head = self.head.load(Relaxed);
        loop {
            // Relaxed: published by the exchange.
            first.below.store(id(head), Relaxed);
            // Release: pairs with the Acquire in `pop`; the taker sees the links.
            match self.head.compare_exchange_weak(head, changed(head, first.id), AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the topmost magazine; an empty one if there is none.
    pub(crate) fn pop(&self, arena: &Arena) -> Magazine {
        // Acquire: pairs with `push`; `below` is at least as new as the head.
        let mut head = self.head.load(Acquire);
        while id(head) != Arena::NONE {
            let first = arena.get(id(head));
            // Another thread may own the block by now and write this word; then
            // the count has changed and the exchange fails.
            let below = first.get().below.load(Relaxed);
            match self.head.compare_exchange_weak(head, changed(head, below), AcqRel, Acquire) {
                Ok(_) => return Magazine::unpack(first),
                Err(now) => head = now,
            }
        }
        Magazine::EMPTY
    }

    pub(crate) fn is_empty(&self) -> bool {
        id(self.head.load(Acquire)) == Arena::NONE
    }
}
