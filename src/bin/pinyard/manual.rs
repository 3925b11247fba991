//! The manual's pages of the command, made of what `--help` says.

use crate::environment::VARIABLES;
use pinyard::allocator::config::TABLE;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `pinyard write-manual`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// A folder that exists
    folder: PathBuf,
}

/// Writes `pinyard.1` and a page for each subcommand.
pub(crate) fn run(options: &Options, command: clap::Command) -> ExitCode {
    match write(&options.folder, command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pinyard: the manual in {}: {error}", options.folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path, command: clap::Command) -> std::io::Result<()> {
    let command = command.disable_help_subcommand(true).after_long_help(environment());
    clap_mangen::generate_to(command, folder)
}

/// What [`VARIABLES`] and the tables of traces and pools say.
fn environment() -> String {
    let variables = VARIABLES
        .iter()
        .map(|variable| format!("{}: {}; not set: {}", variable.name, variable.meaning, variable.default));
    let settings = TABLE
        .iter()
        .map(|setting| format!("{}: {}; not set: {}", setting.name, setting.meaning, setting.default));
    let trace = pinyard_trace::settings::TABLE
        .iter()
        .map(|setting| format!("{}: {}; not set: {}", setting.name, setting.meaning, setting.default));
    let lines: Vec<String> = variables.chain(trace).chain(settings).collect();
    format!("Environment:\n\n{}", lines.join("\n\n"))
}
