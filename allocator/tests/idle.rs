//! The thread of a host pool, in a process of its own: whatever else runs would be counted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
mod resting;

use common::{Books, builder, wait_for};
use pinyard_allocator::AtomicFence;
use resting::Thread;

/// mlx#4451, for host pools: no deferred block, no instruction.
#[test]
fn the_thread_of_a_pool_uses_no_cpu_while_nothing_is_deferred() {
    let thread = || Thread::all("pinyard-fences").pop();
    let pool = builder(&Books::new(), 64 << 20).build().unwrap();
    assert_eq!(thread(), None, "a pool without a slab needs no thread");
    let word = AtomicFence::new();
    pool.alloc::<u8>(1000).unwrap().defer_until(word.at(1));
    wait_for("looks at the fence", || thread().is_some_and(|thread| thread.sleeps() > 5));
    let worker = thread().unwrap();
    word.signal(1);
    wait_for("the block's return", || pool.stats().deferred_blocks == 0);
    wait_for("sleep", || worker.sleeps_for_good());
    let before = worker.sleeps();
    for _ in 0..1000 {
        drop(pool.alloc::<u8>(1000).unwrap());
    }
    assert!(worker.sleeps_for_good() && worker.sleeps() == before, "it woke without a reason");
    drop(pool);
    wait_for("the thread's end", || thread().is_none());
}
