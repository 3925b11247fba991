//! Twice a second: what happened since, for the series, and a line for who watches.

use crate::shared::Shared;
use indicatif::{ProgressBar, ProgressStyle};
use pinyard_cli::place;
use pinyard_cli::stress::folder;
use pinyard_cli::stress::progress::Word;
use pinyard_cli::stress::record::{self, SAMPLE_SECONDS, Sample};
use pinyard_cli::text;
use pinyard_registry::Times;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Seconds between two lines where there is no terminal.
const LINE: f64 = 5.0;

/// The thread that samples.
pub(crate) struct Sampler {
    stop: &'static AtomicBool,
    thread: JoinHandle<()>,
}

impl Sampler {
    /// Begins. `shows`: the rank has nobody else to show its progress.
    pub(crate) fn start(shared: &'static Shared, shows: bool) -> Result<Sampler, String> {
        static STOP: AtomicBool = AtomicBool::new(false);
        let path = folder::samples_path(&shared.folder, shared.rank);
        let file = place::new_file(&path).map_err(|error| format!("open({}): {error}", path.display()))?;
        let thread = thread::Builder::new().name("sampler".into());
        let thread = thread.spawn(move || run(shared, file, shows.then(Show::new)));
        let thread = thread.map_err(|error| format!("pthread_create(sampler): {error}"))?;
        return Ok(Sampler { stop: &STOP, thread });

        fn run(shared: &Shared, mut file: File, mut show: Option<Show>) {
            let mut last = Last::default();
            // Once at least: a short run may be over before this thread begins.
            loop {
                thread::park_timeout(Duration::from_secs_f64(SAMPLE_SECONDS));
                let sample = last.sample(shared);
                // The file is for a rank that is killed; without it its series is missing.
                if let Ok(line) = serde_json::to_string(&sample) {
                    let _ = writeln!(file, "{line}");
                }
                if let Some(show) = &mut show {
                    show.line(shared, &sample);
                }
                if STOP.load(Relaxed) {
                    break;
                }
            }
            if let Some(bar) = show.and_then(|show| show.bar) {
                bar.finish_and_clear();
            }
        }
    }

    /// Takes the last sample and ends.
    pub(crate) fn stop(self) {
        self.stop.store(true, Relaxed);
        self.thread.thread().unpark();
        // A panic of the thread has been printed by it.
        let _ = self.thread.join();
    }
}

/// The counters of the sample before.
#[derive(Default)]
struct Last {
    at: f64,
    steps: u64,
    bytes: u64,
    hits: u64,
    misses: u64,
    invalidations: u64,
    registering: Times,
}

impl Last {
    fn sample(&mut self, shared: &Shared) -> Sample {
        let stats = shared.registry.get().map(pinyard_registry::Registry::stats).unwrap_or_default();
        let now = Last {
            at: shared.seconds(),
            steps: shared.words.get(Word::Steps),
            bytes: shared.words.get(Word::Checked),
            hits: stats.hits,
            misses: stats.misses,
            invalidations: stats.invalidations,
            registering: stats.registering,
        };
        let sample = Sample {
            at: now.at,
            seconds: now.at - self.at,
            steps: now.steps - self.steps,
            bytes: now.bytes - self.bytes,
            hits: now.hits - self.hits,
            misses: now.misses - self.misses,
            invalidations: now.invalidations - self.invalidations,
            pinned: stats.pinned_bytes,
            registering: between(&self.registering, &now.registering),
        };
        *self = now;
        let words = shared.words;
        words.set(Word::Hits, stats.hits);
        words.set(Word::Misses, stats.misses);
        words.set(Word::Pinned, stats.pinned_bytes);
        words.set(Word::Milliseconds, (sample.at * 1e3) as u64);
        shared.with(|state| {
            state.stats = stats;
            state.rank.registering = between(&Times::default(), &stats.registering);
            state.rank.samples.push(sample);
        });
        sample
    }
}

/// The calls that `now` has and `before` had not.
fn between(before: &Times, now: &Times) -> record::Times {
    // Powers of two of a clock's ticks, whose length is measured better and better: the
    // same bucket has not quite the same bound.
    let same =
        |a: Duration, b: Duration| (0.75..1.5).contains(&(a.as_secs_f64() / b.as_secs_f64().max(1e-12)));
    let had = |upper| before.buckets().find(|&(other, _)| same(other, upper)).map_or(0, |(_, count)| count);
    let new: Vec<(Duration, u64)> =
        now.buckets().map(|(upper, count)| (upper, count.saturating_sub(had(upper)))).collect();
    let count = new.iter().map(|&(_, count)| count).sum();
    let quantile = |share: f64| {
        let wanted = ((count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let reached = new.iter().find(|&&(_, count)| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(0.0, |(upper, _)| upper.as_secs_f64() * 1e6)
    };
    record::Times { count, p50_us: quantile(0.5), p99_us: quantile(0.99) }
}

/// A bar on a terminal, a line now and then elsewhere.
struct Show {
    bar: Option<ProgressBar>,
    due: f64,
}

impl Show {
    fn new() -> Show {
        let style = ProgressStyle::with_template("[{bar:24}] {elapsed:>3} {msg}");
        let style =
            style.map(|style| style.progress_chars("=> ")).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = std::io::stderr().is_terminal().then(|| ProgressBar::new(1000).with_style(style));
        Show { bar, due: LINE }
    }

    fn line(&mut self, shared: &Shared, sample: &Sample) {
        let words = shared.words;
        let message = format!(
            "{} steps, {} checked, {} wrong, hits {}, {} pinned",
            text::grouped(words.get(Word::Steps)),
            text::bytes(words.get(Word::Checked)),
            text::grouped(words.get(Word::Corrupt) + words.get(Word::Stale)),
            text::percent(words.get(Word::Hits), words.get(Word::Misses)),
            text::bytes(sample.pinned),
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position((1e3 * sample.at / shared.options.time as f64).min(1e3) as u64);
                bar.set_message(message);
            }
            None if sample.at >= self.due => {
                self.due += LINE;
                eprintln!("pinyard-stress {:>6.1} s  rank {}: {message}", sample.at, shared.rank);
            }
            None => {}
        }
    }
}
