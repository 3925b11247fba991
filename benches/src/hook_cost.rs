//! What hooks add to mmap, madvise and munmap where nothing is registered: without
//! any, with pinyard's, and with UCX's, with regions registered elsewhere.
//!
//! Each is a child process of its own (two patchers in one would measure each
//! other); they take turns of a few milliseconds. Figures are nanoseconds per
//! call: the median over the turns, and their 99th percentile.
#![allow(clippy::disallowed_methods)]

#[allow(dead_code)] // what versus-ucx alone uses
#[path = "versus/peer.rs"]
mod peer;

#[path = "versus/machine.rs"]
mod machine;

use clap::{Parser, ValueEnum};
use peer::{Memory, Ours, Peer, Ucx};
use serde::Serialize;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::time::Instant;

const PAGE: usize = 4096;
const REGION: usize = 16 << 10;
const STRIDE: usize = 32 << 10;
const OPERATIONS: [&str; 3] = ["mmap", "madvise", "munmap"];

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    None,
    Pinyard,
    Ucx,
}

/// Compares what hooks add to calls that change mappings.
#[derive(Parser)]
struct Options {
    /// Turns of each, for each row.
    #[arg(long, default_value_t = 200)]
    turns: usize,
    /// Calls of each function in a turn.
    #[arg(long, default_value_t = 1000)]
    calls: usize,
    /// Where to write the rows as JSON; the table is printed.
    #[arg(long)]
    raw: Option<std::path::PathBuf>,
    /// One of the children: what it installs.
    #[arg(long, hide = true)]
    child: Option<Mode>,
    #[arg(long, hide = true, default_value_t = 0)]
    regions: usize,
    #[arg(long, hide = true, default_value_t = 1)]
    threads: usize,
}

#[derive(Serialize)]
struct Row {
    operation: &'static str,
    threads: usize,
    regions: usize,
    none_ns: f64,
    none_p99_ns: f64,
    pinyard_added_ns: f64,
    pinyard_p99_ns: f64,
    ucx_added_ns: f64,
    ucx_p99_ns: f64,
}

#[derive(Serialize)]
struct Document {
    ucx: String,
    machine: machine::Machine,
    turns: usize,
    calls: usize,
    rows: Vec<Row>,
}

fn fail(cause: impl std::fmt::Display) -> ! {
    eprintln!("hook-cost: {cause}");
    std::process::exit(1)
}

fn or_fail<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| fail(error))
}

// ---- A child ----

/// Nanoseconds per call of each operation.
#[allow(unsafe_code)]
fn turn(calls: usize) -> [f64; 3] {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let mut pages = Vec::with_capacity(calls);
    let timed = |work: &mut dyn FnMut()| {
        let began = Instant::now();
        work();
        began.elapsed().as_nanos() as f64 / calls as f64
    };
    // SAFETY: pages of this function's own, made, emptied and given back.
    unsafe {
        [
            timed(&mut || {
                for _ in 0..calls {
                    pages.push(libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0));
                }
            }),
            timed(&mut || {
                for &page in &pages {
                    libc::madvise(page, PAGE, libc::MADV_DONTNEED);
                }
            }),
            timed(&mut || {
                for &page in &pages {
                    libc::munmap(page, PAGE);
                }
            }),
        ]
    }
}

/// A cache that holds `regions` regions.
fn filled<P: Peer>(memory: &Memory, regions: usize) -> P {
    let cache: P = or_fail(P::new(regions.max(1)));
    (0..regions).for_each(|region| cache.hit(memory.at(region * STRIDE), REGION));
    cache
}

