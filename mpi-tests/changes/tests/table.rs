//! Every row of the table gives what it promises, in every set-up. Each runs in a
//! process of its own, which is this program again.
#![allow(clippy::unwrap_used)]

use pinyard_coverage::{Row, Setup, Verdict, run_all, run_here};
use std::process::{Command, ExitCode};

/// The rows that an older kernel cannot try (Linux 5.15 lacks MADV_DONTNEED_LOCKED,
/// process_madvise of MADV_DONTNEED on itself, and guards), in four set-ups.
const MOST_SKIPPED: u32 = 6 * 4;
const ROW: &str = "PINYARD_COVERAGE_ROW";
const SETUP: &str = "PINYARD_COVERAGE_SETUP";

fn command(row: &Row, setup: Setup) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(ROW, row.name).env(SETUP, setup.name());
    command
}

fn main() -> ExitCode {
    if let Ok(row) = std::env::var(ROW) {
        println!("{}", run_here(&row, &std::env::var(SETUP).unwrap()).unwrap());
        return ExitCode::SUCCESS;
    }
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    run_all(&wanted, &Setup::ALL, command, |report| {
        for ((setup, verdict), expected) in report.verdicts.iter().zip(report.row.expected) {
            let why = verdict.reason().map(|why| format!(": {why}")).unwrap_or_default();
            if let Verdict::Skipped(why) = verdict {
                skipped += 1;
                println!("{} {} skipped: {why}", report.row.name, setup.name());
            } else if verdict.word() == expected {
                passed += 1;
            } else {
                failed += 1;
                println!("{} {}: {}, not {expected}{why}", report.row.name, setup.name(), verdict.word());
            }
        }
    });
    // A machine that can try next to nothing has tested nothing.
    if skipped > MOST_SKIPPED {
        failed += 1;
        println!("{skipped} verdicts are missing, more than {MOST_SKIPPED}");
    }
    if passed + failed + skipped == 0 {
        failed += 1;
        println!("no row's name has \"{wanted}\"");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 {
        return ExitCode::SUCCESS;
    }
    println!("FAILED");
    ExitCode::FAILURE
}
