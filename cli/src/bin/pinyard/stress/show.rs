//! What the user sees while the ranks run: a bar on a terminal, a line now and then
//! elsewhere. On stderr.

use super::launch::Job;
use crate::terminal::complain;
use indicatif::{ProgressBar, ProgressStyle};
use pinyard_cli::stress::options::word;
use pinyard_cli::stress::progress::{Progress, Word};
use pinyard_cli::text;
use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two lines.
const LINE: Duration = Duration::from_secs(5);

pub(crate) struct Show {
    bar: Option<ProgressBar>,
    said: Cell<Instant>,
    time: f64,
}

impl Show {
    /// Begins with a line about what runs.
    pub(crate) fn new(job: &Job<'_>, under: &str) -> Show {
        let fault = job.options.fault.as_ref().map(|fault| {
            format!(", fault {} at {:.1} s", word(fault), job.options.fault_time().as_secs_f64())
        });
        let ranks = text::counted(job.ranks.into(), "rank");
        let (time, seed) = (job.options.time, job.options.seed);
        complain(format_args!("{ranks}{under}, {time} s, seed {seed}{}", fault.unwrap_or_default()));
        let style = ProgressStyle::with_template("[{bar:24}] {elapsed:>3} {msg}")
            .map(|style| style.progress_chars("=> "))
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(1000).with_style(style));
        Show { bar, said: Cell::new(Instant::now()), time: time as f64 }
    }

    /// The ranks are somewhere: says where, if it is time to.
    pub(crate) fn look(&self, folder: &Path, ranks: u32) {
        let due = self.bar.is_some() || self.said.get().elapsed() >= LINE;
        if !due {
            return;
        }
        self.said.set(Instant::now());
        let all: Vec<Progress> = (0..ranks).map(|rank| Progress::read(folder, rank)).collect();
        let sum = |word: Word| all.iter().map(|one| one.get(word)).sum::<u64>();
        let seconds = all.iter().map(Progress::seconds).fold(0.0, f64::max);
        let message = match all.iter().map(|one| one.get(Word::Steps)).min() {
            None | Some(0) => "starting".to_owned(),
            Some(steps) => format!(
                "{} steps, {} checked, {} wrong, hits {}, {} pinned",
                text::grouped(steps),
                text::bytes(sum(Word::Checked)),
                text::grouped(sum(Word::Corrupt) + sum(Word::Stale)),
                text::percent(sum(Word::Hits), sum(Word::Misses)),
                text::bytes(sum(Word::Pinned)),
            ),
        };
        match &self.bar {
            Some(bar) => {
                bar.set_position((1e3 * seconds / self.time).min(1e3) as u64);
                bar.set_message(message);
            }
            None => complain(format_args!("{seconds:>6.1} s  {message}")),
        }
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
