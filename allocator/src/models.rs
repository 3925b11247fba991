//! loom models of what is shared without a lock: the bin, the magazines that are taken
//! away from their thread, and a device pool's latches, its inboxes and the sleep of its worker.
//!
//! loom checks every access to a block's link: two owners at a time, or a link
//! that is read before it is visible, fail the model.
//!
//! Run with `LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom" cargo test --release
//! -p pinyard-allocator --lib models`.
#![cfg(test)]
#![allow(unsafe_code)]

use crate::biased::Biased;
use crate::bin::Bin;
use crate::block::{Arena, Magazine};
use crate::inbox::{Inbox, Linked};
use crate::latch::{Guard, Latch};
use crate::sleep::Sleep;
use crate::sync::{UnsafeCell, heavy_fence};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::ptr::NonNull;

mod retire;

struct Shared {
    arena: Arena,
    bin: Bin,
}

/// A bin with `count` magazines of one block, ids from `Arena::FIRST`, the first on
/// top.
fn shared(count: u32) -> Arc<Shared> {
    let shared = Shared { arena: Arena::new(), bin: Bin::new() };
    let mut placed = 0;
    while placed < count {
        placed += shared.arena.grow().unwrap().len() as u32;
    }
    for offset in (0..count).rev() {
        shared.bin.push(one(&shared.arena, Arena::FIRST + offset));
    }
    Arc::new(shared)
}

fn one(arena: &Arena, id: u32) -> Magazine {
    let mut magazine = Magazine::EMPTY;
    magazine.push(arena.get(id));
    magazine
}

fn drain(shared: &Shared) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        let mut magazine = shared.bin.pop(&shared.arena);
        if magazine.count() == 0 {
            ids.sort_unstable();
            return ids;
        }
        let count = magazine.count();
        let before = ids.len();
        while let Some(block) = magazine.pop() {
            ids.push(block.get().id);
        }
        assert_eq!(ids.len() - before, count as usize, "a magazine's count is its length");
    }
}

/// The ABA case: one thread pops while another takes two and puts the first back.
/// Nothing is owned twice, nothing is lost.
#[test]
fn a_magazine_that_comes_back_does_not_deceive_a_pop() {
    loom::model(|| {
        let shared = shared(3);
        let other = {
            let shared = shared.clone();
            thread::spawn(move || shared.bin.pop(&shared.arena))
        };
        let first = shared.bin.pop(&shared.arena);
        let second = shared.bin.pop(&shared.arena);
        shared.bin.push(first);
        let third = other.join().unwrap();
        shared.bin.push(second);
        shared.bin.push(third);
        assert_eq!(drain(&shared), [Arena::FIRST, Arena::FIRST + 1, Arena::FIRST + 2]);
    });
}

/// Blocks freed by a thread that did not allocate them: the taker sees their links.
///
/// The bin starts with another magazine, so that the taker's exchange, and not only
/// its look at an empty bin, runs before or after the push: loom (0.7) does not try
/// both orders of a load and another thread's load and exchange.
#[test]
fn what_is_pushed_by_one_thread_is_whole_for_another() {
    loom::model(|| {
        let shared = shared(1);
        let freed = shared.arena.grow().unwrap().start;
        let pusher = {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut magazine = one(&shared.arena, freed);
                magazine.push(shared.arena.get(freed + 1));
                shared.bin.push(magazine);
            })
        };
        let mut seen = shared.bin.pop(&shared.arena);
        let mut ids = Vec::new();
        while let Some(block) = seen.pop() {
            ids.push(block.get().id);
        }
        assert!(ids == [Arena::FIRST] || ids == [freed + 1, freed], "{ids:?}");
        pusher.join().unwrap();
        ids.extend(drain(&shared));
        ids.sort_unstable();
        assert_eq!(ids, [Arena::FIRST, freed, freed + 1]);
    });
}

/// A thread uses its magazine while another takes its blocks away, twice.
#[test]
fn a_revoked_magazine_is_used_by_one_thread_at_a_time() {
    loom::model(|| {
        let shared = shared(2);
        let biased = Arc::new(Biased::new(shared.bin.pop(&shared.arena)));
        let owner = {
            let (shared, biased) = (shared.clone(), biased.clone());
            thread::spawn(move || {
                let mut kept = None;
                for _ in 0..2 {
                    // SAFETY: this is the owner; the section pops and pushes.
                    kept = kept.or(unsafe { biased.enter(|magazine| magazine.pop()) }.flatten());
                }
                // SAFETY: as above.
                let put =
                    kept.map(|block| unsafe { biased.enter(|magazine| magazine.push(block)).is_some() });
                if let (Some(block), Some(false)) = (kept, put) {
                    let mut magazine = Magazine::EMPTY;
                    magazine.push(block);
                    shared.bin.push(magazine);
                }
            })
        };
        biased.revoke();
        assert!(heavy_fence());
        biased.wait();
        // SAFETY: revoked, fenced, waited for.
        unsafe { biased.with_revoked(|magazine| shared.bin.push(magazine.take())) };
        biased.restore();
        owner.join().unwrap();
        // SAFETY: the owner is gone and handed its role to this thread.
        if let Some(left) = unsafe { biased.enter(Magazine::take) } {
            shared.bin.push(left);
        }
        assert_eq!(drain(&shared), [Arena::FIRST, Arena::FIRST + 1]);
    });
}

