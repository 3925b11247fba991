//! Blocks given up whose fences have not passed.
//!
//! Giving one up is one exchange on a list, without a lock. Whoever polls moves
//! the list to a queue and asks a few fences at a time, oldest first, with the
//! queue unlocked: a fence may call a driver, or take long.
//!
//! There are two such lists: the pool's own thread asks only the fences that any
//! thread may ask.
#![allow(unsafe_code)]

use crate::block::BlockRef;
use crate::fence::{Asked, Fence};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

struct Item {
    fence: Fence,
    block: BlockRef,
    bytes: usize,
}

struct Node {
    item: Item,
    next: *mut Node,
}

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// A thread of the program, in a call of the pool; or nobody else is left.
    User,
    /// The pool's thread.
    Pool,
}

#[derive(Default)]
pub(crate) struct Deferred {
    /// Fences that any thread may ask.
    anybodys: Queue,
    users: Queue,
    /// Blocks that came back.
    passed: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// Newest first. Pushed one by one, taken whole: no ABA.
    incoming: AtomicPtr<Node>,
    waiting: Mutex<VecDeque<Item>>,
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl Deferred {
    /// Blocks that wait.
    pub(crate) fn count(&self) -> usize {
        self.count_for(Asker::User)
    }

    /// Of these, the ones whose fences `asker` may ask.
    pub(crate) fn count_for(&self, asker: Asker) -> usize {
        self.queues(asker).map(|queue| queue.count.load(Relaxed)).sum()
    }

    /// Bytes of the blocks that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.queues(Asker::User).map(|queue| queue.bytes.load(Relaxed)).sum()
    }

    /// Changes with each block that comes back, after it has.
    pub(crate) fn passed(&self) -> u64 {
        // Acquire: pairs with the Release in `poll`.
        self.passed.load(Acquire)
    }

    fn queues(&self, asker: Asker) -> impl Iterator<Item = &Queue> {
        let users = (asker == Asker::User).then_some(&self.users);
        std::iter::once(&self.anybodys).chain(users)
    }

    /// Gives up `block`, of `bytes`, until `fence` has passed. Asks nobody, waits for
    /// nobody.
    pub(crate) fn push(&self, fence: Fence, block: BlockRef, bytes: usize) {
        let queue = if fence.any_thread() { &self.anybodys } else { &self.users };
        queue.push(Item { fence, block, bytes });
    }

    /// Asks up to `most` fences of each list, each once, and gives the blocks of those that
    /// have passed to `free`. Returns how many.
    ///
    /// A block whose fence panics is never reused; the others stay.
    pub(crate) fn poll(&self, asker: Asker, most: usize, mut free: impl FnMut(BlockRef)) -> usize {
        let mut passed = 0;
        for queue in self.queues(asker) {
            // As many of each: neither starves behind the other.
            passed += queue.poll(most, |block| {
                free(block);
                // Release: pairs with `passed`; who sees it finds the block.
                self.passed.fetch_add(1, Release);
            });
        }
        passed
    }
}

impl Queue {
    fn push(&self, item: Item) {
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(item.bytes, Relaxed);
        let node = Box::into_raw(Box::new(Node { item, next: self.incoming.load(Relaxed) }));
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

    /// As `Deferred::poll`.
    fn poll(&self, most: usize, mut free: impl FnMut(BlockRef)) -> usize {
        if self.count.load(Relaxed) == 0 {
            return 0;
        }
        self.receive(&mut self.waiting.lock());
        let (mut passed, mut unpassed) = (0, Vec::new());
        for _ in 0..most {
            let next = self.waiting.lock().pop_front();
            let Some(Item { fence, block, bytes }) = next else { break };
            match fence.ask() {
                Asked::Waits(fence) => {
                    unpassed.push(Item { fence, block, bytes });
                    continue;
                }
                Asked::Passed => {
                    free(block);
                    passed += 1;
                }
                Asked::Panicked => {}
            }
            self.count.fetch_sub(1, Relaxed);
            self.bytes.fetch_sub(bytes, Relaxed);
        }
        self.waiting.lock().extend(unpassed);
        passed
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.receive(&mut self.waiting.lock());
    }
}
