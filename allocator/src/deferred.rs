//! Blocks given up whose fences have not passed.
//!
//! Giving one up is one exchange on a list, without a lock. Whoever polls moves
//! the list to a queue and asks a few fences at a time, oldest first, with the
//! queue unlocked: a fence may call a driver, or take long.
#![allow(unsafe_code)]

use crate::block::BlockRef;
use crate::fence::Fence;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

struct Item {
    fence: Fence,
    block: BlockRef,
}

struct Node {
    item: Item,
    next: *mut Node,
}

pub(crate) struct Deferred {
    /// Newest first. Pushed one by one, taken whole: no ABA.
    incoming: AtomicPtr<Node>,
    waiting: Mutex<VecDeque<Item>>,
    count: AtomicUsize,
}

impl Deferred {
    pub(crate) fn new() -> Deferred {
        Deferred {
            incoming: AtomicPtr::new(std::ptr::null_mut()),
            waiting: Mutex::new(VecDeque::new()),
            count: AtomicUsize::new(0),
        }
    }

    /// Blocks that wait.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Gives up `block` until `fence` has passed. Asks nobody, waits for nobody.
    pub(crate) fn push(&self, fence: Fence, block: BlockRef) {
        self.count.fetch_add(1, Relaxed);
        let node =
            Box::into_raw(Box::new(Node { item: Item { fence, block }, next: self.incoming.load(Relaxed) }));
        // SAFETY: the node is ours until the exchange succeeds.
        let next = unsafe { &mut (*node).next };
        // Release: pairs with the Acquire in `receive`.
        while let Err(now) = self.incoming.compare_exchange_weak(*next, node, Release, Relaxed) {
            *next = now;
        }
    }

    /// Moves the list to the end of the queue, oldest first.
    fn receive(&self, waiting: &mut VecDeque<Item>) {
        // Acquire: pairs with `push`.
        let mut node = self.incoming.swap(std::ptr::null_mut(), Acquire);
        let mut newest_first = Vec::new();
        while !node.is_null() {
            // SAFETY: taken out of the list by the swap, so ours; made by `push`.
            let Node { item, next } = *unsafe { Box::from_raw(node) };
            newest_first.push(item);
            node = next;
        }
        waiting.extend(newest_first.into_iter().rev());
    }

    /// Asks up to `most` fences, each once, and gives the blocks of those that
    /// have passed to `free`. Returns how many.
    ///
    /// A block whose fence panics is never reused; the others stay.
    pub(crate) fn poll(&self, most: usize, mut free: impl FnMut(BlockRef)) -> usize {
        if self.count() == 0 {
            return 0;
        }
        let mut round = Round { deferred: self, unpassed: Vec::new() };
        self.receive(&mut self.waiting.lock());
        let mut passed = 0;
        for _ in 0..most {
            let next = self.waiting.lock().pop_front();
            let Some(mut item) = next else { break };
            if item.fence.passed() {
                drop(item.fence);
                free(item.block);
                self.count.fetch_sub(1, Relaxed);
                passed += 1;
            } else {
                round.unpassed.push(item);
            }
        }
        passed
    }
}

/// Puts back what a round has asked in vain, also when a fence panics.
struct Round<'a> {
    deferred: &'a Deferred,
    unpassed: Vec<Item>,
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        self.deferred.waiting.lock().extend(self.unpassed.drain(..));
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        self.receive(&mut self.waiting.lock());
    }
}
