//! What the user sees while the rows run: a bar per row on a terminal, a line
//! per row elsewhere. Always on stderr.

use super::mpi::Mpirun;
use super::row::{End, Row};
use super::rows::{Kind, Spec};
use crate::bars::{Bar, Bars};
use crate::terminal::complain;
use pinyard_cli::text::grouped;

/// Columns of a row's last word; the whole of it is in the verdict.
const MESSAGE: usize = 68;

/// The place where rows appear.
pub(crate) struct Show {
    bars: Bars,
    ranks: u32,
}

impl Show {
    /// Begins with a line about what will run.
    pub(crate) fn new(ranks: u32, mpirun: &Mpirun) -> Show {
        complain(format_args!(
            "{ranks} ranks under {} {}; a round broadcasts a fresh buffer of {} bytes",
            mpirun.kind.name(),
            mpirun.version,
            grouped(super::BYTES),
        ));
        Show { bars: Bars::new(), ranks }
    }

    /// A row begins that has `rounds` rounds per rank.
    pub(crate) fn row(&self, spec: &Spec, rounds: u64) -> Line {
        let title = format!("{:<12} {:<8}", spec.name, spec.allocator);
        let ranks = u64::from(self.ranks);
        let bar = self.bars.bar(&title, 24, rounds * ranks);
        if let Some(bar) = bar.shown() {
            bar.set_message(match spec.kind {
                Kind::Naive => "waiting for the watchdog",
                _ => "starting",
            });
        }
        Line { bar, title, ranks }
    }
}

/// A row that runs.
pub(crate) struct Line {
    bar: Bar,
    title: String,
    ranks: u64,
}

impl Line {
    /// Rank 0 has completed this many rounds; the others are as far.
    pub(crate) fn advance(&self, rounds: u64) {
        if let Some(bar) = self.bar.shown().filter(|_| rounds != 0) {
            bar.set_position(rounds * self.ranks);
            bar.set_message(format!("{} rounds", grouped(rounds * self.ranks)));
        }
    }

    /// The row is over.
    pub(crate) fn finish(self, row: &Row) {
        let message: String = summary(row).chars().take(MESSAGE).collect();
        match self.bar.shown() {
            Some(bar) => bar.abandon_with_message(message),
            None => complain(format_args!("{} {:>5.1} s  {message}", self.title, row.seconds)),
        }
    }
}

/// A row in a few words.
fn summary(row: &Row) -> String {
    match &row.end {
        End::Completed => format!("{} rounds, {} stale", grouped(row.rounds), grouped(row.stale)),
        End::Hung => format!("{} rounds, hung", grouped(row.rounds)),
        End::Failed(why) => format!("failed: {}", why.lines().next().unwrap_or_default()),
    }
}
