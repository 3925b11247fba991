//! What one rank reports, as JSON in a file of its own: written by the rank
//! programs of `mpi-tests`, read by `pinyard demo`.

use serde::{Deserialize, Serialize};

/// A rank's whole report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankReport {
    /// Its number in the world.
    pub rank: i32,
    /// The world's size.
    pub ranks: i32,
    /// The global allocator of the program.
    pub allocator: String,
    /// The kind of cache, by the name that the program was given.
    pub cache: String,
    /// What the MPI library calls itself.
    pub mpi: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Rounds completed.
    pub rounds: u64,
    /// The time limit ended the rounds before their number was reached.
    pub cut_short: bool,
    /// Rounds whose bytes through the registered pages were not those that the
    /// program had written.
    pub stale: u64,
    /// The cache's counters at the end.
    pub counts: Counts,
    /// Registrations made after the warm-up rounds; `None` if it ended before.
    pub registrations_after_warm_up: Option<u64>,
    /// A repeated get and its drop, timed in batches; `None` if none was made.
    pub hit: Option<HitTime>,
    /// The hooks' own report, a line per function; empty where none were installed.
    pub hooks: Vec<String>,
}

/// How a rank ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Outcome {
    /// All rounds, or as many as the time limit allowed.
    Completed,
    /// Nothing moved for so long that the watchdog ended it.
    Hung {
        /// The round that it never finished, counted from 0.
        round: u64,
        /// How long nothing had moved.
        seconds: f64,
        /// The stuck thread's calls, innermost first; empty if even that hung.
        stack: Vec<Frame>,
    },
    /// It could not start.
    Refused {
        /// The cause.
        why: String,
        /// What the user can do.
        remedy: String,
    },
    /// Something else than staleness or a hang ended it.
    Failed {
        /// The cause.
        why: String,
    },
}

/// A call of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The function.
    pub call: String,
    /// `file:line:column` where known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at: Option<String>,
}

/// A cache's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each is the number of what it is called
pub struct Counts {
    pub hits: u64,
    pub misses: u64,
    pub invalidations: u64,
    pub registrations: u64,
}

/// Nanoseconds per hit over the batches of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HitTime {
    /// The middle batch.
    pub median_ns: f64,
    /// The batch that 1 % are slower than.
    pub p99_ns: f64,
    /// Hits per batch.
    pub batch: u32,
    /// Batches timed.
    pub batches: u64,
}
