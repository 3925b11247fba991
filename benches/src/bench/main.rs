//! The benchmarks of `pinyard bench`, one in a process: `pinyard-bench cache.hit` writes
//! what it does and its rows on standard output, a JSON line each.
//!
//! ```text
//! main -> cache, hooks, backends, pools, instructions -> Turns -> Row -> tell
//! ```
//!
//! Ours and the peers take turns in one process, or where that cannot be, in processes
//! that live side by side. A sample is a turn: the mean over its operations.

mod backends;
mod cache;
mod hooks;
mod instructions;
mod peer;
mod pools;
mod tell;

use clap::Parser;
use pinyard_benches::traces;
use pinyard_benches::turns::fail;

const AFTER_HELP: &str = "\
Examples:
  pinyard-bench cache.hit --quick
  pinyard-bench pools.host --threads 4
For tables, plots and comparisons: pinyard bench --help";

/// Runs a benchmark of `pinyard bench`, which reads what this prints.
#[derive(Parser)]
#[command(name = "pinyard-bench", after_help = AFTER_HELP)]
struct Arguments {
    /// Its name, as `pinyard bench --list` has it
    benchmark: String,
    #[command(flatten)]
    settings: Settings,
    /// One of the children: what it measures
    #[arg(long, hide = true)]
    child: Option<String>,
    #[arg(long, hide = true, default_value_t = 0)]
    regions: usize,
}

/// How much is measured.
#[derive(clap::Args, Clone, Copy)]
struct Settings {
    /// Few turns and small sizes: that it works, no figures
    #[arg(long)]
    quick: bool,
    /// Threads at most [default: as many as there are cores, and at least two]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl Settings {
    /// `full`, or `quick` where only the machinery is tried.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Turns of a millisecond or less by each of `threads`. Fewer of many, where a peer's
    /// lock makes one take a hundred times as long.
    fn turns(&self, threads: usize) -> usize {
        self.pick((160 / threads.max(1)).max(20), 8)
    }

    /// Operations in such a turn.
    fn operations(&self) -> usize {
        self.pick(20_000, 1000)
    }

    /// Turns of many milliseconds.
    fn slow_turns(&self) -> usize {
        self.pick(20, 2)
    }

    /// Of `values`, in quick runs those that are at most `most`.
    fn up_to(&self, most: usize, values: &[usize]) -> Vec<usize> {
        values.iter().copied().filter(|value| !self.quick || *value <= most).collect()
    }

    /// The numbers of threads to measure with.
    fn thread_counts(&self) -> Vec<usize> {
        let most = self.threads.unwrap_or_else(|| pinyard_cli::bench::machine::cores().max(2));
        [1, 2, 4, 8, 16].into_iter().filter(|&threads| threads <= most).collect()
    }
}

fn main() {
    // Variables name what some benchmarks open.
    if pinyard_hooks::is_privileged() {
        fail(
            "this file is set-user-ID or has capabilities (AT_SECURE): install it without (chmod 755, setcap -r)",
        );
    }
    let arguments = Arguments::parse();
    let settings = arguments.settings;
    match (arguments.benchmark.as_str(), &arguments.child) {
        ("cache.memory", Some(name)) => cache::memory::child(name),
        ("cache.insert", Some(_)) => cache::inserts::child(arguments.regions),
        ("hooks.calls", Some(name)) => hooks::calls::child(&settings, name, arguments.regions),
        ("pools.host", Some(name)) => pools::host::child(&settings, name),
        ("cache.hit", None) => cache::hits::run(&settings),
        ("cache.beside", None) => cache::beside::run(&settings),
        ("cache.event", None) => cache::events::run(&settings),
        ("cache.insert", None) => cache::inserts::run(&settings),
        ("cache.strided", None) => cache::inserts::strided(),
        ("cache.memory", None) => cache::memory::run(),
        ("hooks.calls", None) => hooks::calls::run(&settings),
        ("hooks.watched", None) => hooks::watched::run(&settings),
        ("backends.register", None) => backends::run(&settings),
        ("pools.host", None) => pools::host::run(&settings),
        (name @ "pools.same-size", None) => {
            pools::device::run(&settings, name, traces::same_sizes(settings.quick));
        }
        (name @ "pools.workloads", None) => {
            pools::device::run(&settings, name, traces::workloads(settings.quick));
        }
        (name @ "pools.streams", None) => {
            pools::device::run(&settings, name, traces::streams(settings.quick));
        }
        (name @ "pools.holes", None) => {
            pools::device::run(&settings, name, traces::holes(settings.quick));
        }
        (name @ "pools.random", None) => {
            pools::device::run(&settings, name, traces::random(settings.quick));
        }
        (name @ "pools.calls", None) => pools::calls::run(&settings, name),
        ("pools.shortage", None) => pools::shortage::run(&settings),
        ("pools.threads", None) => pools::threads::run(&settings),
        (name @ "pools.registered", None) => pools::registered::run(&settings, name),
        (name @ "pools.copies", None) => pools::device::run_pinned(&settings, name),
        ("pools.pinned", None) => pools::pinned::run(&settings),
        ("instructions", None) => instructions::run(),
        (name, _) => fail(&format!("no benchmark {name:?}: pinyard bench --list has all of them")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::CommandFactory;
    use pinyard_cli::bench::catalogue::ALL;

    #[test]
    fn the_help_has_examples_that_are_taken() {
        Arguments::command().debug_assert();
        let help = Arguments::command().render_help().to_string();
        let examples: Vec<&str> =
            help.lines().filter(|line| line.trim_start().starts_with("pinyard-bench ")).collect();
        assert!(examples.len() > 1, "{help}");
        for line in examples {
            let taken = Arguments::try_parse_from(line.split_whitespace()).unwrap();
            assert!(ALL.iter().any(|known| known.name == taken.benchmark), "{line}");
        }
    }
}
