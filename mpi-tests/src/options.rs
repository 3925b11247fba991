//! The rank programs' command line.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// A rank of `pinyard demo`: broadcasts fresh buffers and moves their bytes
/// through registered pages. Started by mpirun.
#[derive(Clone, Debug, Parser)]
pub struct Options {
    /// How buffers get registered
    #[arg(long, value_enum, default_value_t = Kind::Pinyard)]
    pub cache: Kind,
    /// Rounds to run
    #[arg(long, default_value_t = 8000)]
    pub rounds: u64,
    /// End the rounds after this many seconds
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Nothing moving for this many seconds is a hang
    #[arg(long, default_value_t = 3)]
    pub watchdog: u64,
    /// Folder that takes the reports (rank-N.json) and the progress files
    #[arg(long)]
    pub report: PathBuf,
    /// Refuse to run with another number of ranks
    #[arg(long)]
    pub ranks: Option<i32>,
    /// Leave the purging allocator's pages alone: no release, so no problem to show
    #[arg(long)]
    pub no_purge: bool,
}

impl Options {
    /// How long nothing may move.
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.watchdog.max(1))
    }
}

/// How buffers get registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A cache that nobody tells of changed mappings
    NoHooks,
    /// A map behind a mutex that the hooks take as well
    Naive,
    /// pinyard's registry under its hooks
    Pinyard,
    /// pinyard's pool: memory that is registered once
    Pool,
}

impl Kind {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::NoHooks => "no-hooks",
            Kind::Naive => "naive",
            Kind::Pinyard => "pinyard",
            Kind::Pool => "pool",
        }
    }
}
