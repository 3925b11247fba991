//! `pinyard replay`: a pool's trace through other configurations, side by side.

use crate::terminal::{complain, print};
use comfy_table::{CellAlignment, Table, TableStyle};
use pinyard::allocator::replay::{self, Configuration, Outcome, ReplayError};
use pinyard::allocator::trace::{ReadError, Reader};
use pinyard_cli::text::grouped;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `pinyard replay`.
#[derive(clap::Args)]
#[command(after_help = "Example: pinyard replay pool.trace --pool limit=40GiB --pool source=virtual")]
pub(crate) struct Options {
    /// A trace: `DevicePool::trace().write(path)`, or PINYARD_POOL_TRACE_FILE of any program
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// A pool, as key=value,key=value; several are compared. The keys are those of
    /// PINYARD_POOL_*, in lower case without the prefix (limit, slab_bytes, marks), and
    /// source=device|virtual, device=BYTES, kernel_ns=N [default: a pool as built without
    /// options, on a device of 80 GiB]
    #[arg(long = "pool", value_name = "SETTINGS", value_parser = Configuration::from_pairs)]
    pools: Vec<Configuration>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// Fails if the trace is refused; an allocation that fails in the simulation is a
/// result.
pub(crate) fn run(options: &Options) -> ExitCode {
    let default = Configuration::from_pairs("").into_iter();
    let pools: Vec<Configuration> =
        if options.pools.is_empty() { default.collect() } else { options.pools.clone() };
    let outcomes: Result<Vec<Outcome>, Failure> = pools.iter().map(|pool| one(&options.file, pool)).collect();
    match outcomes {
        Ok(outcomes) if options.json => print(format_args!("{:#}", document(&options.file, &outcomes))),
        Ok(outcomes) => print(table(&outcomes).trim_end()),
        Err(error) => {
            complain(format_args!("pinyard: {}: {error}", options.file.display()));
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("open failed: {0}")]
    Open(#[from] io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{name}: {error}")]
    Replay { name: String, error: ReplayError },
}

/// The file is read anew for each pool: a trace may be longer than memory.
fn one(file: &Path, pool: &Configuration) -> Result<Outcome, Failure> {
    let reader = Reader::new(BufReader::new(File::open(file)?))?;
    replay::run(pool, reader).map_err(|error| match error {
        ReplayError::Read(error) => Failure::Read(error),
        error => Failure::Replay { name: pool.name.clone(), error },
    })
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn percent(part: f64) -> String {
    format!("{:.2} %", 100.0 * part)
}

/// A column per pool.
fn table(outcomes: &[Outcome]) -> String {
    type Cell = fn(&Outcome) -> String;
    const ROWS: [(&str, Cell); 13] = [
        ("events", |of| grouped(of.events)),
        ("allocations", |of| grouped(of.allocations)),
        ("failures", |of| grouped(of.failures)),
        ("waits", |of| grouped(of.waits)),
        ("streams", |of| grouped(of.streams)),
        ("peak live, MiB", |of| mib(of.peak_live_bytes)),
        ("peak reserved, MiB", |of| mib(of.peak_reserved_bytes)),
        ("reserved / live", |of| format!("{:.3}", of.ratio())),
        ("served by the stream's cache", |of| percent(of.hits.cache as f64 / of.allocations.max(1) as f64)),
        ("served without a new slab", |of| percent(of.hits.rate())),
        ("driver calls", |of| grouped(of.all_calls())),
        ("driver time, ms", |of| format!("{:.3}", of.driver_ns as f64 / 1e6)),
        ("simulated time, ms", |of| format!("{:.3}", of.simulated_ns as f64 / 1e6)),
    ];
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    table
        .set_header([String::new()].into_iter().chain(outcomes.iter().map(|of| of.name.replace(',', ",\n"))));
    for (name, cell) in ROWS {
        table.add_row([name.to_owned()].into_iter().chain(outcomes.iter().map(cell)));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn document(file: &Path, outcomes: &[Outcome]) -> Value {
    let pools = outcomes.iter().map(|of| {
        let mut pool = json!(of);
        pool["ratio"] = json!(of.ratio());
        pool["all_driver_calls"] = json!(of.all_calls());
        pool
    });
    json!({ "format": "pinyard-replay", "version": 1, "trace": file, "pools": pools.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinyard::allocator::trace::{Event, Trace};

    fn outcomes() -> Vec<Outcome> {
        let events = (1..=50).flat_map(|at| {
            let alloc = Event::alloc(2 * at, at, 1 << 20, at % 3);
            if at > 8 { vec![alloc, Event::free(2 * at + 1, at - 8)] } else { vec![alloc] }
        });
        let path = std::env::temp_dir().join(format!("pinyard-replay-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Trace::of(events.collect()).write(&path).unwrap();
        let pools = ["", "source=virtual,slab_bytes=4M", "device=8M"];
        let of = |text: &&str| one(&path, &Configuration::from_pairs(text).unwrap()).unwrap();
        let outcomes = pools.iter().map(of).collect();
        std::fs::remove_file(&path).unwrap();
        outcomes
    }

    #[test]
    fn pools_stand_side_by_side() {
        let outcomes = outcomes();
        assert!(
            outcomes[..2].iter().all(|of| of.failures == 0 && of.peak_live_bytes == 9 << 20),
            "{outcomes:?}"
        );
        assert!(outcomes[2].failures > 0 && outcomes[2].peak_reserved_bytes <= 8 << 20);
        let table = table(&outcomes);
        let columns = |line: &str| line.split_whitespace().count();
        let reserved = table.lines().find(|line| line.contains("peak reserved")).unwrap();
        assert_eq!(columns(reserved), 3 + 3, "{table}");
        assert!(table.contains("slab_bytes=4M") && table.contains("default"), "{table}");
        let document = document(Path::new("x"), &outcomes);
        assert_eq!(document["pools"][1]["peak_live_bytes"], 9 << 20);
        assert_eq!(document["pools"][2]["failures"], outcomes[2].failures);
    }

    #[test]
    fn a_file_that_is_not_there_or_no_trace_is_an_error() {
        let pool = Configuration::from_pairs("").unwrap();
        assert!(one(Path::new("/nonexistent"), &pool).unwrap_err().to_string().starts_with("open failed"));
        let text = one(Path::new("/proc/self/status"), &pool).unwrap_err().to_string();
        assert!(text.starts_with("line 1"), "{text}");
        assert!(
            Configuration::from_pairs("colour=red")
                .unwrap_err()
                .to_string()
                .contains("source=device|virtual")
        );
    }
}
