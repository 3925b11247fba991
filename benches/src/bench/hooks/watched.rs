//! What being watched by userfaultfd costs: a fresh buffer is mapped, written, registered
//! and unmapped, with patched entries alone (`PINYARD_HOOKS=entry`) and in the default
//! set-up, which watches a program that makes raw calls.

use crate::{Settings, tell};
use pinyard_benches::turns::or_fail;
use pinyard_benches::worker::Worker;
use pinyard_cli::bench::row::OURS;
use pinyard_cli::bench::{Absence, Axis, Row, Summary};
use pinyard_registry::MECHANISM_VARIABLE;
use pinyard_registry::backend::IoUring;
use std::process::Command;

/// The program that measures, beside this one.
const PROGRAM: &str = "pinyard-bench-watched";
/// Bytes of a buffer, and what is done with it, in the order of the program's figures.
const SIZES: [usize; 3] = [4096, 65_536, 1 << 20];
const OPERATIONS: [&str; 4] = ["get, a miss", "get, a hit", "madvise", "munmap"];
/// The figures of a turn: each operation at each size.
const FIGURES: usize = OPERATIONS.len() * SIZES.len();
/// The peer, and what makes it so.
const ENTRIES: (&str, &str) = ("patched entries alone", "entry");

/// Each operation, with and without a watch.
pub(crate) fn run(settings: &Settings) {
    if let Err(error) = IoUring::new(1) {
        return tell::skipped(Absence::new(
            error.to_string(),
            "allow io_uring: sysctl kernel.io_uring_disabled",
        ));
    }
    let program = or_fail(std::env::current_exe()).with_file_name(PROGRAM);
    if !program.is_file() {
        let remedy = "build it with `cargo build --release -p pinyard-benches`, into the same folder";
        return tell::skipped(Absence::new(format!("there is no {}", program.display()), remedy));
    }
    let start = |forced: Option<&str>| {
        let mut command = Command::new(&program);
        command.env_remove(MECHANISM_VARIABLE).envs(forced.map(|value| (MECHANISM_VARIABLE, value)));
        Worker::<FIGURES>::of(command)
    };
    let mut workers = [start(None), start(Some(ENTRIES.1))];
    workers.iter_mut().for_each(Worker::warm_up);
    let turns = settings.pick(40, 3);
    tell::steps(turns);
    for turn in 1..=turns {
        tell::step(format!("turn {turn}"));
        workers.iter_mut().for_each(Worker::turn);
    }
    let points = SIZES.iter().flat_map(|&len| OPERATIONS.map(|operation| (operation, len)));
    let mut rows: Vec<Row> =
        points.map(|(operation, len)| Row::new("hooks.watched", operation).at(Axis::Bytes, len)).collect();
    for (worker, name) in workers.into_iter().zip([OURS, ENTRIES.0]) {
        rows.iter_mut().zip(worker.end()).for_each(|(row, turns)| row.enter(name, Summary::of(turns)));
    }
    // All sizes of an operation stand together.
    rows.sort_by_key(|row| OPERATIONS.iter().position(|operation| *operation == row.case));
    rows.into_iter().for_each(tell::row);
}
