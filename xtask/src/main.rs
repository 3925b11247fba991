//! Runs pinyard's tests: `cargo xtask test`, `cargo xtask guards`.

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {}

fn main() -> ExitCode {
    match Arguments::parse().task {}
}
