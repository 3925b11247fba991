//! `pinyard bench`: every benchmark of the project by name, with a table, plots, and a
//! comparison with a saved run.
//!
//! ```text
//! run -> catalogue::find -> program::find -> launch::run (a process each, progress)
//!     -> Document -> save, plot, table or JSON; Comparison with a saved one
//! ```
//!
//! The command measures nothing itself, so that it needs no MPI, no UCX and no CUDA: what
//! links or opens those are programs beside it.

mod launch;
mod mpi;
mod output;
mod program;
mod show;

use crate::demo::{Refusal, STOP};
use crate::terminal::{complain, print};
use output::Outputs;
use pinyard::environment;
use pinyard_cli::bench::catalogue::{self, Program};
use pinyard_cli::bench::compare::{Change, NOISE};
use pinyard_cli::bench::document::{Failed, Skipped};
use pinyard_cli::bench::{Absence, Benchmark, Comparison, Document, table};
use program::Programs;
use show::Show;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Arguments of `pinyard bench`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// Benchmarks to run: a name (cache.hit), a group (cache) or a pattern ('*.memory'); all without one
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run nothing: show every benchmark, what it measures, its peers, and what it needs
    #[arg(long, conflicts_with_all = ["save", "compare", "plot", "from"])]
    list: bool,
    /// Few turns and small sizes: that it works, in seconds; no figures to publish
    #[arg(long)]
    quick: bool,
    /// Write the run to FILE, for --compare and --from
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare with the run in FILE: which figures changed by more than noise
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// A median has to differ by more than this many per cent to count as changed
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0 * NOISE, requires = "compare", value_parser = percent)]
    noise: f64,
    /// Draw each benchmark into FOLDER, as SVG
    #[arg(long, value_name = "FOLDER")]
    plot: Option<PathBuf>,
    /// Measure nothing: take the figures of the run in FILE
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "quick", "threads"])]
    from: Option<PathBuf>,
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    json: bool,
    /// Threads at most [default: as many as there are cores, and at least two]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    threads: Option<u32>,
    /// mpirun to start, of Open MPI or MPICH, for mpi.gpu
    #[arg(long, value_name = "PATH", env = environment::MPIRUN, hide_env = true, default_value = "mpirun")]
    mpirun: PathBuf,
    /// Ranks of mpi.gpu
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    ranks: u32,
    /// Folder with programs that measure, more than once for several [default: the folder of this
    /// command, and ../libexec/pinyard, with a folder for each MPI]
    #[arg(long, value_name = "DIR", env = environment::PROGRAMS, hide_env = true)]
    programs: Vec<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  pinyard bench --list
  pinyard bench --quick                             everything, in seconds: does it run here?
  pinyard bench cache hooks --plot plots            two groups, with pictures
  pinyard bench --save before.json                  before a change ...
  pinyard bench --compare before.json               ... and after it: what became slower?
  pinyard bench cache --from before.json --plot .   pictures of a saved run
Exit status: 0 measured; 1 something is slower than in the compared run, beyond noise;
             2 cannot run; 3 a benchmark failed; 130 interrupted";

const SLOWER: u8 = 1;
const REFUSED: u8 = 2;
const FAILED: u8 = 3;
const INTERRUPTED: u8 = 130;

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("must be a number of per cent, 0 or more".to_owned()),
    }
}

/// Runs the benchmarks.
pub(crate) fn run(options: &Options) -> ExitCode {
    let outcome = ctrlc::set_handler(|| STOP.store(true, Relaxed))
        .map_err(|error| Refusal::new(format!("sigaction(SIGINT): {error}"), ""))
        .and_then(|()| carry_out(options));
    if STOP.load(Relaxed) {
        eprintln!("interrupted: every process of the benchmark has been ended");
    }
    outcome.unwrap_or_else(|refusal| {
        complain(format_args!("pinyard bench {}", refusal.line()));
        ExitCode::from(REFUSED)
    })
}

