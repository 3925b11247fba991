//! The instructions of each hot path: `counted` under callgrind, and `hook-steps`, which
//! counts its own. Both lie beside this program, as cargo builds them.

use crate::tell;
use pinyard_benches::turns::fail;
use pinyard_cli::bench::row::OURS;
use pinyard_cli::bench::{Absence, Row, Summary, Unit};
use std::path::Path;
use std::process::Command;

/// Operations of a path of `counted`.
const TIMES: f64 = 1000.0;

/// A figure for each path; xtask/ci/instructions.sh compares them with what is committed.
pub(crate) fn run() {
    match measure() {
        Ok(()) => {}
        Err(absence) => tell::skipped(absence),
    }
}

fn measure() -> Result<(), Absence> {
    let own = std::env::current_exe().unwrap_or_default();
    let folder = own.parent().unwrap_or(Path::new("."));
    let (counted, steps) = (folder.join("counted"), folder.join("hook-steps"));
    for program in [&counted, &steps] {
        if !program.is_file() {
            let why = format!("there is no {}", program.display());
            return Err(Absence::new(
                why,
                "build both in pinyard's sources: cargo build --release -p pinyard-benches",
            ));
        }
    }
    let version = Command::new("valgrind").arg("--version").output();
    let version =
        version.map_err(|error| Absence::new(format!("exec valgrind: {error}"), "install valgrind"))?;
    tell::peer("valgrind", Ok(String::from_utf8_lossy(&version.stdout).trim().to_owned()));
    let paths = output(Command::new(&counted).arg("--list")).0;
    let paths: Vec<&str> = paths.lines().collect();
    tell::steps(paths.len() + 1);
    for path in paths {
        tell::step(path);
        let words = output(
            Command::new("valgrind")
                .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"])
                .arg(format!("--toggle-collect={path}"))
                .arg(&counted),
        );
        let count =
            words.1.lines().find_map(|line| line.split("Collected : ").nth(1)?.trim().parse::<f64>().ok());
        match count {
            Some(count) => row(path.trim_start_matches("count_"), count / TIMES),
            None => fail(&format!("valgrind says nothing of {path}: {}", words.1)),
        }
    }
    tell::step("hook-steps");
    let words = output(&mut Command::new(&steps)).0;
    for (path, count) in words.lines().filter_map(|line| line.split_once(' ')) {
        match count.parse() {
            Ok(count) => row(path, count),
            Err(_) => fail(&format!("hook-steps says {count:?} of {path}")),
        }
    }
    Ok(())
}

fn row(path: &str, count: f64) {
    let mut row = Row::new("instructions", path.replace('_', " ")).unit(Unit::Instructions);
    row.enter(OURS, Some(Summary::counted(count)));
    tell::row(row);
}

/// What a program writes, on its output and beside it.
fn output(command: &mut Command) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let program = command.get_program().display().to_string();
    match command.output() {
        Ok(output) if output.status.success() => (text(&output.stdout), text(&output.stderr)),
        Ok(output) => fail(&format!("{program}: {}: {}", output.status, text(&output.stderr))),
        Err(error) => fail(&format!("exec {program}: {error}")),
    }
}
