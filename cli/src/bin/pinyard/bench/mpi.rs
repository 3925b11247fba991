//! `mpi.gpu`: `gpu-bandwidth` by mpirun, whose lines become rows.

use super::Options;
use super::launch::Run;
use crate::demo::Refusal;
use crate::demo::mpi::Mpirun;
use pinyard_cli::bench::row::OURS;
use pinyard_cli::bench::{Absence, Axis, Row, Summary};
use pinyard_driver::Cuda;
use serde::Deserialize;
use std::path::Path;

/// A line of its output, of one way and one length.
#[derive(Deserialize)]
struct Measured {
    operation: String,
    path: String,
    ranks: u32,
    bytes: usize,
    median_us: f64,
    p25_us: f64,
    p75_us: f64,
    p99_us: f64,
    samples: u64,
}

/// The ways by their names in rows.
const WAYS: [(&str, &str); 5] = [
    ("ipc", OURS),
    ("staged", "pinyard, staged"),
    ("copy-then-mpi", "MPI on copies"),
    ("direct", "MPI on device pointers"),
    ("nccl", "NCCL"),
];

/// Runs it with a rank for each of two GPUs, or as many as were asked for; in quick runs
/// on simulated devices where there are none.
pub(crate) fn run(run: &mut Run<'_>, options: &Options, program: &Path) -> Result<(), Refusal> {
    let gpus = Cuda::count();
    let simulated = match &gpus {
        Ok(count) if *count >= 2 => false,
        _ if options.quick => true,
        Ok(count) => {
            let why = format!("it takes two GPUs, and here is {count}");
            run.skip(Absence::new(why, "run it on a node with two, or with --quick on simulated ones"));
            return Ok(());
        }
        Err(error) => {
            run.skip(Absence::new(
                error.to_string(),
                "run it on a node with two GPUs, or with --quick on simulated ones",
            ));
            return Ok(());
        }
    };
    let mpirun = match Mpirun::find(&options.mpirun) {
        Ok(mpirun) => mpirun,
        Err(refusal) => {
            run.skip(Absence::new(refusal.why, refusal.remedy));
            return Ok(());
        }
    };
    run.peer(mpirun.kind.name().to_owned(), mpirun.version.clone());
    let mut command = mpirun.command(options.ranks, program);
    if options.quick {
        command.arg("--quick");
    }
    // What may put GPUs that others share out of service stays off.
    command.env("NCCL_NVLS_ENABLE", "0");
    let mut rows: Vec<Row> = Vec::new();
    run.listen(command, |run, line| {
        let Ok(measured) = serde_json::from_str::<Measured>(line) else { return };
        run.step(&format!("{} of {} bytes", measured.operation, measured.bytes));
        enter(&mut rows, &measured, simulated);
    })?;
    rows.into_iter().for_each(|row| run.row(row));
    Ok(())
}

/// Enters a line into its row.
fn enter(rows: &mut Vec<Row>, measured: &Measured, simulated: bool) {
    let suffix = if simulated { " (simulated)" } else { "" };
    let case = format!("{}, {} ranks{suffix}", measured.operation, measured.ranks);
    let new = Row::new("mpi.gpu", case).at(Axis::Bytes, measured.bytes);
    let at = rows.iter().position(|row| row.is_same_case(&new)).unwrap_or_else(|| {
        rows.push(new);
        rows.len() - 1
    });
    let way = WAYS.iter().find(|(path, _)| *path == measured.path);
    let name = way.map_or(measured.path.as_str(), |(_, name)| name);
    let summary = Summary {
        median: measured.median_us * 1e3,
        p25: measured.p25_us * 1e3,
        p75: measured.p75_us * 1e3,
        p99: measured.p99_us * 1e3,
        samples: measured.samples,
        left_out: 0,
    };
    if let Some(row) = rows.get_mut(at) {
        row.enter(name, Some(summary));
        // Ours first, whatever came first.
        row.of.sort_by_key(|subject| WAYS.iter().position(|(_, name)| *name == subject.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_length_become_a_row_with_ours_first() {
        let mut rows = Vec::new();
        for (path, bytes) in [("nccl", 1024), ("ipc", 1024), ("ipc", 4096)] {
            let line = format!(
                "{{\"operation\": \"bcast\", \"path\": \"{path}\", \"ranks\": 2, \"bytes\": {bytes}, \"first_us\": 1.0, \
                 \"median_us\": 20.00, \"p25_us\": 18.0, \"p75_us\": 21.0, \"p99_us\": 30.0, \"samples\": 300}}"
            );
            enter(&mut rows, &serde_json::from_str(&line).unwrap(), false);
        }
        assert_eq!(rows.len(), 2);
        let names: Vec<&str> = rows[0].of.iter().map(|subject| subject.name.as_str()).collect();
        assert_eq!(names, [OURS, "NCCL"]);
        assert_eq!((rows[0].case.as_str(), rows[0].ratio("NCCL")), ("bcast, 2 ranks", Some(1.0)));
        assert_eq!(rows[0].summary(OURS).unwrap().median, 20_000.0);
    }
}