/// Answers each line on its input with a turn's figures.
fn serve(options: &Options, mode: Mode) {
    let memory = or_fail(Memory::map(options.regions.max(1) * STRIDE));
    if mode == Mode::Ucx {
        or_fail(peer::load_ucx());
    }
    // Kept while turns are timed.
    let _ours = (mode == Mode::Pinyard).then(|| filled::<Ours>(&memory, options.regions));
    let _ucx = (mode == Mode::Ucx).then(|| filled::<Ucx>(&memory, options.regions));
    if mode == Mode::Pinyard && !pinyard_hooks::verify() {
        fail("pinyard's hooks are not complete");
    }
    let mut line = String::new();
    while or_fail(std::io::stdin().read_line(&mut line)) > 0 {
        let together = Barrier::new(options.threads);
        let each = std::thread::scope(|scope| {
            let work = || {
                together.wait();
                turn(options.calls)
            };
            let threads: Vec<_> = (0..options.threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        let mean = |index: usize| each.iter().map(|one| one[index]).sum::<f64>() / each.len() as f64;
        println!("{} {} {}", mean(0), mean(1), mean(2));
        line.clear();
    }
}

// ---- The parent ----

struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Per operation, of each turn.
    figures: [Vec<f64>; 3],
}

impl Worker {
    fn start(options: &Options, mode: Mode, threads: usize, regions: usize) -> Worker {
        let name = mode.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let mut command = Command::new(or_fail(std::env::current_exe()));
        command.args([
            "--child",
            &name,
            "--threads",
            &threads.to_string(),
            "--regions",
            &regions.to_string(),
        ]);
        command.args(["--calls", &options.calls.to_string()]);
        let mut child = or_fail(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn());
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { fail("no pipes") };
        Worker { child, input, output: BufReader::new(output), figures: Default::default() }
    }

    fn turn(&mut self) {
        or_fail(self.input.write_all(b"turn\n"));
        let mut line = String::new();
        or_fail(self.output.read_line(&mut line));
        let words: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [mmap, madvise, munmap] = words[..] else { fail(format!("a child answered {line:?}")) };
        self.figures[0].push(mmap);
        self.figures[1].push(madvise);
        self.figures[2].push(munmap);
    }

    fn end(mut self) -> [Vec<f64>; 3] {
        drop(self.input);
        or_fail(self.child.wait());
        self.figures.iter_mut().for_each(|turns| turns.sort_by(f64::total_cmp));
        self.figures
    }
}

fn quantile(sorted: &[f64], quantile: f64) -> f64 {
    sorted.get(((sorted.len() - 1) as f64 * quantile) as usize).copied().unwrap_or(f64::NAN)
}

fn rows(options: &Options, threads: usize, regions: usize) -> Vec<Row> {
    let mut workers =
        [Mode::None, Mode::Pinyard, Mode::Ucx].map(|mode| Worker::start(options, mode, threads, regions));
    workers.iter_mut().for_each(Worker::turn); // warms up
    workers.iter_mut().for_each(|worker| worker.figures = Default::default());
    for _ in 0..options.turns {
        workers.iter_mut().for_each(Worker::turn);
    }
    let [none, pinyard, ucx] = workers.map(Worker::end);
    let row = |(index, operation): (usize, &'static str)| {
        let median = |turns: &[Vec<f64>; 3]| quantile(&turns[index], 0.5);
        let p99 = |turns: &[Vec<f64>; 3]| quantile(&turns[index], 0.99);
        Row {
            operation,
            threads,
            regions,
            none_ns: median(&none),
            none_p99_ns: p99(&none),
            pinyard_added_ns: median(&pinyard) - median(&none),
            pinyard_p99_ns: p99(&pinyard),
            ucx_added_ns: median(&ucx) - median(&none),
            ucx_p99_ns: p99(&ucx),
        }
    };
    OPERATIONS.into_iter().enumerate().map(row).collect()
}

fn main() {
    let options = Options::parse();
    if let Some(mode) = options.child {
        return serve(&options, mode);
    }
    let cases = [(1, 0), (1, 10_000), (1, 100_000), (2, 0), (2, 10_000), (2, 100_000)];
    let rows: Vec<Row> =
        cases.into_iter().flat_map(|(threads, regions)| rows(&options, threads, regions)).collect();
    let document = Document {
        ucx: or_fail(peer::load_ucx()),
        machine: machine::Machine::here(),
        turns: options.turns,
        calls: options.calls,
        rows,
    };
    if let Some(path) = &options.raw {
        or_fail(std::fs::write(path, or_fail(serde_json::to_string_pretty(&document))));
    }
    let Document { ucx, machine, turns, calls, rows } = document;
    println!("{machine} Medians over {turns} turns of {calls} calls, and 99th percentiles of the turns.\n");
    println!("| call | threads | regions | no hooks, ns (p99) | pinyard adds (p99) | UCX {ucx} adds (p99) |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for row in rows {
        println!(
            "| {} | {} | {} | {:.0} ({:.0}) | {:+.0} ({:.0}) | {:+.0} ({:.0}) |",
            row.operation,
            row.threads,
            row.regions,
            row.none_ns,
            row.none_p99_ns,
            row.pinyard_added_ns,
            row.pinyard_p99_ns,
            row.ucx_added_ns,
            row.ucx_p99_ns
        );
    }
}