/// As a device pool's block is to its inboxes: loom checks who touches the link.
struct Node {
    id: u32,
    link: UnsafeCell<Option<NodeRef>>,
}

#[derive(Clone, Copy)]
struct NodeRef(NonNull<Node>);

// SAFETY: a pointer; the cell is used by whoever holds it, as loom checks.
unsafe impl Send for NodeRef {}

impl Linked for NodeRef {
    type Node = Node;

    fn into_ptr(self) -> *mut Node {
        self.0.as_ptr()
    }

    unsafe fn from_ptr(node: NonNull<Node>) -> NodeRef {
        NodeRef(node)
    }

    fn next(self) -> Option<NodeRef> {
        // SAFETY: the holder's, and nodes stand until they are freed by `free`.
        unsafe { self.0.as_ref() }.link.with(|link| unsafe { *link })
    }

    fn set_next(self, next: Option<NodeRef>) {
        // SAFETY: as above.
        unsafe { self.0.as_ref() }.link.with_mut(|link| unsafe { *link = next });
    }
}

fn node(id: u32) -> NodeRef {
    NodeRef(NonNull::from(Box::leak(Box::new(Node { id, link: UnsafeCell::new(None) }))))
}

/// Their ids; nobody else has them.
fn free(nodes: Vec<NodeRef>) -> Vec<u32> {
    // SAFETY: made by `node`, taken out of the list, freed once.
    nodes.into_iter().map(|node| unsafe { Box::from_raw(node.into_ptr()) }.id).collect()
}

/// Blocks that two threads drop arrive once each, also while one that was taken is put
/// back, as a block is whose stream is being captured.
#[test]
fn what_is_dropped_arrives_once() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new());
        inbox.push(node(0));
        let droppers = [1, 2].map(|id| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.push(node(id)))
        });
        let mut taken = inbox.take();
        if let Some(back) = taken.pop() {
            inbox.push(back);
        }
        let mut ids = free(taken);
        ids.extend(free(inbox.take()));
        for dropper in droppers {
            dropper.join().unwrap();
        }
        ids.extend(free(inbox.take()));
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2]);
    });
}

/// The worker sleeps, without a timeout, only if nothing was dropped: else loom finds all
/// threads blocked.
#[test]
fn nobody_drops_while_the_worker_falls_asleep() {
    loom::model(|| {
        let shared = Arc::new((Inbox::new(), Sleep::new()));
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (inbox, sleep) = &*shared;
                let mut ids = Vec::new();
                while ids.len() < 2 {
                    ids.extend(free(inbox.take()));
                    if ids.len() < 2 {
                        sleep.announced(|| {
                            if inbox.is_empty() {
                                thread::park();
                            }
                        });
                    }
                }
                ids.sort_unstable();
                ids
            })
        };
        let drop_block = |id, shared: &(Inbox<NodeRef>, Sleep), worker: &thread::Thread| {
            shared.0.push(node(id));
            shared.1.wake(Some(worker));
        };
        let other = {
            let (shared, worker) = (shared.clone(), worker.thread().clone());
            thread::spawn(move || drop_block(1, &shared, &worker))
        };
        drop_block(2, &shared, worker.thread());
        other.join().unwrap();
        assert_eq!(worker.join().unwrap(), [1, 2]);
    });
}

/// A thread that allocates takes what was dropped, marks streams, and only then says that
/// it waits (`Core::settle_dropped`): the worker may have found nothing meanwhile.
#[test]
fn the_worker_learns_of_what_others_took() {
    loom::model(|| {
        let shared = Arc::new((Inbox::new(), Sleep::new(), Mutex::new(Vec::new())));
        shared.0.push(node(1));
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (inbox, sleep, waiting) = &*shared;
                loop {
                    waiting.lock().unwrap().extend(inbox.take());
                    let waits: Vec<NodeRef> = waiting.lock().unwrap().drain(..).collect();
                    if !waits.is_empty() {
                        return free(waits);
                    }
                    sleep.announced(|| {
                        if waiting.lock().unwrap().is_empty() && inbox.is_empty() {
                            thread::park();
                        }
                    });
                }
            })
        };
        let (inbox, sleep, waiting) = &*shared;
        let taken = inbox.take();
        if !taken.is_empty() {
            waiting.lock().unwrap().extend(taken);
            sleep.wake(Some(worker.thread()));
        }
        assert_eq!(worker.join().unwrap(), [1]);
    });
}

/// A latch's value is seen by one at a time, by those who wait for it and by those who go
/// elsewhere; some of these do.
#[test]
fn a_latch_is_held_by_one() {
    let refused = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = refused.clone();
    loom::model(move || {
        let latch = Arc::new(Latch::new(UnsafeCell::new(0)));
        // SAFETY: loom fails the model where another has it.
        let add = |guard: Guard<'_, UnsafeCell<u32>>| guard.with_mut(|value| unsafe { *value += 1 });
        let waits = thread::spawn({
            let latch = latch.clone();
            move || add(latch.lock())
        });
        let mut added = 1;
        match latch.try_lock() {
            Some(guard) => {
                add(guard);
                added += 1;
            }
            None => drop(counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed)),
        }
        add(latch.lock());
        waits.join().unwrap();
        // SAFETY: nobody else is left.
        assert_eq!(latch.lock().with(|value| unsafe { *value }), added + 1);
    });
    assert_ne!(refused.load(std::sync::atomic::Ordering::Relaxed), 0);
}