fn carry_out(options: &Options) -> Result<ExitCode, Refusal> {
    let wanted = catalogue::find(&options.names).map_err(|error| Refusal::new(error.to_string(), ""))?;
    let programs = Programs::of(&options.programs, &options.mpirun)?;
    if options.list {
        list(options, &wanted, &programs);
        return Ok(ExitCode::SUCCESS);
    }
    // What cannot be written or compared with is known before minutes of measurement.
    let outputs = Outputs::prepare(options.save.as_deref(), options.plot.as_deref())?;
    let read = |path: &PathBuf| Document::read(path).map_err(|error| Refusal::new(error.to_string(), ""));
    let saved = options.compare.as_ref().map(read).transpose()?;
    let document = match options.from.as_ref().map(read).transpose()? {
        Some(mut document) => {
            let is_wanted = |name: &str| wanted.iter().any(|benchmark| benchmark.name == name);
            document.rows.retain(|row| is_wanted(&row.benchmark));
            document.skipped.retain(|skipped| is_wanted(&skipped.benchmark));
            document
        }
        None => measure(options, &wanted, &programs)?,
    };
    let comparison = saved.map(|saved| Comparison::of(&saved, &document, options.noise / 100.0));
    if options.json {
        print(output::json(&document, comparison.as_ref())?);
    } else {
        print(table::of(&document).trim_end());
        print(format_args!("\nOn {}", document.machine));
        if let Some(comparison) = &comparison {
            print(format_args!("\nBeside the saved run\n{}", table::of_comparison(comparison)));
        }
    }
    // What was measured before an interrupt is whole.
    outputs.write(&document)?;
    Ok(ExitCode::from(match &comparison {
        _ if STOP.load(Relaxed) => INTERRUPTED,
        _ if !document.failed.is_empty() => FAILED,
        _ if document.rows.is_empty() => REFUSED,
        Some(comparison) if comparison.count(Change::Slower) > 0 => SLOWER,
        _ => 0,
    }))
}

fn list(options: &Options, wanted: &[&'static Benchmark], programs: &Programs) {
    let state = wanted.iter().map(|benchmark| (*benchmark, programs.of_benchmark(benchmark).err()));
    let state: Vec<_> = state.collect();
    if options.json {
        let line = |(benchmark, absence): &(&Benchmark, Option<_>)| {
            serde_json::json!({
                "name": benchmark.name,
                "measures": benchmark.measures,
                "peers": benchmark.peers,
                "needs": benchmark.needs,
                "absent": absence,
            })
        };
        return print(format_args!("{:#}", serde_json::Value::from_iter(state.iter().map(line))));
    }
    print(table::of_catalogue(&state));
}

/// Every benchmark in a process of its own; one that fails does not end the others.
fn measure(
    options: &Options,
    wanted: &[&'static Benchmark],
    programs: &Programs,
) -> Result<Document, Refusal> {
    let started = Instant::now();
    let mut document = Document::new(options.quick);
    let show = Show::new(wanted);
    for benchmark in wanted {
        if STOP.load(Relaxed) {
            document.skipped.push(interrupted(benchmark));
            continue;
        }
        let line = show.line(benchmark.name);
        let mut run = launch::Run::new(&mut document, benchmark.name, &line);
        match (programs.of_benchmark(benchmark), benchmark.program) {
            (Err(absence), _) => run.skip(absence),
            (Ok(program), Program::Bench) => run.program(options, &program)?,
            (Ok(program), Program::Mpi) => mpi::run(&mut run, options, &program)?,
        }
        if STOP.load(Relaxed) {
            document.skipped.push(interrupted(benchmark));
        }
        line.finish(&document, benchmark.name);
    }
    drop(show);
    document.sort();
    document.seconds = started.elapsed().as_secs_f64();
    document.machine = pinyard_cli::bench::Machine::here();
    Ok(document)
}

/// One that did not run to its end; its rows up to there are whole.
fn interrupted(benchmark: &Benchmark) -> Skipped {
    let absence = Absence::new("interrupted", "");
    Skipped { benchmark: benchmark.name.to_owned(), peer: None, absence }
}

/// The one that failed, for the document.
fn failed(benchmark: &str, why: impl Into<String>) -> Failed {
    Failed { benchmark: benchmark.to_owned(), why: why.into() }
}

#[cfg(test)]
mod tests;
