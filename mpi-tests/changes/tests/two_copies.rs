//! Two copies of pinyard in one process: a program that is linked with it loads a
//! library that is linked with it as well. Every row registers with both, and both
//! must notice what one alone would.
#![allow(clippy::unwrap_used)]

use pinyard_coverage::{LIBRARY, NAMESPACE, Row, Setup, Verdict, run_all, run_here};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const ROW: &str = "PINYARD_COVERAGE_ROW";
const SETUP: &str = "PINYARD_COVERAGE_SETUP";

/// Built with the test, beside it.
fn library() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.set_file_name("libpinyard_coverage.so");
    path
}

/// In a namespace of its own, a copy hears of the other C library's calls from the
/// kernel alone.
fn run(name: &str, wanted: &str, setup: Setup, namespace: bool) -> [usize; 3] {
    let command = |row: &Row, setup: Setup| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(ROW, row.name).env(SETUP, setup.name()).env(LIBRARY, library());
        command.envs(namespace.then_some((NAMESPACE, "new")));
        command
    };
    let bound = if namespace { Setup::Userfaultfd } else { setup };
    let column = Setup::ALL.iter().position(|&other| other == bound).unwrap();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    run_all(wanted, &[setup], command, |report| {
        let verdict = report.verdict(setup);
        let alone = report.row.expected.get(column).copied().unwrap();
        let right = match &verdict {
            Verdict::Stale => alone == "STALE",
            Verdict::Broken(_) => false,
            // This machine cannot do it, whoever looks.
            Verdict::Skipped(why) => {
                skipped += 1;
                println!("{name}, {} skipped: {why}", report.row.name);
                return;
            }
            // Not stale; rather too much taken out than too little.
            Verdict::Seen | Verdict::Kept | Verdict::Uncached(_) | Verdict::Refused(_) => true,
        };
        if right {
            passed += 1;
        } else {
            failed += 1;
            let why = verdict.reason().unwrap_or_default();
            println!("{name}, {}: {} {why}, alone {alone}", report.row.name, verdict.word());
        }
    });
    [passed, failed, skipped]
}

fn main() -> ExitCode {
    if let Ok(row) = std::env::var(ROW) {
        println!("{}", run_here(&row, &std::env::var(SETUP).unwrap()).unwrap());
        return ExitCode::SUCCESS;
    }
    let cases = [
        ("one namespace, entries only", Setup::Entry, false),
        ("one namespace", Setup::Default, false),
        ("a namespace of its own", Setup::Default, true),
    ];
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, setup, namespace) in cases {
        let [right, wrong, impossible] = run(name, &wanted, setup, namespace);
        passed += right;
        failed += wrong;
        skipped += impossible;
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    // Where most cannot be done, nothing was shown.
    if failed == 0 && passed > skipped {
        return ExitCode::SUCCESS;
    }
    println!("FAILED");
    ExitCode::FAILURE
}
