//! What a rank's threads share: its progress words, and its record as it grows.

use crate::memory::{Change, Kind};
use crate::words::Words;
use parking_lot::Mutex;
use pinyard_cli::stress::progress::Word;
use pinyard_cli::stress::record::{Counts, MOST_WRONG, Outcome, Rank, Refusal, Wrong};
use pinyard_cli::stress::{Options, folder};
use pinyard_registry::{Registry, Stats};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// How long the report of a hang waits for a thread that holds the record.
const PATIENCE: Duration = Duration::from_secs(1);

/// One per process; lives as long.
pub(crate) struct Shared {
    /// Which rank this is.
    pub(crate) rank: u32,
    /// What is asked.
    pub(crate) options: Options,
    /// Where files go.
    pub(crate) folder: PathBuf,
    /// The progress words.
    pub(crate) words: &'static Words,
    /// When the ranks began together.
    pub(crate) began: OnceLock<Instant>,
    /// Once it is there.
    pub(crate) registry: OnceLock<Registry>,
    /// The steps are over: no stall counts any more.
    pub(crate) over: AtomicBool,
    /// Events that the flood has published.
    pub(crate) flood_events: AtomicU64,
    state: Mutex<State>,
}

/// The record, and tallies that become part of it. Locked for moments only, never
/// around a call of MPI or of the registry.
pub(crate) struct State {
    /// The record but for what the words and the registry count.
    pub(crate) rank: Rank,
    /// By kind of memory and by change.
    pub(crate) changes: [[u64; 6]; 4],
    /// The registry's counters as of the last sample.
    pub(crate) stats: Stats,
}

impl Shared {
    /// With the record of a rank that has just begun.
    pub(crate) fn new(rank: Rank, options: Options, folder: PathBuf, words: &'static Words) -> Shared {
        Shared {
            rank: rank.rank,
            options,
            folder,
            words,
            began: OnceLock::new(),
            registry: OnceLock::new(),
            over: AtomicBool::new(false),
            flood_events: AtomicU64::new(0),
            state: Mutex::new(State { rank, changes: [[0; 6]; 4], stats: Stats::default() }),
        }
    }

    /// Seconds since the ranks began together; 0 before.
    pub(crate) fn seconds(&self) -> f64 {
        self.began.get().map_or(0.0, |began| began.elapsed().as_secs_f64())
    }

    /// The record, to be added to.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut State) -> R) -> R {
        work(&mut self.state.lock())
    }

    /// Bytes that were not what they had to be, `word` being what counts them.
    pub(crate) fn wrong(&self, word: Word, step: u64, what: String) {
        self.words.add(word, 1);
        let at = self.seconds();
        eprintln!("rank {}: step {step}: {what}", self.rank);
        self.with(|state| {
            if state.rank.wrong.len() < MOST_WRONG {
                state.rank.wrong.push(Wrong { step, at, what });
            }
        });
    }

    /// A `get`, or a block of the pool, was refused. Those before the rank's fault and
    /// those after it are kept apart: the first of either names its own cause.
    pub(crate) fn refused(&self, kind: &str, text: String) {
        self.words.add(Word::Refused, 1);
        let at = self.seconds();
        self.with(|state| {
            let after_fault = !state.rank.injected.is_empty();
            let known = |refusal: &&mut Refusal| refusal.kind == kind && refusal.after_fault == after_fault;
            match state.rank.refusals.iter_mut().find(known) {
                Some(refusal) => refusal.count += 1,
                None => {
                    state.rank.refusals.push(Refusal {
                        kind: kind.to_owned(),
                        after_fault,
                        count: 1,
                        first: text,
                        at,
                    });
                }
            }
        });
    }

    /// The record with `outcome`; `None` if a hung thread holds it.
    pub(crate) fn record(&self, outcome: Outcome) -> Option<Rank> {
        let state = self.state.try_lock_for(PATIENCE)?;
        let (mut rank, stats) = (state.rank.clone(), state.stats);
        rank.outcome = outcome;
        rank.seconds = self.seconds();
        let word = |word| self.words.get(word);
        rank.counts = Counts {
            steps: word(Word::Steps),
            messages: word(Word::Messages),
            bytes: word(Word::Checked),
            corrupt: word(Word::Corrupt),
            stale: word(Word::Stale),
            refused: word(Word::Refused),
            hits: stats.hits,
            misses: stats.misses,
            registrations: stats.registrations,
            deregistrations: stats.deregistrations,
            invalidations: stats.invalidations,
            evictions: stats.evictions,
            flushes: stats.flushes,
            merges: stats.merges,
            retries: stats.retries,
            uncached: stats.uncached,
            pinned: stats.pinned_bytes,
            peak_pinned: rank
                .samples
                .iter()
                .map(|sample| sample.pinned)
                .max()
                .unwrap_or(0)
                .max(stats.pinned_bytes),
            flood_events: self.flood_events.load(std::sync::atomic::Ordering::Relaxed),
            ..rank.counts
        };
        for (slot, row) in state.changes.iter().enumerate() {
            let changed = Change::ALL.into_iter().zip(row).filter(|&(_, &count)| count > 0);
            let named = changed.map(|(change, &count)| (change.name(Kind::of_slot(slot)), count));
            rank.changes.extend(named);
        }
        Some(rank)
    }

    /// Writes the record with `outcome` to the folder.
    pub(crate) fn write(&self, outcome: Outcome) -> Result<(), String> {
        let rank = self.record(outcome).ok_or("the record is held by a thread that hangs")?;
        folder::write_record(&self.folder, &rank).map_err(|error| {
            format!("write {}: {error}", folder::record_path(&self.folder, self.rank).display())
        })
    }
}
