//! A rank's record, and a run's: the schema of the JSON document. Times are seconds
//! since the ranks began together unless the name says another unit.

use crate::stress::operation::Operation;
use crate::stress::options::Options;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What one rank did and met.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// Its number in the world.
    pub rank: u32,
    /// The world's size.
    pub ranks: u32,
    /// Its process.
    pub pid: u64,
    /// Where it ran.
    pub machine: Machine,
    /// What the MPI library calls itself.
    pub mpi: String,
    /// The global allocator.
    pub allocator: String,
    /// Who registered.
    pub backend: String,
    /// Why that one, where it was chosen.
    pub backend_choice: String,
    /// What the registry was told of changes by.
    pub events: String,
    /// Why operations that were asked for are not in the mix.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub left_out: Option<String>,
    /// Hash of the first [`PLAN_STEPS`] steps for all ranks: equal for equal seeds, options and ranks.
    pub plan: String,
    /// Hash of the steps that this rank ran: equal on all ranks that completed.
    pub executed: String,
    /// How it ended.
    pub outcome: Outcome,
    /// When, in seconds.
    pub seconds: f64,
    /// Counters at the end.
    pub counts: Counts,
    /// By operation.
    pub operations: BTreeMap<Operation, PerOperation>,
    /// What was done to buffers before operations, by name.
    pub changes: BTreeMap<String, u64>,
    /// The registry's registrations.
    pub registering: Times,
    /// Twice a second.
    pub samples: Vec<Sample>,
    /// Times at which no step completed for a second or more.
    pub stalls: Vec<Stall>,
    /// The first wrong bytes that it saw.
    pub wrong: Vec<Wrong>,
    /// Why `get`s were refused, each reason with its first text.
    pub refusals: Vec<Refusal>,
    /// What it broke on purpose.
    pub injected: Vec<Injected>,
}

/// Steps that [`Rank::plan`] covers.
pub const PLAN_STEPS: u64 = 1024;
/// Seconds between samples.
pub const SAMPLE_SECONDS: f64 = 0.5;
/// Wrong bytes that are described.
pub const MOST_WRONG: usize = 16;

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// Operating system and release.
    pub system: String,
    /// The processor's name.
    pub processor: String,
    /// Cores that the rank may run on.
    pub cores: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// RLIMIT_MEMLOCK at the start, in words: `unlimited`, `8388608 bytes`.
    pub memlock: String,
}

/// How a rank ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Outcome {
    /// All steps that time and options allowed.
    Completed,
    /// All ranks stopped after a step because one could not go on.
    Stopped {
        /// The cause, or that another rank has it.
        why: String,
    },
    /// Nothing moved for so long that its watchdog ended it.
    Hung {
        /// In what.
        doing: String,
        /// For how long.
        seconds: f64,
    },
    /// A signal, from the launcher as a rule, ended it.
    Ended {
        /// The signal's number.
        signal: i32,
        /// In what.
        doing: String,
    },
    /// It could not start.
    Refused {
        /// The cause and what helps.
        why: String,
    },
    /// It left no record: killed, or its machine has gone. From its progress words.
    #[default]
    Lost,
    /// Likewise, with the last thing that it was in.
    LostIn {
        /// In what.
        doing: String,
    },
}

/// Counters. Each is the number of what it is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Counts {
    pub steps: u64,
    /// Messages whose CRC was compared on receipt.
    pub messages: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Messages whose CRC was wrong.
    pub corrupt: u64,
    /// Times that the device read or wrote through a registration and the bytes were compared.
    pub device_checks: u64,
    /// Of those, times that it saw or filled other pages than the program's.
    pub stale: u64,
    /// `get`s that were refused; their operation ran without a registration.
    pub refused: u64,
    pub hits: u64,
    pub misses: u64,
    pub registrations: u64,
    pub deregistrations: u64,
    pub invalidations: u64,
    pub evictions: u64,
    pub flushes: u64,
    pub merges: u64,
    pub retries: u64,
    pub uncached: u64,
    /// Bytes pinned at the end.
    pub pinned: u64,
    /// Bytes pinned at most, of all samples.
    pub peak_pinned: u64,
    /// Buffers that came again at the address of the one freed before.
    pub same_address: u64,
    pub forks: u64,
    /// Children that could not write to their copy: the page was not inherited (MADV_DONTFORK).
    pub children_without_pages: u64,
    /// Events of the fault flood.
    pub flood_events: u64,
}

/// One operation's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerOperation {
    /// How many.
    pub count: u64,
    /// Bytes of their messages.
    pub bytes: u64,
    /// Seconds inside MPI, waiting for other ranks included.
    pub seconds: f64,
}

/// How long calls took: upper bounds, at most twice the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Calls.
    pub count: u64,
    /// Microseconds that half of the calls did not reach.
    pub p50_us: f64,
    /// Microseconds that 99 % did not reach.
    pub p99_us: f64,
}

/// What happened since the sample before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its end.
    pub at: f64,
    /// Seconds that it covers.
    pub seconds: f64,
    /// Steps completed.
    pub steps: u64,
    /// Bytes of messages checked.
    pub bytes: u64,
    /// `get`s from the cache.
    pub hits: u64,
    /// `get`s that registered.
    pub misses: u64,
    /// Regions that changes took out.
    pub invalidations: u64,
    /// Bytes pinned at its end.
    pub pinned: u64,
    /// Registrations in it.
    pub registering: Times,
}

/// A time without progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// Its begin.
    pub at: f64,
    /// How long it took.
    pub seconds: f64,
    /// What the rank was in.
    pub doing: String,
}

/// Bytes that were not what they had to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wrong {
    /// In which step.
    pub step: u64,
    /// When.
    pub at: f64,
    /// What was wrong, in a sentence.
    pub what: String,
}

/// A reason why `get`s were refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of error: `memlock`, `budget`, `other`.
    pub kind: String,
    /// Whether the rank had injected its fault by then: what was short before is another cause.
    #[serde(default)]
    pub after_fault: bool,
    /// How often.
    pub count: u64,
    /// The first of them, in the registry's words.
    pub first: String,
    /// When that was.
    pub at: f64,
}

/// A fault that the rank injected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Injected {
    /// When.
    pub at: f64,
    /// What it did, in a sentence.
    pub what: String,
}

/// The launcher, as its starter saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Launcher {
    /// Its command line.
    pub command: String,
    /// Which one it is.
    pub name: String,
    /// How it ended, in words.
    pub status: String,
    /// It ended by itself with status 0.
    pub success: bool,
    /// It had to be ended, because the run overran its limit.
    pub overran: bool,
    /// Processes of the run that were still there afterwards.
    pub left_behind: Vec<u64>,
    /// The last that it and the ranks printed.
    pub last_words: String,
    /// Seconds from its start to its end.
    pub seconds: f64,
}

/// All that is known of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What was asked.
    pub options: Options,
    /// Who started the ranks, where the report's writer did.
    pub launcher: Option<Launcher>,
    /// The ranks, by number.
    pub ranks: Vec<Rank>,
}
