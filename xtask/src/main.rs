//! Runs pinyard's tests: `cargo xtask test`, `cargo xtask guards`.

mod guards;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Takes each line that guards an invariant out of a copy of the tree; its test must notice
    Guards(guards::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().task {
        Task::Guards(arguments) => guards::run(&arguments),
    }
}
