//! Checks a document of `pinyard demo --json` on stdin, beyond what the
//! command's own exit status says: `check-demo MPI ROUNDS`, where MPI starts the
//! library's name and ROUNDS are the rounds per rank.

use pinyard_hooks::Function;
use serde_json::Value;
use std::io::Read;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mpi, rounds] = arguments.as_slice() else {
        eprintln!("usage: check-demo MPI ROUNDS < document");
        return ExitCode::from(2);
    };
    let (mut text, Ok(rounds)) = (String::new(), rounds.parse()) else {
        eprintln!("check-demo: {rounds:?} is no number of rounds");
        return ExitCode::from(2);
    };
    let read = std::io::stdin().read_to_string(&mut text);
    let document: Value = match read.map_err(|error| error.to_string()).and_then(|_| parse(&text)) {
        Ok(document) => document,
        Err(error) => {
            eprintln!("check-demo: stdin is not one JSON document: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut faults = Vec::new();
    check(&document, mpi, rounds, &mut faults);
    faults.iter().for_each(|fault| eprintln!("check-demo: {fault}"));
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// The rows that must be there.
const ROWS: [(&str, &str); 7] = [
    ("no_hooks", "purging"),
    ("naive", "purging"),
    ("pinyard", "purging"),
    ("pool", "purging"),
    ("no_hooks", "mimalloc"),
    ("pinyard", "mimalloc"),
    ("pool", "mimalloc"),
];

fn check(document: &Value, mpi: &str, rounds: u64, faults: &mut Vec<String>) {
    let mut expect = |what: String, holds: bool| {
        if !holds {
            faults.push(what);
        }
    };
    let rows = document["rows"].as_array().cloned().unwrap_or_default();
    expect(format!("{} rows", rows.len()), rows.len() == ROWS.len());
    for (row, (kind, allocator)) in rows.iter().zip(ROWS) {
        let mut expect =
            |what: &str, holds: bool| expect(format!("{kind} on {allocator}: {what}: {row}"), holds);
        let number = |name: &str| row[name].as_u64();
        expect("kind and allocator", row["kind"] == kind && row["allocator"] == allocator);
        let reports = row["reports"].as_array().cloned().unwrap_or_default();
        expect("two reports", reports.len() == 2);
        expect(
            "the MPI",
            reports.iter().all(|rank| rank["mpi"].as_str().is_some_and(|name| name.starts_with(mpi))),
        );
        let ran = number("rounds").unwrap_or(0);
        let all = 2 * rounds;
        if kind == "naive" {
            expect(
                "both ranks hang in round 0",
                row["end"] == "hung" && number("hangs") == Some(2) && ran == 0,
            );
            continue;
        }
        expect("completed", row["end"] == "completed" && number("hangs") == Some(0));
        expect("rounds", ran == all || row["cut_short"] == true && ran >= 64);
        expect("a time per hit", row["ns_per_hit"].as_f64().is_some_and(|ns| ns > 0.0));
        let hooks = |rank: &Value| rank["hooks"].as_array().map_or(0, Vec::len);
        match kind {
            "no_hooks" => {
                expect(
                    "stale rounds, nearly all",
                    number("stale").is_some_and(|stale| 2 * stale > ran && stale < ran),
                );
                expect("nothing was invalidated", number("invalidations") == Some(0));
                expect("no hooks are installed", reports.iter().all(|rank| hooks(rank) == 0));
            }
            "pinyard" => {
                expect("no stale round", number("stale") == Some(0));
                expect("invalidations", number("invalidations").is_some_and(|count| count > 10));
                expect("hits, the timed ones", number("hits").is_some_and(|hits| hits >= 32 * ran));
                expect("hooks are reported", reports.iter().all(|rank| hooks(rank) == Function::COUNT));
            }
            _ => {
                expect("no stale round", number("stale") == Some(0));
                expect("no registration after warm-up", number("registrations_after_warm_up") == Some(0));
            }
        }
    }
    let cycle = document["cycle"].as_array().cloned().unwrap_or_default();
    let calls: Vec<&str> = cycle.iter().filter_map(|call| call["call"].as_str()).collect();
    let order = ["Mutex::lock", "madvise", "Purging::alloc", "NaiveCache::insert"];
    let mut remaining = calls.iter();
    expect(
        format!("the cycle's calls in their order: {calls:?}"),
        order.iter().all(|name| remaining.any(|call| call == name)),
    );
    expect("the verdict is clean".to_owned(), document["verdict"]["clean"] == true);
}
