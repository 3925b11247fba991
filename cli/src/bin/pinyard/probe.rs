//! `pinyard probe`: whether an MPI takes device pointers, tried out by a program that is
//! built for that MPI.

use crate::demo::mpi::{Kind, Mpirun};
use crate::doctor::Question;
use crate::programs::Folders;
use crate::terminal::complain;
use pinyard::environment;
use std::path::{Path, PathBuf};
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
    /// Folder with the program pinyard-mpi-probe [default: the folder of this command, and of
    /// ../libexec/pinyard that of the MPI]
    #[arg(long, value_name = "DIR", env = environment::PROGRAMS, hide_env = true)]
    programs: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Example:     pinyard probe --launch \"srun -n 2 --gpus-per-task 1\"
             pinyard probe --plan --launch \"srun -n 8 --gpus-per-task 1\"
Exit status: 0 it takes them, 1 it does not, 2 that could not be tried; of a plan COMMAND's";

const REMEDY: &str =
    "build it for your MPI (cargo build --release -p pinyard-mpi), or install it (make install)";

/// The MPI whose launcher the command begins with. srun and scripts are of none; they are not
/// started to be asked.
fn launcher(command: &str) -> Option<Kind> {
    let first = Path::new(command.split_whitespace().next()?);
    let name = first.file_name()?.to_str()?;
    let asked = name.starts_with("mpirun") || name.starts_with("mpiexec");
    asked.then(|| Mpirun::find(first).ok()).flatten().map(|mpirun| mpirun.kind)
}

/// The program that is linked with the MPI of `launch`; where that says none, the only one.
fn program(named: &[PathBuf], launch: &str) -> Result<PathBuf, String> {
    let mpi = launcher(launch);
    let folders = Folders::linked(named, mpi).map_err(|refusal| refusal.line())?;
    let program = folders.find(PROGRAM).map_err(|why| format!("{why}: {REMEDY}"))?;
    match folders.all(PROGRAM).get(1) {
        Some(other) if mpi.is_none() && named.is_empty() => Err(format!(
            "{launch:?} does not say which MPI it starts: name the folder of that MPI's {PROGRAM} with \
             --programs, such as {} or {}",
            parent(&program),
            parent(other)
        )),
        _ => Ok(program),
    }
}

fn parent(program: &Path) -> String {
    program.parent().unwrap_or(program).display().to_string()
}

/// Tries it out.
pub(crate) fn run(options: &Options) -> ExitCode {
    let named: Vec<PathBuf> = options.programs.iter().cloned().collect();
    let status = program(&named, &options.launch).and_then(|program| {
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

/// The plan of a communicator of the ranks that `launch` starts.
pub(crate) fn planned(launch: &str) -> Result<String, String> {
    let program = program(&[], launch)?;
    let output = Command::new(&program).args(["--plan", "--launch", launch]).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace('\n', "; ");
    match output.status.success() {
        true => Ok(words(&output.stdout)),
        false => {
            Err(format!("{launch:?} of {}: {}: {}", program.display(), output.status, words(&output.stderr)))
        }
    }
}

/// What is known, a line per library; `Err` says why it cannot be told.
pub(crate) fn known() -> Result<Vec<String>, String> {
    let named: Vec<PathBuf> =
        std::env::var_os(environment::PROGRAMS).into_iter().map(PathBuf::from).collect();
    let folders = Folders::linked(&named, None).map_err(|refusal| refusal.line())?;
    // All keep the same answers; one may not start here, where its MPI is not loaded.
    let mut failure = match named.first() {
        Some(_) => folders.find(PROGRAM).err().unwrap_or_default(),
        None => format!("no {PROGRAM} beside this command or in libexec/pinyard (make install)"),
    };
    for program in folders.all(PROGRAM) {
        match answers(&program) {
            Ok(lines) => return Ok(lines),
            Err(why) => failure = why,
        }
    }
    Err(failure)
}

fn answers(program: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new(program);
    command.arg("show");
    let failed = |why: String| format!("{} show: {why}", program.display());
    let (status, lines) = Question::to(command).lines().map_err(failed)?;
    if status.success() { Ok(lines) } else { Err(failed(format!("{status}; run it to see why"))) }
}
