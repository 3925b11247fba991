//! Every row of the table gives what it promises, in every set-up. Each runs in a
//! process of its own, which is this program again.
#![allow(clippy::unwrap_used)]

use pinyard_coverage::{Row, Setup, Verdict, run_all, run_here};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::LazyLock;

/// The rows that an older kernel cannot try (Linux 5.15 lacks MADV_DONTNEED_LOCKED,
/// process_madvise of MADV_DONTNEED on itself, and guards), in four set-ups.
const MOST_SKIPPED: u32 = 6 * 4;
const ROW: &str = "PINYARD_COVERAGE_ROW";
const SETUP: &str = "PINYARD_COVERAGE_SETUP";

fn command(row: &Row, setup: Setup) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(ROW, row.name).env(SETUP, setup.name());
    if setup == Setup::Preload {
        command.env("LD_PRELOAD", &*PRELOAD);
    }
    command
}

/// libpinyard_preload.so, built for this.
static PRELOAD: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "-p", "pinyard-preload"]);
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success(), "libpinyard_preload.so does not build");
    folder.join("libpinyard_preload.so")
});

fn main() -> ExitCode {
    if let Ok(row) = std::env::var(ROW) {
        println!("{}", run_here(&row, &std::env::var(SETUP).unwrap()).unwrap());
        return ExitCode::SUCCESS;
    }
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    run_all(&wanted, &Setup::ALL, command, |report| {
        for ((setup, verdict), expected) in report.verdicts.iter().zip(report.row.expected) {
            let right = verdict.word() == expected || matches!(verdict, Verdict::Skipped(_));
            let why = verdict.reason().map(|why| format!(": {why}")).unwrap_or_default();
            if right {
                passed += 1;
                if matches!(verdict, Verdict::Skipped(_)) {
                    skipped += 1;
                    println!("{} {} skipped{why}", report.row.name, setup.name());
                }
            } else {
                failed += 1;
                println!("{} {}: {}, not {expected}{why}", report.row.name, setup.name(), verdict.word());
            }
        }
    });
    // Riding on others' hooks adds what the kernel does not tell, and loses nothing.
    run_all(&wanted, &[Setup::Ucm, Setup::Opal, Setup::Preload], command, |report| {
        let [_, _, watched, _] = report.row.expected;
        for (setup, verdict) in &report.verdicts {
            let expected = match (report.row.name, setup) {
                ("shmat-remap", _) | ("madv-guard", Setup::Preload) => "seen",
                _ => watched,
            };
            if verdict.word() == expected || matches!(verdict, Verdict::Skipped(_)) {
                passed += 1;
            } else {
                failed += 1;
                println!("{} {}: {verdict:?}, not {expected}", report.row.name, setup.name());
            }
        }
    });
    // A machine that can try next to nothing has tested nothing.
    if skipped > MOST_SKIPPED {
        failed += 1;
        println!("{skipped} verdicts are missing, more than {MOST_SKIPPED}");
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 {
        return ExitCode::SUCCESS;
    }
    println!("FAILED");
    ExitCode::FAILURE
}
