//! `pinyard doctor`: is this machine fit for registered memory, and what fixes it?
//!
//! ```text
//! gather::gather -> Facts -> judge::judge -> [Finding] -> lines::lines -> show::screen
//!                                        \-> Answer, a line of JSON -> compare (many nodes)
//! ```

mod bind;
mod compare;
mod facts;
mod gather;
mod hooks;
mod judge;
mod known;
mod lines;
mod nearness;
mod settings;
mod show;

use self::facts::Facts;
use self::gather::probe::Kind;
pub(crate) use self::gather::probe::Question;
use self::judge::Finding;
use self::show::Paper;
use crate::terminal;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `pinyard doctor`.
///
/// Exit status: 0 nothing to fix, 1 something, 2 it cannot say; of --compare also 3, the
/// nodes differ and nothing is to be fixed, and 4, a node is worse than the others.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub(crate) struct Options {
    #[command(subcommand)]
    subject: Option<Subject>,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Print the document in one line, for --compare
    #[arg(long, conflicts_with_all = ["json", "compare"])]
    job: bool,
    /// Hold the answers of many nodes side by side: files with lines of --job, - for standard input
    #[arg(long, value_name = "FILE", num_args = 1..)]
    compare: Vec<PathBuf>,
    /// The nodes that should have answered, separated by commas or space
    #[arg(long, value_name = "NODES", requires = "compare")]
    expect: Option<String>,
    /// Ask a library, in this process: what the command starts for each
    #[arg(long, hide = true, num_args = 2, value_names = ["KIND", "PATH"])]
    probe: Option<Vec<String>>,
}

#[derive(clap::Subcommand)]
enum Subject {
    /// Try every way of changing a mapping, and judge by bytes whether it is noticed
    Hooks(hooks::Options),
    /// Print the GPU of this rank and the NIC next to it, as settings for a shell
    Bind(bind::Options),
}

const AFTER_HELP: &str = "\
Examples:
  pinyard doctor
  mkdir answers; srun --output=answers/%N pinyard doctor --job; pinyard doctor --compare answers/*
Exit status: 0 nothing to fix, 1 something, 2 it cannot say;
of --compare also 3, nodes differ and no more, and 4, a node is worse than others or missing";

/// What a node says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    schema: String,
    facts: Facts,
    findings: Vec<Finding>,
}

const SCHEMA: &str = "pinyard-doctor/2";
const CANNOT: u8 = 2;

/// Examines the machine, or compares.
pub(crate) fn run(options: &Options) -> ExitCode {
    if let Some([kind, path]) = options.probe.as_deref() {
        return match Kind::from_str(kind, false) {
            Ok(kind) => {
                gather::probe::run(kind, path);
                ExitCode::SUCCESS
            }
            Err(error) => refuse(&error),
        };
    }
    match &options.subject {
        Some(Subject::Hooks(options)) => hooks::run(options),
        Some(Subject::Bind(options)) => bind::run(options),
        None if !options.compare.is_empty() => compared(options),
        None => examine(options),
    }
}

fn refuse(why: &str) -> ExitCode {
    terminal::complain(format_args!("pinyard doctor: {why}"));
    ExitCode::from(CANNOT)
}

/// For people: what variables, paths and libraries say is theirs, and shown as it is.
fn screen(answer: &Answer, paper: Paper) -> serde_json::Result<String> {
    let Answer { facts, findings, .. } = terminal::shown(answer)?;
    let text = show::screen(&facts, &lines::lines(&facts, &findings), &findings, paper);
    Ok(match crate::programs::book() {
        Some(book) => format!("{text}\nThe book: {}", book.display()),
        None => text,
    })
}

fn examine(options: &Options) -> ExitCode {
    let facts = gather::gather();
    let findings = judge::judge(&facts);
    let failed = judge::to_fix(&findings);
    let answer = Answer { schema: SCHEMA.to_owned(), facts, findings };
    let printed = match (options.job, options.json) {
        (true, _) => serde_json::to_string(&answer).map(terminal::print),
        (_, true) => serde_json::to_string_pretty(&answer).map(terminal::print),
        _ => screen(&answer, Paper::of_stdout()).map(terminal::print_painted),
    };
    if let Err(error) = printed {
        return refuse(&format!("its answer as JSON: {error}"));
    }
    ExitCode::from(u8::from(failed))
}

fn compared(options: &Options) -> ExitCode {
    let read = compare::read(&options.compare).and_then(|answers| match options.json {
        true => Ok(answers),
        false => terminal::shown(&answers).map_err(|error| format!("the answers as JSON: {error}")),
    });
    let answers = match read {
        Ok(answers) => answers,
        Err(why) => return refuse(&why),
    };
    let expected = options.expect.as_deref().unwrap_or_default();
    let expected: Vec<String> =
        expected.split([',', ' ', '\n']).map(str::to_owned).filter(|name| !name.is_empty()).collect();
    let comparison = compare::Comparison::of(answers, &expected);
    if options.json {
        terminal::print(format_args!("{:#}", comparison.document()));
    } else {
        terminal::print_painted(comparison.text(Paper::of_stdout()));
    }
    ExitCode::from(comparison.exit())
}

#[cfg(test)]
pub(crate) mod made_up;
