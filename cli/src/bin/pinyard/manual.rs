//! The manual's pages of the command, made of what `--help` says.

use crate::terminal::complain;
use pinyard::environment::Variable;
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
            complain(format_args!("pinyard: the manual in {}: {error}", options.folder.display()));
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path, command: clap::Command) -> std::io::Result<()> {
    let command = command.disable_help_subcommand(true).after_long_help(environment());
    clap_mangen::generate_to(command, folder)
}

/// What [`pinyard::environment`] lists, a paragraph each.
fn environment() -> String {
    let groups = pinyard::environment::groups();
    let lines: Vec<String> = groups
        .iter()
        .flat_map(|group| &group.variables)
        .map(|variable| {
            let Variable { name, meaning, allowed, default, .. } = variable;
            format!("{name}: {meaning} ({allowed}); not set: {default}")
        })
        .collect();
    // packaging/install.sh knows where.
    format!("Environment:\n\n{}\n\nThe book, with a search: @BOOK@", lines.join("\n\n"))
}
