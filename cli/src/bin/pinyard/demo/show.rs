//! What the user sees while the rows run: a bar per row on a terminal, a line
//! per row elsewhere. Always on stderr.

use super::mpi::Mpirun;
use super::row::{End, Row};
use super::rows::{Kind, Spec};
use crate::terminal::complain;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use pinyard_cli::text::grouped;
use std::io::IsTerminal;
use std::time::Duration;

/// Columns of a row's last word; the whole of it is in the verdict.
const MESSAGE: usize = 68;

/// The place where rows appear.
pub(crate) struct Show {
    bars: Option<MultiProgress>,
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
        Show { bars: std::io::stderr().is_terminal().then(MultiProgress::new), ranks }
    }

    /// A row begins that has `rounds` rounds per rank.
    pub(crate) fn row(&self, spec: &Spec, rounds: u64) -> Line {
        let title = format!("{:<12} {:<8}", spec.name, spec.allocator);
        let ranks = u64::from(self.ranks);
        let bar = self.bars.as_ref().map(|bars| {
            let style = ProgressStyle::with_template("{prefix} [{bar:24}] {elapsed:>3} {msg}")
                .map(|style| style.progress_chars("=> "))
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = bars.add(ProgressBar::new(rounds * ranks)).with_style(style).with_prefix(title.clone());
            bar.set_message(match spec.kind {
                Kind::Naive => "waiting for the watchdog",
                _ => "starting",
            });
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Line { bar, title, ranks }
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        if self.bars.is_some() {
            eprintln!(); // the cursor stands behind the last bar
        }
        eprintln!();
    }
}

/// A row that runs.
pub(crate) struct Line {
    bar: Option<ProgressBar>,
    title: String,
    ranks: u64,
}

impl Line {
    /// Rank 0 has completed this many rounds; the others are as far.
    pub(crate) fn advance(&self, rounds: u64) {
        if let Some(bar) = self.bar.as_ref().filter(|_| rounds != 0) {
            bar.set_position(rounds * self.ranks);
            bar.set_message(format!("{} rounds", grouped(rounds * self.ranks)));
        }
    }

    /// The row is over.
    pub(crate) fn finish(self, row: &Row) {
        let message: String = summary(row).chars().take(MESSAGE).collect();
        match &self.bar {
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

impl Drop for Line {
    /// A row that is given up leaves its bar where it stood.
    fn drop(&mut self) {
        if let Some(bar) = self.bar.as_ref().filter(|bar| !bar.is_finished()) {
            bar.abandon();
        }
    }
}
