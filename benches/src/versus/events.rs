//! Events with many of them waiting, the first get afterwards, inserts and evictions.

use crate::peer::{Memory, Ours, Peer, Ucx};
use crate::rows::{REGION, Row, STRIDE, Turns, or_fail};
use crate::{Caches, Options};

/// Events timed in a turn, of regions of their own each.
const TIMED: usize = 64;
const ELSEWHERE: usize = 1000;
const INSERTS: usize = 10_000;

/// An event's cost with `pending` others announced and nobody having looked.
struct Events {
    elsewhere: Turns,
    registered: Turns,
    /// The get that comes first after all of them, of a region that stands.
    first_hit: Turns,
    /// The same, of a region that is gone.
    first_miss: Turns,
}

impl Events {
    fn new() -> Events {
        Events {
            elsewhere: Turns::new(),
            registered: Turns::new(),
            first_hit: Turns::new(),
            first_miss: Turns::new(),
        }
    }

    fn turn(
        &mut self,
        peer: &impl Peer,
        [regions, empty, hot]: [&Memory; 3],
        pending: usize,
        miss_first: bool,
    ) {
        let region = |number: usize| regions.at(number * STRIDE);
        (0..pending + TIMED).for_each(|number| peer.hit(region(number), REGION));
        // Twice, as another region's miss may have been what waited.
        (0..2).for_each(|_| peer.hit(hot.at(0), REGION));
        (TIMED..TIMED + pending).for_each(|number| peer.event(region(number), REGION));
        self.elsewhere.time(ELSEWHERE, || {
            (0..ELSEWHERE).for_each(|number| peer.event(empty.at(number * STRIDE), REGION));
        });
        self.registered.time(TIMED, || {
            (0..TIMED).for_each(|number| peer.event(region(number), REGION));
        });
        // One comes first, so the two take turns.
        if miss_first {
            self.first_miss.time(1, || peer.hit(region(0), REGION));
        } else {
            self.first_hit.time(1, || peer.hit(hot.at(0), REGION));
        }
    }
}

pub(crate) fn rows(options: &Options, ucx: bool, pending: usize) -> Vec<Row> {
    let regions = or_fail(Memory::map((pending + TIMED) * STRIDE));
    // Far enough away that no coarse filter takes them for neighbours.
    let _gap = or_fail(Memory::map(1 << 36));
    let empty = or_fail(Memory::map(ELSEWHERE * STRIDE));
    let _gap = or_fail(Memory::map(1 << 36));
    let hot = or_fail(Memory::map(STRIDE));
    let caches = Caches::new(pending + TIMED + 64, ucx);
    let (mut ours, mut theirs) = (Events::new(), Events::new());
    let turns = if pending > 20_000 { options.slow_turns } else { 4 * options.slow_turns };
    for turn in 0..turns {
        let miss_first = turn % 2 == 1;
        ours.turn(&caches.ours, [&regions, &empty, &hot], pending, miss_first);
        if let Some(peer) = &caches.ucx {
            theirs.turn(peer, [&regions, &empty, &hot], pending, miss_first);
        }
    }
    let mut rows = vec![
        Row::new("event", format!("nothing registered there, {pending} pending"), pending + TIMED),
        Row::new("event", format!("registered, {pending} pending"), pending + TIMED),
        Row::new("first get", format!("a hit, after {} invalidations", pending + TIMED), pending + TIMED),
        Row::new("first get", format!("a miss, after {} invalidations", pending + TIMED), pending + TIMED),
    ];
    let mut enter = |name, events: &Events| {
        let turns = [&events.elsewhere, &events.registered, &events.first_hit, &events.first_miss];
        rows.iter_mut().zip(turns).for_each(|(row, turns)| row.enter(name, turns));
    };
    enter(Ours::NAME, &ours);
    if ucx {
        enter("UCX", &theirs);
    }
    rows
}

fn insert<P: Peer>(memory: &Memory, turns: &mut Turns) {
    let peer: P = or_fail(P::new(INSERTS + 2000));
    let hit = |number: usize| peer.hit(memory.at(number * STRIDE), REGION);
    // The first ones pay for the cache's own memory.
    (0..1000).for_each(hit);
    turns.time(INSERTS, || (1000..1000 + INSERTS).for_each(hit));
}

/// New regions in a cache of no limit.
pub(crate) fn inserts(options: &Options, ucx: bool) -> Row {
    let memory = or_fail(Memory::map((INSERTS + 1000) * STRIDE));
    let (mut ours, mut theirs) = (Turns::new(), Turns::new());
    for _ in 0..options.slow_turns {
        insert::<Ours>(&memory, &mut ours);
        if ucx {
            insert::<Ucx>(&memory, &mut theirs);
        }
    }
    let mut row = Row::new("insert", "miss, no limit", INSERTS);
    row.enter(Ours::NAME, &ours);
    if ucx {
        row.enter("UCX", &theirs);
    }
    row
}

/// A cache that is full: each get registers and evicts.
pub(crate) fn evictions(options: &Options, ucx: bool, cap: usize) -> Row {
    let memory = or_fail(Memory::map(4 * cap * STRIDE));
    let caches = Caches::new(cap, ucx);
    let mut row = Row::new("insert", format!("miss and evict, cap {cap}"), cap);
    let (mut ours, mut theirs) = (Turns::new(), Turns::new());
    // One after the other, so that no region comes again before it was evicted.
    let run = |peer: &dyn Fn(*mut u8)| {
        (0..4 * cap).for_each(|number| peer(memory.at(number * STRIDE)));
    };
    for turn in 0..=options.slow_turns {
        let timed = |turns: &mut Turns, peer: &dyn Fn(*mut u8)| {
            // The first fills the cache.
            if turn == 0 { run(peer) } else { turns.time(4 * cap, || run(peer)) }
        };
        timed(&mut ours, &|at| caches.ours.hit(at, REGION));
        if let Some(peer) = &caches.ucx {
            timed(&mut theirs, &|at| peer.hit(at, REGION));
        }
    }
    row.enter(Ours::NAME, &ours);
    if ucx {
        row.enter("UCX", &theirs);
    }
    row
}

/// Many small buffers at a stride, as a column of a matrix: registrations made.
pub(crate) fn strided(ucx: bool) -> Row {
    const BUFFERS: usize = 4096;
    const APART: usize = 8 << 10;
    let memory = or_fail(Memory::map(BUFFERS * APART));
    let caches = Caches::new(2 * BUFFERS, ucx);
    let case = format!("{BUFFERS} buffers of 1 KiB, 8 KiB apart");
    let mut row = Row::new("strided", case, BUFFERS).unit("registrations");
    for buffer in 0..BUFFERS {
        let at = memory.at(buffer * APART);
        caches.each_ref(|peer| peer.hit(at, 1024), |peer| peer.hit(at, 1024));
    }
    row.enter_count(Ours::NAME, caches.ours.made() as f64);
    if let Some(peer) = &caches.ucx {
        row.enter_count(Ucx::NAME, peer.made() as f64);
    }
    row
}
