//! `pinyard demo`: the same MPI job over four ways to keep memory registered.
//!
//! ```text
//! run -> mpi::find -> rows::ALL -> job::run (mpirun, progress, reports) -> row::Row::of
//!     -> table, stack, verdict
//! ```

pub(crate) mod job;
pub(crate) mod mpi;
mod row;
mod rows;
mod show;
mod stack;
pub(crate) mod table;
mod verdict;

use crate::programs::Folders;
use crate::terminal::{complain, print};
use mpi::Mpirun;
use pinyard::environment;
use row::Row;
use serde_json::{Value, json};
use show::Show;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Bytes of a message, as the rank programs have it.
const BYTES: u64 = 258_048;
/// Rounds per rank unless asked for otherwise.
const ROUNDS: u64 = 8000;
const QUICK_ROUNDS: u64 = 400;

/// Arguments of `pinyard demo`.
#[derive(clap::Args)]
#[command(after_help = "Example: pinyard demo --json > demo.json")]
pub(crate) struct Options {
    /// Print one JSON document on stdout, and nothing else there
    #[arg(long)]
    json: bool,
    /// Rounds per rank and row [default: 8000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Ranks to start
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    ranks: u32,
    /// End a row's rounds after this many seconds
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// mpirun to start, of Open MPI or MPICH
    #[arg(long, value_name = "PATH", env = environment::MPIRUN, hide_env = true, default_value = "mpirun")]
    mpirun: PathBuf,
    /// Folder with the rank programs [default: that of this command, and where `make install` puts them]
    #[arg(long, value_name = "DIR", env = environment::PROGRAMS, hide_env = true)]
    programs: Option<PathBuf>,
    /// Only 400 rounds: a test of the machinery
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
}

/// Why a command cannot run, and what the user can do about it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    pub(crate) remedy: String,
}

impl Refusal {
    pub(crate) fn new(why: impl Into<String>, remedy: impl Into<String>) -> Refusal {
        Refusal { why: why.into(), remedy: remedy.into() }
    }

    pub(crate) fn line(&self) -> String {
        let separator = if self.remedy.is_empty() { "" } else { "; " };
        format!("cannot run: {}{separator}{}", self.why, self.remedy)
    }
}

/// The run was clean, was not, could not take place, or was interrupted.
const NOT_CLEAN: u8 = 1;
const REFUSED: u8 = 2;
const INTERRUPTED: u8 = 130;

/// Set by the signal handler; everybody who waits looks at it.
pub(crate) static STOP: AtomicBool = AtomicBool::new(false);

/// Runs the demo.
pub(crate) fn run(options: &Options) -> ExitCode {
    let outcome = ctrlc::set_handler(|| STOP.store(true, Relaxed))
        .map_err(|error| Refusal::new(format!("sigaction(SIGINT): {error}"), ""))
        .and_then(|()| Demo::prepare(options))
        .and_then(|demo| demo.rows().map(|rows| (demo, rows)));
    if STOP.load(Relaxed) {
        eprintln!("interrupted: every process of the demo has been ended");
        return ExitCode::from(INTERRUPTED);
    }
    match outcome {
        Ok((demo, rows)) => demo.conclude(&rows),
        Err(refusal) => {
            complain(format_args!("pinyard demo {}", refusal.line()));
            if options.json {
                let error = json!({ "why": refusal.why, "remedy": refusal.remedy });
                let document = json!({ "pinyard": env!("CARGO_PKG_VERSION"), "refused": error });
                print(format_args!("{document:#}"));
            }
            ExitCode::from(REFUSED)
        }
    }
}

struct Demo<'o> {
    options: &'o Options,
    mpirun: Mpirun,
    programs: Folders,
    started: Instant,
}

impl Demo<'_> {
    fn prepare(options: &Options) -> Result<Demo<'_>, Refusal> {
        let mpirun = Mpirun::find(&options.mpirun)?;
        let named: Vec<PathBuf> = options.programs.iter().cloned().collect();
        let programs = Folders::linked(&named, Some(mpirun.kind))?;
        for row in rows::ALL {
            rows::program(&programs, row)?;
        }
        Ok(Demo { options, mpirun, programs, started: Instant::now() })
    }

    fn rounds(&self) -> u64 {
        self.options.rounds.unwrap_or(if self.options.quick { QUICK_ROUNDS } else { ROUNDS })
    }

    fn rows(&self) -> Result<Vec<Row>, Refusal> {
        let temporary = tempfile::Builder::new()
            .prefix("pinyard-demo-")
            .tempdir()
            .map_err(|error| Refusal::new(format!("mkdtemp: {error}"), "set TMPDIR to a writable folder"))?;
        let show = Show::new(self.options.ranks, &self.mpirun);
        rows::ALL
            .iter()
            .enumerate()
            .take_while(|_| !STOP.load(Relaxed))
            .map(|(index, spec)| self.row(spec, &temporary.path().join(index.to_string()), &show))
            .collect()
    }

    fn row(&self, spec: &rows::Spec, folder: &Path, show: &Show) -> Result<Row, Refusal> {
        let job = job::Job {
            mpirun: &self.mpirun,
            program: rows::program(&self.programs, spec)?,
            spec,
            folder,
            ranks: self.options.ranks,
            rounds: self.rounds(),
            seconds: self.options.seconds,
        };
        let line = show.row(spec, job.rounds);
        let ended = job::run(&job, |rounds| line.advance(rounds))?;
        let row = Row::of(spec, ended)?;
        line.finish(&row);
        Ok(row)
    }

    fn conclude(&self, rows: &[Row]) -> ExitCode {
        let verdict = verdict::of(rows);
        let cycle = stack::cycle(rows);
        if self.options.json {
            let cycle = cycle.as_ref().map(|cycle| cycle.calls.clone());
            print(format_args!("{:#}", self.document(rows, &verdict, json!(cycle))));
        } else {
            print(table::of(rows));
            print(format_args!("\n{}", table::notes(rows, self.options.ranks)));
            if let Some(cycle) = &cycle {
                print(format_args!("\n{cycle}"));
            }
            print(format_args!("\n{verdict}"));
        }
        ExitCode::from(if verdict.is_clean() { 0 } else { NOT_CLEAN })
    }

    fn document(&self, rows: &[Row], verdict: &verdict::Verdict, cycle: Value) -> Value {
        json!({
            "pinyard": env!("CARGO_PKG_VERSION"),
            "mpirun": self.mpirun,
            "ranks": self.options.ranks,
            "message_bytes": BYTES,
            "seconds": tenths(self.started.elapsed()),
            "rows": rows,
            "cycle": cycle,
            "verdict": { "clean": verdict.is_clean(), "faults": verdict.faults, "text": verdict.to_string() },
        })
    }
}

fn tenths(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}
