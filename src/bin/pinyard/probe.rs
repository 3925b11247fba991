//! `pinyard probe`: whether an MPI takes device pointers, tried out by a program that is
//! built for that MPI.

use crate::demo::own_folder;
use crate::doctor::Question;
use crate::terminal::complain;
use pinyard::environment;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The program that tries, which keeps the answers as well.
const PROGRAM: &str = "pinyard-mpi-probe";

/// Arguments of `pinyard probe`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Options {
    /// Show how a communicator of the ranks would carry operations out, and keep nothing
    #[arg(long)]
    plan: bool,
    /// The command that starts two ranks, each with a device; for a plan as many as you like
    #[arg(long, value_name = "COMMAND", default_value = "mpirun -n 2")]
    launch: String,
    /// Folder with the program pinyard-mpi-probe [default: the folder of this command]
    #[arg(long, value_name = "DIR", env = environment::PROGRAMS, hide_env = true)]
    programs: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Example:     pinyard probe --launch \"srun -n 2 --gpus-per-task 1\"
             pinyard probe --plan --launch \"srun -n 8 --gpus-per-task 1\"
Exit status: 0 it takes them, 1 it does not, 2 that could not be tried; of a plan COMMAND's";

fn program(folder: Option<&PathBuf>) -> Result<PathBuf, String> {
    let folder = match folder {
        Some(folder) => folder.clone(),
        None => own_folder().map_err(|refusal| refusal.line())?,
    };
    let program = folder.join(PROGRAM);
    if program.is_file() {
        return Ok(program);
    }
    Err(format!("{program:?} is not there: build it for your MPI (cargo build -p pinyard-mpi)"))
}

/// Tries it out.
pub(crate) fn run(options: &Options) -> ExitCode {
    let status = program(options.programs.as_ref()).and_then(|program| {
        let plan = options.plan.then_some("--plan");
        let status = Command::new(&program).args(plan).args(["--launch", &options.launch]).status();
        status.map_err(|error| format!("{}: {error}", program.display()))
    });
    match status {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)),
        Err(text) => {
            complain(format_args!("pinyard probe: {text}"));
            ExitCode::from(2)
        }
    }
}

/// What is known, a line per library; `Err` says why it cannot be told.
pub(crate) fn known() -> Result<Vec<String>, String> {
    let folder = std::env::var_os(environment::PROGRAMS).map(PathBuf::from);
    let program = program(folder.as_ref())?;
    let mut command = Command::new(&program);
    command.arg("show");
    let failed = |why: String| format!("{} show: {why}", program.display());
    let (status, lines) = Question::to(command).lines().map_err(failed)?;
    if status.success() { Ok(lines) } else { Err(failed(format!("{status}; run it to see why"))) }
}
