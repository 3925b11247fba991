//! Misses, with and without an eviction, and many small buffers.

use super::{Caches, with_ucx};
use crate::peer::{Memory, Ours, Peer, Ucx};
use crate::{Settings, tell};
use pinyard_bench_report::{Axis, Row, Summary, Unit};
use pinyard_benches::turns::{REGION, STRIDE, Turns, or_fail};

const INSERTS: usize = 10_000;

/// Misses in a cache of no limit, and in full ones.
pub(crate) fn run(settings: &Settings) {
    let ucx = with_ucx();
    let caps = settings.up_to(1000, &[100, 1000, 10_000]);
    tell::steps(1 + caps.len());
    tell::step("no limit");
    tell::row(inserts(settings, ucx));
    for cap in caps {
        tell::step(format!("cap {cap}"));
        tell::row(evictions(settings, ucx, cap));
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
fn inserts(settings: &Settings, ucx: bool) -> Row {
    let memory = or_fail(Memory::map((INSERTS + 1000) * STRIDE));
    let (mut ours, mut theirs) = (Turns::new(), Turns::new());
    for _ in 0..settings.slow_turns() {
        insert::<Ours>(&memory, &mut ours);
        if ucx {
            insert::<Ucx>(&memory, &mut theirs);
        }
    }
    let mut row = Row::new("cache.insert", "miss, no limit");
    row.enter(Ours::NAME, ours.summary());
    row.enter(Ucx::NAME, theirs.summary());
    row
}

/// A cache that is full: each get registers and evicts.
fn evictions(settings: &Settings, ucx: bool, cap: usize) -> Row {
    let memory = or_fail(Memory::map(4 * cap * STRIDE));
    let caches = Caches::new(cap, ucx);
    let mut row = Row::new("cache.insert", "miss and evict, as many as there may be").at(Axis::Regions, cap);
    let (mut ours, mut theirs) = (Turns::new(), Turns::new());
    let rounds = (INSERTS / (4 * cap)).max(1);
    // One after the other, so that no region comes again before it was evicted; and a turn
    // long enough that what the other peer left in the processor's caches does not count.
    let run = |peer: &dyn Fn(*mut u8)| {
        let round = || (0..4 * cap).for_each(|number| peer(memory.at(number * STRIDE)));
        (0..rounds).for_each(|_| round());
    };
    for turn in 0..=settings.slow_turns() {
        let timed = |turns: &mut Turns, peer: &dyn Fn(*mut u8)| {
            // The first fills the cache.
            if turn == 0 { run(peer) } else { turns.time(rounds * 4 * cap, || run(peer)) }
        };
        timed(&mut ours, &|at| caches.ours.hit(at, REGION));
        if let Some(peer) = &caches.ucx {
            timed(&mut theirs, &|at| peer.hit(at, REGION));
        }
    }
    row.enter(Ours::NAME, ours.summary());
    row.enter(Ucx::NAME, theirs.summary());
    row
}

/// Many small buffers at a stride, as a column of a matrix: registrations made, and bytes
/// pinned for them.
pub(crate) fn strided() {
    const BUFFERS: usize = 4096;
    const APART: usize = 8 << 10;
    const COARSE: &str = "pinyard, grown to huge pages";
    let memory = or_fail(Memory::map(BUFFERS * APART));
    let caches = Caches::new(2 * BUFFERS, with_ucx());
    let coarse = or_fail(Ours::coarse(2 * BUFFERS));
    let case = format!("{BUFFERS} buffers of 1 KiB, 8 KiB apart");
    for buffer in 0..BUFFERS {
        let at = memory.at(buffer * APART);
        caches.each_ref(|peer| peer.hit(at, 1024), |peer| peer.hit(at, 1024));
        coarse.hit(at, 1024);
    }
    let counted = |count: u64| Some(Summary::counted(count as f64));
    let mut made = Row::new("cache.strided", case.clone()).unit(Unit::Registrations);
    made.enter(Ours::NAME, counted(caches.ours.made()));
    made.enter(COARSE, counted(coarse.made()));
    made.enter(Ucx::NAME, caches.ucx.as_ref().and_then(|peer| counted(peer.made())));
    tell::row(made);
    let mut pinned = Row::new("cache.strided", format!("{case}: pinned")).unit(Unit::Bytes);
    pinned.enter(Ours::NAME, counted(caches.ours.pinned()));
    pinned.enter(COARSE, counted(coarse.pinned()));
    tell::row(pinned);
}
