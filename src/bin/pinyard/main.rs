//! The `pinyard` command.

mod demo;
mod doctor;
mod environment;
mod info;
mod manual;
mod replay;
mod report;
mod stress;

use clap::{CommandFactory, Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// Memory that stays registered for MPI programs.
#[derive(Parser)]
#[command(name = "pinyard", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the hang and the stale pages of other designs beside pinyard, under a real MPI
    Demo(demo::Options),
    /// Examine this machine: `pinyard doctor hooks`
    Doctor(doctor::Options),
    /// Print the version, what the hooks see in this process, and the environment variables
    Info(info::Options),
    /// Run a device pool's trace through other configurations, on a simulated device
    Replay(replay::Options),
    /// Stress MPI, the registry and the pool on this machine or a cluster, and report
    Stress(Box<stress::Options>),
    /// Write the manual's pages of this command into a folder
    #[command(hide = true)]
    WriteManual(manual::Options),
}

/// Prints a line on stdout. A reader that has gone (`pinyard info | head`) wants
/// no more; any other failure ends the command, whose whole product it is.
fn print(text: impl std::fmt::Display) {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("pinyard: write to stdout: {error}");
            std::process::exit(2);
        }
        _ => {}
    }
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Info(options) => info::run(&options),
        Command::Replay(options) => replay::run(&options),
        Command::Stress(options) => stress::run(&options),
        Command::WriteManual(options) => manual::run(&options, Arguments::command()),
    }
}
