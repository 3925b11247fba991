//! loom models of what is shared without a lock: the bin, and the magazines that
//! are taken away from their thread.
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
use crate::sync::heavy_fence;
use loom::sync::Arc;
use loom::thread;

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
