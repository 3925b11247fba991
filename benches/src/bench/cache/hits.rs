//! Hits, by one thread and by several.

use super::{Caches, Present, fill};
use crate::peer::{Cache, Libfabric, Memory, Ours, Peer, Ucx};
use crate::{Settings, tell};
use pinyard_benches::turns::{REGION, STRIDE, Turns, fail, keep_to_processor, or_fail, sequence};
use pinyard_cli::bench::{Axis, Row};
use std::sync::Barrier;

/// Hits and lookups among 1 to 100,000 regions.
pub(crate) fn run(settings: &Settings) {
    let present = Present::find();
    let (threads, regions) = (settings.thread_counts(), settings.up_to(10_000, &[1, 100, 10_000, 100_000]));
    tell::steps(threads.len() * regions.len());
    for &threads in &threads {
        for &regions in &regions {
            tell::step(format!("{threads} threads, {regions} regions"));
            rows(settings, present, threads, regions).into_iter().for_each(tell::row);
        }
    }
}

/// What all threads of a measurement have in common.
struct Together<'m> {
    memory: &'m Memory,
    operations: usize,
    barrier: Barrier,
}

impl Together<'_> {
    /// A turn of all threads at once, on each region of `order`, round and round. A round that
    /// does not count comes first, as the turns before were others', which left their own
    /// memory in the processor's caches.
    fn turn(&self, turns: &mut Turns, order: &[u32], operation: impl Fn(*mut u8)) {
        let each = |operations| {
            for step in 0..operations {
                operation(self.memory.at(order[step & (order.len() - 1)] as usize * STRIDE));
            }
        };
        self.barrier.wait();
        each(order.len());
        self.barrier.wait();
        turns.time(self.operations, || each(self.operations));
    }
}

/// Of ours, UCX, libfabric, and our lookup.
fn turns() -> [Turns; 4] {
    std::array::from_fn(|_| Turns::new())
}

/// Hits of `threads`, each on its own random sequence.
fn rows(settings: &Settings, present: Present, threads: usize, regions: usize) -> [Row; 2] {
    let memory = or_fail(Memory::map(regions * STRIDE));
    let caches = Caches::new(regions + 64, present);
    caches.each().for_each(|(_, cache)| fill(cache, &memory, regions));
    let together =
        Together { memory: &memory, operations: settings.operations(), barrier: Barrier::new(threads) };
    let work = |thread: usize| {
        keep_to_processor(thread);
        let order = sequence(regions, 77 + thread as u64);
        let mut turns = turns();
        let [ours, ucx, libfabric, lookup] = &mut turns;
        for _ in 0..settings.turns(threads) {
            together.turn(ours, &order, |at| caches.ours.hit(at, REGION));
            if let Some(peer) = &caches.ucx {
                together.turn(ucx, &order, |at| peer.hit(at, REGION));
            }
            if let Some(peer) = &caches.libfabric {
                together.turn(libfabric, &order, |at| peer.hit(at, REGION));
            }
            together.turn(lookup, &order, |at| caches.ours.lookup(at, REGION));
        }
        turns
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    for (name, cache) in caches.each() {
        if cache.made() != regions as u64 {
            fail(&format!(
                "{name} registered {} times for {regions} regions: not all were hits",
                cache.made()
            ));
        }
    }
    let mut sums = turns();
    for turns in &results {
        sums.iter_mut().zip(turns).for_each(|(sum, turns)| sum.merge(turns));
    }
    let [ours, ucx, libfabric, lookup] = sums;
    let mut rows = ["get and release", "lookup, no reference"]
        .map(|case| Row::new("cache.hit", case).threads(threads).at(Axis::Regions, regions));
    rows[0].enter(Ours::NAME, ours.summary());
    rows[1].enter(Ours::NAME, lookup.summary());
    // The peers have no lookup of their own: their hits stand beside it.
    for row in &mut rows {
        row.enter(Ucx::NAME, ucx.summary());
        row.enter(Libfabric::NAME, libfabric.summary());
    }
    rows
}
