//! `pinyard stress`: MPI, the registry and the pool under load, with faults on purpose.
//!
//! ```text
//! run -> Mpirun::find -> launch::run (mpirun, progress) -> folder::read -> verdict::of -> reports
//! ```
//!
//! The ranks are a program of their own, `pinyard-stress`, since it links an MPI.

mod launch;
mod show;

use crate::demo::mpi::{Kind, Mpirun};
use crate::demo::{Refusal, STOP};
use crate::programs::Folders;
use crate::terminal::{complain, print};
use launch::Job;
use pinyard::environment;
use pinyard_cli::place;
use pinyard_cli::stress::options::{self, Outputs};
use pinyard_cli::stress::record::Run;
use pinyard_cli::stress::{document, folder, verdict, write_reports};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

/// The ranks' program.
const PROGRAM: &str = "pinyard-stress";

/// Arguments of `pinyard stress`.
///
/// Exit status: 0 clean; 1 wrong bytes; 2 it cannot run; 3 it ended otherwise than it had
/// to (a hang, a lost rank, a fault without its effect); 130 interrupted.
// The ranks' options are a group `Options` of their own, and names of groups are unique.
#[derive(clap::Args)]
#[group(id = "command")]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Options {
    #[command(flatten)]
    options: options::Options,
    #[command(flatten)]
    outputs: Outputs,
    /// Ranks to start; one is started without a launcher
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// mpirun to start, of Open MPI or MPICH
    #[arg(long, value_name = "PATH", env = environment::MPIRUN, hide_env = true, default_value = "mpirun")]
    mpirun: PathBuf,
    /// Folder with the program pinyard-stress [default: the folder of this command, and of
    /// ../libexec/pinyard that of the MPI]
    #[arg(long, value_name = "DIR", env = environment::PROGRAMS, hide_env = true)]
    programs: Option<PathBuf>,
    /// Folder for the ranks' files, on a file system that all machines share [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Run nothing: judge and report what a run left in DIR
    #[arg(long, value_name = "DIR", conflicts_with = "folder")]
    merge: Option<PathBuf>,
    /// Arguments for mpirun, in the place of those that keep the run on this machine
    #[arg(last = true, value_name = "MPIRUN ARGUMENTS")]
    arguments: Vec<String>,
}

const AFTER_HELP: &str = "\
Example:             pinyard stress -n 4 --time 60 --seed 7 --report stress.html
On several machines: pinyard stress -n 64 --folder DIR --report stress.html -- --hostfile FILE
Under Slurm:         srun -n 64 pinyard-stress --time 60 --folder DIR --report stress.html
Exit status:         0 clean, 1 wrong bytes, 2 cannot run, 3 ended badly, 130 interrupted";

/// Runs the stress test.
pub(crate) fn run(options: &Options) -> ExitCode {
    let outcome = ctrlc::set_handler(|| STOP.store(true, Relaxed))
        .map_err(|error| Refusal::new(format!("sigaction(SIGINT): {error}"), ""))
        .and_then(|()| match &options.merge {
            Some(folder) => folder::merge(folder)
                .map_err(|error| Refusal::new(error.to_string(), "name the folder of a run")),
            None => start(options),
        })
        .and_then(|run| conclude(options, &run));
    if STOP.load(Relaxed) {
        eprintln!("interrupted: every process of the run has been ended");
        return ExitCode::from(verdict::INTERRUPTED);
    }
    outcome.unwrap_or_else(|refusal| {
        complain(format_args!("pinyard stress {}", refusal.line()));
        ExitCode::from(verdict::REFUSED)
    })
}

fn start(options: &Options) -> Result<Run, Refusal> {
    let mpirun = Mpirun::find(&options.mpirun);
    let program = program(options, mpirun.as_ref().ok().map(|mpirun| mpirun.kind))?;
    // A fault may end the ranks' launcher, so there is one.
    let mpirun = match options.ranks {
        1 if options.arguments.is_empty() => None,
        _ => Some(mpirun?),
    };
    let temporary = tempfile::Builder::new().prefix("pinyard-stress-").tempdir();
    let temporary = temporary
        .map_err(|error| Refusal::new(format!("mkdtemp: {error}"), "set TMPDIR to a writable folder"))?;
    let folder = match &options.folder {
        Some(folder) => folder,
        None => temporary.path(),
    };
    clear(folder)?;
    let job = Job {
        mpirun,
        program,
        folder,
        ranks: options.ranks,
        options: &options.options,
        arguments: &options.arguments,
    };
    let launcher = launch::run(&job)?;
    let ranks = folder::read(folder, options.ranks);
    Ok(Run { options: options.options.clone(), launcher: Some(launcher), ranks })
}

/// Makes the folder; what another run left there would be taken for this one's.
fn clear(folder: &Path) -> Result<(), Refusal> {
    let failed =
        |error| Refusal::new(format!("prepare {}: {error}", folder.display()), "name another with --folder");
    place::new_folder(folder).map_err(failed)?;
    folder::clear(folder).map_err(failed)
}

/// The ranks' program, linked with `mpi`.
fn program(options: &Options, mpi: Option<Kind>) -> Result<PathBuf, Refusal> {
    let named: Vec<PathBuf> = options.programs.iter().cloned().collect();
    Folders::linked(&named, mpi)?.find(PROGRAM).map_err(|why| {
        Refusal::new(
            why,
            "build it with `cargo build --release -p pinyard-mpi-tests --features verbs`, or install it with \
             `make install` (both need that MPI's development files and libclang), or name its folder with \
             --programs",
        )
    })
}

fn conclude(options: &Options, run: &Run) -> Result<ExitCode, Refusal> {
    let verdict = verdict::of(run);
    print(document::summary(run));
    print(&verdict);
    write_reports(&options.outputs, run, &verdict).map_err(|error| Refusal::new(error.to_string(), ""))?;
    Ok(ExitCode::from(verdict.exit))
}
