//! Events with many of them waiting, and the first get afterwards.

use super::{Caches, Present};
use crate::peer::{Libfabric, Memory, Ours, Peer, Ucx};
use crate::{Settings, tell};
use pinyard_benches::turns::{REGION, STRIDE, Turns, fail, or_fail};
use pinyard_cli::bench::{Axis, Row};

/// Events timed in a turn, of regions of their own each.
const TIMED: usize = 64;
const ELSEWHERE: usize = 1000;

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

    fn turn<P: Peer>(
        &mut self,
        peer: &P,
        [regions, empty, hot]: [&Memory; 3],
        pending: usize,
        miss_first: bool,
    ) {
        let region = |number: usize| regions.at(number * STRIDE);
        let before = peer.made();
        (0..pending + TIMED).for_each(|number| peer.hit(region(number), REGION));
        let made = peer.made() - before;
        // One may have been the first get of the turn before.
        if made + 1 < (pending + TIMED) as u64 {
            fail(&format!(
                "{} registered {made} of {} regions anew: events were lost",
                P::NAME,
                pending + TIMED
            ));
        }
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

/// With nothing pending, and with up to 100,000 events.
pub(crate) fn run(settings: &Settings) {
    let present = Present::find();
    let pending = settings.up_to(10_000, &[0, 100, 10_000, 30_000, 100_000]);
    tell::steps(pending.len());
    for pending in pending {
        tell::step(format!("{pending} pending"));
        rows(settings, present, pending).into_iter().for_each(tell::row);
    }
}

fn rows(settings: &Settings, present: Present, pending: usize) -> [Row; 4] {
    let regions = or_fail(Memory::map((pending + TIMED) * STRIDE));
    // Far enough away that no coarse filter takes them for neighbours.
    let _gap = or_fail(Memory::map(1 << 36));
    let empty = or_fail(Memory::map(ELSEWHERE * STRIDE));
    let _gap = or_fail(Memory::map(1 << 36));
    let hot = or_fail(Memory::map(STRIDE));
    let caches = Caches::new(pending + TIMED + 64, present);
    let [mut ours, mut ucx, mut libfabric] = [Events::new(), Events::new(), Events::new()];
    let turns = if pending > 20_000 { settings.slow_turns() } else { 4 * settings.slow_turns() };
    for turn in 0..turns {
        let miss_first = turn % 2 == 1;
        ours.turn(&caches.ours, [&regions, &empty, &hot], pending, miss_first);
        if let Some(peer) = &caches.ucx {
            ucx.turn(peer, [&regions, &empty, &hot], pending, miss_first);
        }
        if let Some(peer) = &caches.libfabric {
            libfabric.turn(peer, [&regions, &empty, &hot], pending, miss_first);
        }
    }
    let mut rows =
        ["event, nothing registered there", "event, registered", "first get, a hit", "first get, a miss"]
            .map(|case| Row::new("cache.event", case).at(Axis::Pending, pending));
    let mut enter = |name, events: &Events| {
        let turns = [&events.elsewhere, &events.registered, &events.first_hit, &events.first_miss];
        rows.iter_mut().zip(turns).for_each(|(row, turns)| row.enter(name, turns.summary()));
    };
    enter(Ours::NAME, &ours);
    enter(Ucx::NAME, &ucx);
    enter(Libfabric::NAME, &libfabric);
    rows
}
