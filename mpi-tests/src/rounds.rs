//! The rounds: a fresh buffer, a broadcast, its bytes through registered pages.

use crate::cache::{Cache, Counts, Failure};
use crate::options::Options;
use crate::progress::Progress;
use crate::verify;
use crate::wire::Wire;
use mpi::collective::Root;
use mpi::topology::Communicator;
use pinyard_cli::demo::HitTime;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Bytes of a message: the size in Open MPI #13149.
pub const BYTES: usize = 258_048;
/// Rounds after which registrations count as made after warm-up.
pub const WARM_UP: u64 = 16;
/// Hits per timed batch, a batch per round.
pub const BATCH: u32 = 32;
/// Blocks of scratch space per round.
const SCRATCH_BLOCKS: u64 = 6;
/// Sizes that they have in turn.
const SCRATCH_SIZES: u64 = 19;
/// Rounds between two looks at the clock, which the ranks must agree on.
const CLOCK: u64 = 64;

/// The cache's counters as of the last look, for the report of a hang: asking
/// the cache then could wait for the lock that everything waits for.
static SEEN: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// The counters at the last look; at most `CLOCK` rounds old.
pub fn last_seen() -> Counts {
    let [hits, misses, invalidations, registrations] = SEEN.each_ref().map(|count| count.load(Relaxed));
    Counts { hits, misses, invalidations, registrations }
}

fn look(counts: Counts) {
    let Counts { hits, misses, invalidations, registrations } = counts;
    for (seen, count) in SEEN.iter().zip([hits, misses, invalidations, registrations]) {
        seen.store(count, Relaxed);
    }
}

/// What the rounds gave, beside what is in the progress file.
pub struct Ran {
    /// The time limit ended them.
    pub cut_short: bool,
    /// The cache's registrations when the warm-up was over, if it was.
    pub registrations_at_warm_up: Option<u64>,
    /// The repeated gets, timed.
    pub hit: Option<HitTime>,
}

/// Runs the rounds on every rank of `world`.
#[inline(never)]
pub fn run<C: Cache, W: Communicator>(
    cache: &C,
    world: &W,
    options: &Options,
    progress: &Progress,
) -> Result<Ran, Failure> {
    let root = world.process_at_rank(0);
    let is_root = world.rank() == 0;
    let mut wire = Wire::new(BYTES)?;
    let mut batches = Vec::with_capacity(usize::try_from(options.rounds).unwrap_or(0).min(1 << 20));
    let mut ran = Ran { cut_short: false, registrations_at_warm_up: None, hit: None };
    let started = Instant::now();
    for round in 0..options.rounds {
        if round % CLOCK == 0 {
            let mut time_is_up =
                u8::from(is_root && started.elapsed() > Duration::from_secs(options.seconds));
            root.broadcast_into(&mut time_is_up);
            ran.cut_short = time_is_up != 0;
            if ran.cut_short {
                break;
            }
            look(cache.counts());
        }
        if round == WARM_UP {
            ran.registrations_at_warm_up = Some(cache.counts().registrations);
        }
        let mut buffer = cache.allocate(BYTES)?;
        if is_root {
            verify::fill(&mut buffer, round);
        }
        root.broadcast_into(&mut buffer[..]);
        cache.send(&buffer, &wire)?;
        if !verify::matches(&buffer, round) {
            return Err(Failure::new(format!(
                "round {round}: MPI_Bcast delivered other bytes than the root's"
            )));
        }
        if !verify::matches(wire.arrived(), round) {
            progress.stale.fetch_add(1, Relaxed);
        }
        batches.push(time_hits(cache, &buffer)?);
        drop(buffer);
        use_scratch_space(round);
        progress.rounds.store(round + 1, Relaxed);
        progress.beat.fetch_add(1, Relaxed);
    }
    ran.hit = summarise(batches);
    Ok(ran)
}

/// A step's scratch space: blocks of sizes that change from round to round, as
/// in a program that does something between two messages. mimalloc keeps an
/// empty page for its size class until four other classes have asked for fresh
/// ones; then the pages go.
fn use_scratch_space(round: u64) {
    let sizes = (0..SCRATCH_BLOCKS).map(|block| {
        let step = usize::try_from((round * SCRATCH_BLOCKS + block) % SCRATCH_SIZES).unwrap_or(0);
        (48 << 10) + step * (24 << 10)
    });
    let blocks: Vec<Vec<u8>> = sizes.map(Vec::with_capacity).collect();
    std::hint::black_box(blocks);
}

fn time_hits<C: Cache>(cache: &C, buffer: &C::Buffer) -> Result<Duration, Failure> {
    let started = Instant::now();
    for _ in 0..BATCH {
        cache.hit(buffer)?;
    }
    Ok(started.elapsed())
}

fn summarise(mut batches: Vec<Duration>) -> Option<HitTime> {
    batches.sort_unstable();
    let per_hit = |at: usize| batches.get(at).map(|batch| batch.as_nanos() as f64 / f64::from(BATCH));
    Some(HitTime {
        median_ns: per_hit(batches.len() / 2)?,
        p99_ns: per_hit(batches.len() * 99 / 100)?,
        batch: BATCH,
        batches: batches.len() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_summarised() {
        assert_eq!(summarise(Vec::new()), None);
        let hit = summarise((1..=200).rev().map(|n| Duration::from_nanos(n * 32)).collect()).unwrap();
        assert_eq!((hit.median_ns, hit.p99_ns, hit.batches), (101.0, 199.0, 200));
    }
}
