//! A hit (get and release) beside UCX's `ucs_rcache`, in one process, the two
//! taking turns every millisecond or so.
//!
//! Both caches hold the same regions (16 KiB at a stride of 32 KiB, dummy
//! registration) and answer the same random sequence. Figures are per operation:
//! the median over the turns, and their 99th percentile.

mod peer;

use clap::Parser;
use hdrhistogram::Histogram;
use peer::{Memory, Ours, Peer, Ucx};
use serde::Serialize;
use std::sync::Barrier;
use std::time::Instant;

const REGION: usize = 16 << 10;
const STRIDE: usize = 32 << 10;

/// Compares pinyard's hit with UCX's.
#[derive(Parser)]
struct Options {
    /// Turns of each peer, for each row.
    #[arg(long, default_value_t = 300)]
    turns: usize,
    /// Operations a turn.
    #[arg(long, default_value_t = 20_000)]
    operations: usize,
    /// Print the rows as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    threads: usize,
    regions: usize,
    /// The threads use one region, or random ones.
    pattern: &'static str,
    pinyard_ns: f64,
    pinyard_p99_ns: f64,
    lookup_ns: Option<f64>,
    ucx_ns: f64,
    ucx_p99_ns: f64,
    ratio: f64,
}

#[derive(Serialize)]
struct Document {
    ucx: String,
    turns: usize,
    operations: usize,
    rows: Vec<Row>,
}

/// Picoseconds per operation of each turn.
struct Turns(Histogram<u64>);

impl Turns {
    fn new() -> Turns {
        // From 1 ps to 1 ms an operation.
        Turns(
            Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap_or_else(|error| fail(&error.to_string())),
        )
    }
    fn add(&mut self, nanoseconds: u128, operations: usize) {
        self.0.saturating_record((nanoseconds * 1000 / operations as u128) as u64);
    }
    fn quantile(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1000.0
    }
}

fn fail(cause: &str) -> ! {
    eprintln!("versus-ucx: {cause}");
    std::process::exit(1)
}

/// A xorshift sequence of region numbers.
fn sequence(regions: usize, seed: u64) -> Vec<u32> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % regions as u64) as u32
    };
    std::iter::repeat_with(next).take(1 << 14).collect()
}

fn turn(peer: &impl Peer, memory: &Memory, order: &[u32], operations: usize) -> u128 {
    let began = Instant::now();
    for step in 0..operations {
        let region = order[step & (order.len() - 1)] as usize;
        peer.hit(memory.at(region * STRIDE), REGION);
    }
    began.elapsed().as_nanos()
}

fn row(options: &Options, threads: usize, regions: usize, same: bool) -> Row {
    let memory = Memory::map(regions * STRIDE).unwrap_or_else(|cause| fail(&cause));
    let ours = Ours::new(regions).unwrap_or_else(|cause| fail(&cause));
    let ucx = Ucx::new().unwrap_or_else(|| fail("ucs_rcache_create failed"));
    for region in 0..regions {
        ours.hit(memory.at(region * STRIDE), REGION);
        ucx.hit(memory.at(region * STRIDE), REGION);
    }
    let barrier = Barrier::new(threads);
    let work = |thread: usize| {
        let order = if same { vec![0; 1 << 14] } else { sequence(regions, 77 + thread as u64) };
        let (mut pinyard, mut lookup, mut peer) = (Turns::new(), Turns::new(), Turns::new());
        for _ in 0..options.turns {
            barrier.wait();
            pinyard.add(turn(&ours, &memory, &order, options.operations), options.operations);
            barrier.wait();
            peer.add(turn(&ucx, &memory, &order, options.operations), options.operations);
            barrier.wait();
            lookup.add(turn(&ours.lookup(), &memory, &order, options.operations), options.operations);
        }
        (pinyard, lookup, peer)
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    let (mut pinyard, mut lookup, mut peer) = (Turns::new(), Turns::new(), Turns::new());
    for (a, b, c) in results {
        let merged = [(&mut pinyard, a), (&mut lookup, b), (&mut peer, c)];
        for (into, from) in merged {
            into.0.add(&from.0).unwrap_or_else(|error| fail(&error.to_string()));
        }
    }
    let (pinyard_ns, ucx_ns) = (pinyard.quantile(0.5), peer.quantile(0.5));
    Row {
        threads,
        regions,
        pattern: if same { "same" } else { "random" },
        pinyard_ns,
        pinyard_p99_ns: pinyard.quantile(0.99),
        lookup_ns: (threads == 1).then(|| lookup.quantile(0.5)),
        ucx_ns,
        ucx_p99_ns: peer.quantile(0.99),
        ratio: pinyard_ns / ucx_ns,
    }
}

fn main() {
    let options = Options::parse();
    let cases = [
        (1, 1, false),
        (1, 100, false),
        (1, 10_000, false),
        (1, 100_000, false),
        (2, 1, true),
        (2, 100, false),
        (2, 10_000, false),
        (2, 100_000, false),
    ];
    let rows: Vec<Row> =
        cases.into_iter().map(|(threads, regions, same)| row(&options, threads, regions, same)).collect();
    if options.json {
        let document =
            Document { ucx: peer::ucx_version(), turns: options.turns, operations: options.operations, rows };
        match serde_json::to_string_pretty(&document) {
            Ok(text) => println!("{text}"),
            Err(error) => fail(&error.to_string()),
        }
        return;
    }
    println!(
        "| threads | regions | pattern | pinyard ns (p99) | lookup ns | UCX {} ns (p99) | pinyard / UCX |",
        peer::ucx_version()
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for row in rows {
        println!(
            "| {} | {} | {} | {:.1} ({:.1}) | {} | {:.1} ({:.1}) | {:.2} |",
            row.threads,
            row.regions,
            row.pattern,
            row.pinyard_ns,
            row.pinyard_p99_ns,
            row.lookup_ns.map_or("-".to_owned(), |ns| format!("{ns:.1}")),
            row.ucx_ns,
            row.ucx_p99_ns,
            row.ratio
        );
    }
}
