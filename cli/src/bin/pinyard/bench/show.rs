//! What the user sees while benchmarks run: a bar for each on a terminal, a line for each
//! elsewhere. On stderr.

use crate::bars::{Bar, Bars};
use crate::demo::STOP;
use crate::terminal::complain;
use pinyard_cli::bench::{Benchmark, Document};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Columns of a bar's last word: 80, less what stands before it.
const MESSAGE: usize = 36;

/// The place where they appear.
pub(crate) struct Show {
    bars: Bars,
    /// Of the longest name.
    width: usize,
}

impl Show {
    pub(crate) fn new(wanted: &[&Benchmark]) -> Show {
        let width = wanted.iter().map(|benchmark| benchmark.name.len()).max().unwrap_or(0);
        Show { bars: Bars::new(), width }
    }

    /// A benchmark begins.
    pub(crate) fn line(&self, name: &str) -> Line {
        let title = format!("{name:<width$}", width = self.width);
        let bar = self.bars.bar(&title, 16, 1);
        Line { bar, title, began: Instant::now(), step: Cell::new(0) }
    }
}

/// A benchmark that runs.
pub(crate) struct Line {
    bar: Bar,
    title: String,
    began: Instant,
    /// Steps begun.
    step: Cell<u64>,
}

impl Line {
    /// So many steps will come.
    pub(crate) fn steps(&self, count: u64) {
        if let Some(bar) = self.bar.shown() {
            bar.set_length(count.max(1));
        }
    }

    /// The next one begins.
    pub(crate) fn step(&self, what: &str) {
        let done = self.step.get();
        self.step.set(done + 1);
        if let Some(bar) = self.bar.shown() {
            bar.set_position(done);
            bar.set_message(what.chars().take(MESSAGE).collect::<String>());
        }
    }

    /// The benchmark is over.
    pub(crate) fn finish(self, document: &Document, name: &str) {
        let rows = document.rows.iter().filter(|row| row.benchmark == name).count();
        let skipped =
            document.skipped.iter().any(|skipped| skipped.benchmark == name && skipped.peer.is_none());
        let message = match rows {
            _ if document.failed.iter().any(|failed| failed.benchmark == name) => "failed".to_owned(),
            _ if STOP.load(Relaxed) => "interrupted".to_owned(),
            0 if skipped => "skipped".to_owned(),
            1 => "1 row".to_owned(),
            rows => format!("{rows} rows"),
        };
        match self.bar.shown() {
            Some(bar) if rows > 0 => {
                bar.set_position(bar.length().unwrap_or(1));
                bar.abandon_with_message(message);
            }
            Some(bar) => bar.abandon_with_message(message),
            None => complain(format_args!(
                "{} {:>6.1} s  {message}",
                self.title,
                self.began.elapsed().as_secs_f64()
            )),
        }
    }
}
