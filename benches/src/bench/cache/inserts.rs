//! Misses, with and without an eviction, and many small buffers.

use super::{Caches, Present};
use crate::peer::libfabric::{self, Monitor};
use crate::peer::{Cache, Libfabric, Memory, Ours, Peer, Ucx};
use crate::{Settings, tell};
use pinyard_benches::turns::{REGION, STRIDE, Turns, fail, involuntary_switches, or_fail};
use pinyard_benches::worker::{Worker, answer};
use pinyard_cli::bench::{Axis, Row, Summary, Unit};
use std::time::Instant;

const INSERTS: usize = 10_000;

/// Misses in a cache of no limit, and in full ones.
pub(crate) fn run(settings: &Settings) {
    let present = Present::find();
    let caps = settings.up_to(1000, &[100, 1000, 10_000]);
    tell::steps(1 + caps.len());
    tell::step("no limit");
    tell::row(inserts(settings, present));
    for cap in caps {
        tell::step(format!("cap {cap}"));
        tell::row(evictions(settings, present, cap));
    }
}

fn insert<P: Peer>(memory: &Memory, turns: &mut Turns) {
    let peer: P = or_fail(P::new(INSERTS + 2000));
    let hit = |number: usize| peer.hit(memory.at(number * STRIDE), REGION);
    // The first ones pay for the cache's own memory.
    (0..1000).for_each(hit);
    turns.time(INSERTS, || (1000..1000 + INSERTS).for_each(hit));
}

/// New regions in a cache of no limit.
fn inserts(settings: &Settings, present: Present) -> Row {
    let memory = or_fail(Memory::map((INSERTS + 1000) * STRIDE));
    let [mut ours, mut ucx, mut libfabric] = [Turns::new(), Turns::new(), Turns::new()];
    for _ in 0..settings.slow_turns() {
        insert::<Ours>(&memory, &mut ours);
        if present.ucx {
            insert::<Ucx>(&memory, &mut ucx);
        }
        if present.libfabric {
            insert::<Libfabric>(&memory, &mut libfabric);
        }
    }
    let mut row = Row::new("cache.insert", "miss, no limit");
    row.enter(Ours::NAME, ours.summary());
    row.enter(Ucx::NAME, ucx.summary());
    row.enter(Libfabric::NAME, libfabric.summary());
    row
}

/// As many gets as a turn has in a cache of `cap` regions, of 4 times as many, one after the
/// other, so that none comes again before it was evicted; and a turn long enough that what
/// the others left in the processor's caches does not count. Returns how many.
fn evict(cache: &impl Cache, memory: &Memory, cap: usize) -> usize {
    let (rounds, before) = ((INSERTS / (4 * cap)).max(1), cache.made());
    let round = || (0..4 * cap).for_each(|number| cache.hit(memory.at(number * STRIDE), REGION));
    (0..rounds).for_each(|_| round());
    let (count, made) = (rounds * 4 * cap, cache.made() - before);
    if made != count as u64 {
        fail(&format!("{made} registrations in {count} gets of a full cache of {cap} regions"));
    }
    count
}

/// A cache that is full: each get registers and evicts. libfabric's limit is one for a
/// process, so its caches have one each, which lives beside this one.
fn evictions(settings: &Settings, present: Present, cap: usize) -> Row {
    let memory = or_fail(Memory::map(4 * cap * STRIDE));
    let caches = Caches::new(cap, Present { libfabric: false, ..present });
    let mut libfabric = present.libfabric.then(|| {
        Worker::<2>::start(
            &["cache.insert", "--child", Libfabric::NAME, "--regions", &cap.to_string()],
            |_| {},
        )
    });
    // The first turn fills the caches.
    evict(&caches.ours, &memory, cap);
    caches.ucx.iter().for_each(|cache| _ = evict(cache, &memory, cap));
    libfabric.iter_mut().for_each(Worker::warm_up);
    let [mut ours, mut ucx] = [Turns::new(), Turns::new()];
    for _ in 0..settings.slow_turns() {
        ours.time_counted(|| evict(&caches.ours, &memory, cap));
        caches.ucx.iter().for_each(|cache| ucx.time_counted(|| evict(cache, &memory, cap)));
        libfabric.iter_mut().for_each(Worker::turn);
    }
    let mut row = Row::new("cache.insert", "miss and evict, as many as there may be").at(Axis::Regions, cap);
    row.enter(Ours::NAME, ours.summary());
    row.enter(Ucx::NAME, ucx.summary());
    if let Some(worker) = libfabric {
        let ([times, switches], mut turns) = (worker.end(), Turns::new());
        times.into_iter().zip(switches).for_each(|(time, switches)| turns.add(time, 1, switches > 0.0));
        row.enter(Libfabric::NAME, turns.summary());
    }
    row
}

/// A child: libfabric's cache of `cap` regions. Nanoseconds of a miss, and how often the
/// scheduler took the processor away.
pub(crate) fn child(cap: usize) {
    or_fail(libfabric::load(cap, Monitor::Memhooks));
    let (memory, cache) = (or_fail(Memory::map(4 * cap * STRIDE)), or_fail(Libfabric::new(cap)));
    answer::<2>(|| {
        let (switches, began) = (involuntary_switches(), Instant::now());
        let count = evict(&cache, &memory, cap);
        [began.elapsed().as_nanos() as f64 / count as f64, (involuntary_switches() - switches) as f64]
    });
}

/// Many small buffers at a stride, as a column of a matrix: registrations made, and bytes
/// pinned for them.
pub(crate) fn strided() {
    const BUFFERS: usize = 4096;
    const APART: usize = 8 << 10;
    const COARSE: &str = "pinyard, grown to huge pages";
    let memory = or_fail(Memory::map(BUFFERS * APART));
    let caches = Caches::new(2 * BUFFERS, Present::find());
    let coarse = or_fail(Ours::coarse(2 * BUFFERS));
    let case = format!("{BUFFERS} buffers of 1 KiB, 8 KiB apart");
    for buffer in 0..BUFFERS {
        let at = memory.at(buffer * APART);
        caches.each().for_each(|(_, cache)| cache.hit(at, 1024));
        coarse.hit(at, 1024);
    }
    let counted = |count: u64| Some(Summary::counted(count as f64));
    let mut made = Row::new("cache.strided", case.clone()).unit(Unit::Registrations);
    caches.each().for_each(|(name, cache)| made.enter(name, counted(cache.made())));
    made.enter(COARSE, counted(coarse.made()));
    tell::row(made);
    let mut pinned = Row::new("cache.strided", format!("{case}: pinned")).unit(Unit::Bytes);
    pinned.enter(Ours::NAME, counted(caches.ours.pinned()));
    pinned.enter(COARSE, counted(coarse.pinned()));
    tell::row(pinned);
}
