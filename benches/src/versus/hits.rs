//! Hits: alone, by several threads, and beside a thread that registers.

use crate::peer::{Memory, Ours, Peer, registrations_take};
use crate::rows::{REGION, Row, STRIDE, Turns, involuntary_switches, or_fail, sequence};
use crate::{Caches, Options};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const REGISTRATION: Duration = Duration::from_millis(2);
/// Registrations in one turn beside hits.
const BACK_TO_BACK: usize = 10;

fn fill(peer: &impl Peer, memory: &Memory, regions: usize) {
    (0..regions).for_each(|region| peer.hit(memory.at(region * STRIDE), REGION));
}

/// One operation on each region of `order`, round and round.
fn each(order: &[u32], operations: usize, memory: &Memory, mut operation: impl FnMut(*mut u8)) {
    for step in 0..operations {
        operation(memory.at(order[step & (order.len() - 1)] as usize * STRIDE));
    }
}

/// Hits of `threads`, each on its own random sequence or all on one region; on one
/// thread `lookup` as well.
pub(crate) fn rows(options: &Options, ucx: bool, threads: usize, regions: usize, same: bool) -> Vec<Row> {
    let memory = or_fail(Memory::map(regions * STRIDE));
    let caches = Caches::new(regions + 64, ucx);
    caches.each_ref(|peer| fill(peer, &memory, regions), |peer| fill(peer, &memory, regions));
    let barrier = Barrier::new(threads);
    let operations = options.operations;
    let work = |thread: usize| {
        let order = if same { vec![0; 1 << 14] } else { sequence(regions, 77 + thread as u64) };
        let mut turns = [Turns::new(), Turns::new(), Turns::new()];
        let [ours, theirs, lookup] = &mut turns;
        for _ in 0..options.turns {
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
    let pattern = if same { "one region" } else { "random regions" };
    let mut rows = ["hit", "lookup"].map(|group| Row { threads, ..Row::new(group, pattern, regions) });
    rows[0].enter(Ours::NAME, &sums[0]);
    rows[1].enter(Ours::NAME, &sums[2]);
    if ucx {
        // UCX has no lookup of its own: its hit stands beside it.
        rows.iter_mut().for_each(|row| row.enter("UCX", &sums[1]));
    }
    rows.into()
}

/// What one peer's hits come to beside registrations.
struct Beside<'p, P> {
    peer: &'p P,
    memory: Memory,
    registered: usize,
    alone: Turns,
    beside: Turns,
    worst: Turns,
}

impl<'p, P: Peer> Beside<'p, P> {
    fn new(peer: &'p P, turns: usize) -> Self {
        let memory = or_fail(Memory::map((2 + 2 * turns * BACK_TO_BACK) * STRIDE));
        fill(peer, &memory, 1);
        Beside { peer, memory, registered: 1, alone: Turns::new(), beside: Turns::new(), worst: Turns::new() }
    }

    /// Hits while `going`, which is asked every 32 of them.
    fn hits(&self, going: impl Fn() -> bool) -> usize {
        let mut hits = 0;
        while going() {
            (0..32).for_each(|_| self.peer.hit(self.memory.at(0), REGION));
            hits += 32;
        }
        hits
    }

    /// Runs `work` while another thread registers [`BACK_TO_BACK`] regions; told
    /// whether that thread is still at it.
    fn with_company<R>(&mut self, work: impl FnOnce(&Self, &AtomicBool) -> R) -> R {
        let (registering, from) = (AtomicBool::new(true), self.registered);
        self.registered += BACK_TO_BACK;
        let this = &*self;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                registrations_take(REGISTRATION);
                (from..from + BACK_TO_BACK).for_each(|region| {
                    this.peer.hit(this.memory.at(region * STRIDE), REGION);
                });
                registering.store(false, SeqCst);
            });
            work(this, &registering)
        })
    }

    fn turn(&mut self) {
        let time = REGISTRATION * BACK_TO_BACK as u32;
        let turn = |turns: &mut Turns, work: &mut dyn FnMut() -> usize| {
            let (switches, began) = (involuntary_switches(), Instant::now());
            let hits = work();
            turns.add(began.elapsed().as_nanos() as f64, hits.max(1), involuntary_switches() != switches);
        };
        let began = Instant::now();
        let mut alone = Turns::new();
        turn(&mut alone, &mut || self.hits(|| began.elapsed() < time));
        let mut beside = Turns::new();
        turn(&mut beside, &mut || {
            self.with_company(|this, registering| this.hits(|| registering.load(SeqCst)))
        });
        self.alone.merge(&alone);
        self.beside.merge(&beside);
        let (worst, left_out) = self.with_company(Self::worst_hit);
        self.worst.add(worst.as_nanos() as f64, 1, false);
        self.worst.leave_out(left_out);
    }

    /// The longest single hit, and how many longer ones were the scheduler's doing.
    fn worst_hit(&self, registering: &AtomicBool) -> (Duration, usize) {
        let (mut worst, mut left_out, mut switches) = (Duration::ZERO, 0, involuntary_switches());
        while registering.load(SeqCst) {
            let began = Instant::now();
            self.peer.hit(self.memory.at(0), REGION);
            let took = began.elapsed();
            if took > worst {
                let now = involuntary_switches();
                if std::mem::replace(&mut switches, now) == now {
                    worst = took;
                } else {
                    left_out += 1;
                }
            }
        }
        (worst, left_out)
    }

    fn enter(&self, rows: &mut [Row]) {
        let turns = [&self.alone, &self.beside, &self.worst];
        rows.iter_mut().zip(turns).for_each(|(row, turns)| row.enter(P::NAME, turns));
    }
}

/// Hits alone, beside back-to-back registrations of 2 ms, and the worst single one.
pub(crate) fn beside_registrations(options: &Options, ucx: bool) -> Vec<Row> {
    let turns = options.slow_turns;
    let caches = Caches::new(64 + 2 * turns * BACK_TO_BACK, ucx);
    let row = |case| Row { threads: 2, ..Row::new("beside", case, 1) };
    let mut rows = vec![row("hit, alone"), row("hit, beside registrations"), row("worst hit of 20 ms")];
    let mut ours = Beside::new(&caches.ours, turns);
    let mut theirs = caches.ucx.as_ref().map(|peer| Beside::new(peer, turns));
    for _ in 0..turns {
        ours.turn();
        theirs.as_mut().into_iter().for_each(Beside::turn);
    }
    ours.enter(&mut rows);
    theirs.iter().for_each(|theirs| theirs.enter(&mut rows));
    rows
}
