//! The thread of a host pool, in a process of its own: whatever else runs would be counted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Books, builder, wait_for};
use pinyard_allocator::AtomicFence;
use std::fs;
use std::time::Duration;

/// How often the pool's thread has gone to sleep; `None` if there is none.
fn sleeps() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let of_pool = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "pinyard-fences")
    };
    let status = fs::read_to_string(tasks.into_iter().find(of_pool)?.join("status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// mlx#4451, for host pools: no deferred block, no instruction.
#[test]
fn the_thread_of_a_pool_uses_no_cpu_while_nothing_is_deferred() {
    let pool = builder(&Books::new(), 64 << 20).build().unwrap();
    assert_eq!(sleeps(), None, "a pool without a slab needs no thread");
    let word = AtomicFence::new();
    pool.alloc::<u8>(1000).unwrap().defer_until(word.at(1));
    wait_for("looks at the fence", || sleeps().is_some_and(|count| count > 5));
    word.signal(1);
    wait_for("the block's return", || pool.stats().deferred_blocks == 0);
    // It may be on its way to sleep; then it stays asleep.
    wait_for("100 ms without a wake-up", || {
        let before = sleeps();
        for _ in 0..1000 {
            drop(pool.alloc::<u8>(1000).unwrap());
        }
        std::thread::sleep(Duration::from_millis(100));
        before == sleeps()
    });
    drop(pool);
    wait_for("the thread's end", || sleeps().is_none());
}
