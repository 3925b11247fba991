//! Hits, by one thread and by several.

use super::{Caches, fill, with_ucx};
use crate::peer::{Memory, Ours, Peer, Ucx};
use crate::{Settings, tell};
use pinyard_bench_report::{Axis, Row};
use pinyard_benches::turns::{REGION, STRIDE, Turns, or_fail, sequence};
use std::sync::Barrier;

/// Hits and lookups among 1 to 100,000 regions.
pub(crate) fn run(settings: &Settings) {
    let ucx = with_ucx();
    let (threads, regions) = (settings.thread_counts(), settings.up_to(10_000, &[1, 100, 10_000, 100_000]));
    tell::steps(threads.len() * regions.len());
    for &threads in &threads {
        for &regions in &regions {
            tell::step(format!("{threads} threads, {regions} regions"));
            rows(settings, ucx, threads, regions).into_iter().for_each(tell::row);
        }
    }
}

/// One operation on each region of `order`, round and round.
fn each(order: &[u32], operations: usize, memory: &Memory, mut operation: impl FnMut(*mut u8)) {
    for step in 0..operations {
        operation(memory.at(order[step & (order.len() - 1)] as usize * STRIDE));
    }
}

/// Hits of `threads`, each on its own random sequence.
fn rows(settings: &Settings, ucx: bool, threads: usize, regions: usize) -> [Row; 2] {
    let memory = or_fail(Memory::map(regions * STRIDE));
    let caches = Caches::new(regions + 64, ucx);
    caches.each_ref(|peer| fill(peer, &memory, regions), |peer| fill(peer, &memory, regions));
    let barrier = Barrier::new(threads);
    let operations = settings.operations();
    let work = |thread: usize| {
        let order = sequence(regions, 77 + thread as u64);
        let mut turns = [Turns::new(), Turns::new(), Turns::new()];
        let [ours, theirs, lookup] = &mut turns;
        for _ in 0..settings.turns(threads) {
            barrier.wait();
            ours.time(operations, || each(&order, operations, &memory, |at| caches.ours.hit(at, REGION)));
            if let Some(peer) = &caches.ucx {
                barrier.wait();
                theirs.time(operations, || each(&order, operations, &memory, |at| peer.hit(at, REGION)));
            }
            barrier.wait();
            lookup
                .time(operations, || each(&order, operations, &memory, |at| caches.ours.lookup(at, REGION)));
        }
        turns
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let mut sums = [Turns::new(), Turns::new(), Turns::new()];
    for turns in &results {
        sums.iter_mut().zip(turns).for_each(|(sum, turns)| sum.merge(turns));
    }
    let mut rows = ["get and release", "lookup, no reference"]
        .map(|case| Row::new("cache.hit", case).threads(threads).at(Axis::Regions, regions));
    rows[0].enter(Ours::NAME, sums[0].summary());
    rows[1].enter(Ours::NAME, sums[2].summary());
    // UCX has no lookup of its own: its hit stands beside it.
    rows.iter_mut().for_each(|row| row.enter(Ucx::NAME, sums[1].summary()));
    rows
}
