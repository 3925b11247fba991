//! Runs pinyard's tests: `cargo xtask test` those of `make test`, `cargo xtask test --all` every one.

mod choose;
mod counts;
mod guards;
mod layers;
mod orphans;
mod pace;
mod process;
mod report;
mod run;
mod skips;
mod steps;
mod suite;
mod tree;

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
    /// Runs the steps of xtask/ci/steps.toml, and counts their tests.
    Test(suite::Test),
    /// Takes each line that guards an invariant out of a copy of the tree; its test must notice.
    Guards(guards::Arguments),
    /// Says which crate or file uses one that is not below it (xtask/ci/layers.toml).
    Layers(layers::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Test(test) => test.run(),
        Task::Guards(arguments) => return guards::run(&arguments),
        Task::Layers(arguments) => layers::run(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(2)
        }
    }
}
