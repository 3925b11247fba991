//! Hits beside a thread that registers: alone, beside it, and the worst single one.

use super::{Caches, Present, fill};
use crate::peer::{Libfabric, Memory, Peer, Ucx, registrations_take};
use crate::{Settings, tell};
use pinyard_benches::turns::{REGION, STRIDE, Turns, involuntary_switches, or_fail};
use pinyard_cli::bench::Row;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const REGISTRATION: Duration = Duration::from_millis(2);
/// Registrations in one turn beside hits.
const BACK_TO_BACK: usize = 10;

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
        let began = Instant::now();
        let mut alone = Turns::new();
        alone.time_counted(|| self.hits(|| began.elapsed() < time));
        let mut beside = Turns::new();
        beside.time_counted(|| self.with_company(|this, registering| this.hits(|| registering.load(SeqCst))));
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
        rows.iter_mut().zip(turns).for_each(|(row, turns)| row.enter(P::NAME, turns.summary()));
    }
}

/// Hits alone, beside back-to-back registrations of 2 ms, and the worst single one.
pub(crate) fn run(settings: &Settings) {
    let present = Present::find();
    let turns = settings.slow_turns();
    tell::steps(turns);
    let caches = Caches::new(64 + 2 * turns * BACK_TO_BACK, present);
    let mut rows =
        ["hit, alone", "hit, beside registrations of 2 ms", "worst hit of 20 ms beside registrations"]
            .map(|case| Row::new("cache.beside", case).threads(2));
    let mut ours = Beside::new(&caches.ours, turns);
    let mut ucx = caches.ucx.as_ref().map(|peer: &Ucx| Beside::new(peer, turns));
    let mut libfabric = caches.libfabric.as_ref().map(|peer: &Libfabric| Beside::new(peer, turns));
    for turn in 1..=turns {
        tell::step(format!("turn {turn}"));
        ours.turn();
        ucx.as_mut().into_iter().for_each(Beside::turn);
        libfabric.as_mut().into_iter().for_each(Beside::turn);
    }
    ours.enter(&mut rows);
    ucx.iter().for_each(|ucx| ucx.enter(&mut rows));
    libfabric.iter().for_each(|libfabric| libfabric.enter(&mut rows));
    rows.into_iter().for_each(tell::row);
}
