//! The registration cache beside UCX's `ucs_rcache`, in one process, the two
//! taking turns of about a millisecond.
//!
//! Both caches hold the same regions (16 KiB at a stride of 32 KiB, dummy
//! registration) and answer the same sequences. Figures are per operation: the
//! median over the turns, and their 99th percentile; turns in which the scheduler
//! took the processor away are left out and counted. Where UCX's libraries are not
//! to be found, ours is measured alone.

mod events;
mod hits;
mod machine;
mod memory;
mod peer;
mod rows;

use clap::Parser;
use peer::{Ours, Peer, Ucx};
use rows::{Row, fail, or_fail};
use serde::Serialize;

/// Compares pinyard's registration cache with UCX's.
#[derive(Parser)]
struct Options {
    /// Turns of each peer, for each row of hits.
    #[arg(long, default_value_t = 300)]
    turns: usize,
    /// Operations a turn.
    #[arg(long, default_value_t = 20_000)]
    operations: usize,
    /// Turns where one takes many milliseconds.
    #[arg(long, default_value_t = 20)]
    slow_turns: usize,
    /// Threads at most; as many as there are cores, and at least two, without.
    #[arg(long)]
    threads: Option<usize>,
    /// Only these groups: hit, beside, event, insert, strided, memory.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Do not look for UCX.
    #[arg(long)]
    alone: bool,
    /// Print the rows as JSON.
    #[arg(long)]
    json: bool,
    #[arg(long, hide = true)]
    memory_of: Option<String>,
}

#[derive(Serialize)]
struct Document {
    ucx: Option<String>,
    machine: machine::Machine,
    turns: usize,
    operations: usize,
    slow_turns: usize,
    rows: Vec<Row>,
}

/// Both, of the same size.
struct Caches {
    ours: Ours,
    ucx: Option<Ucx>,
}

impl Caches {
    fn new(regions: usize, ucx: bool) -> Caches {
        Caches { ours: or_fail(Ours::new(regions)), ucx: ucx.then(|| or_fail(Ucx::new(regions))) }
    }

    fn each_ref(&self, ours: impl FnOnce(&Ours), theirs: impl FnOnce(&Ucx)) {
        ours(&self.ours);
        if let Some(peer) = &self.ucx {
            theirs(peer);
        }
    }
}

fn measure(options: &Options, ucx: bool) -> Vec<Row> {
    let most = options.threads.unwrap_or_else(|| machine::cores().max(2));
    let wanted = |group: &str| options.only.is_empty() || options.only.iter().any(|only| only == group);
    let progress = |what: &str| eprintln!("versus-ucx: {what}");
    let mut rows = Vec::new();
    if wanted("hit") {
        for threads in [1, 2, 4, 8, 16].into_iter().filter(|&threads| threads <= most) {
            for regions in [1, 100, 10_000, 100_000] {
                progress(&format!("hits of {threads} threads, {regions} regions"));
                rows.extend(hits::rows(options, ucx, threads, regions, regions == 1));
            }
        }
    }
    if wanted("beside") {
        progress("hits beside registrations");
        rows.extend(hits::beside_registrations(options, ucx));
    }
    if wanted("event") {
        for pending in [0, 100, 10_000, 30_000, 100_000] {
            progress(&format!("events with {pending} pending"));
            rows.extend(events::rows(options, ucx, pending));
        }
    }
    if wanted("insert") {
        progress("inserts and evictions");
        rows.push(events::inserts(options, ucx));
        rows.extend([100, 1000, 10_000].map(|cap| events::evictions(options, ucx, cap)));
    }
    if wanted("strided") {
        rows.push(events::strided(ucx));
    }
    if wanted("memory") {
        progress("memory");
        rows.extend(memory::rows(ucx));
    }
    rows
}

fn print(document: &Document) {
    let figure = |figure: Option<rows::Figure>| {
        figure.map_or("-".to_owned(), |figure| format!("{:.1} ({:.1})", figure.median, figure.p99))
    };
    println!("{}", document.machine);
    let ucx = document.ucx.as_deref().unwrap_or("(absent)");
    println!("| | case | threads | regions | unit | pinyard (p99) | UCX {ucx} (p99) | pinyard / UCX |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for row in &document.rows {
        let ratio = row
            .pinyard
            .zip(row.ucx)
            .filter(|(_, theirs)| theirs.median > 0.0)
            .map(|(ours, theirs)| ours.median / theirs.median);
        println!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            row.group,
            row.case,
            row.threads,
            row.regions,
            row.unit,
            figure(row.pinyard),
            figure(row.ucx),
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"))
        );
    }
}

fn main() {
    let options = Options::parse();
    if let Some(name) = &options.memory_of {
        return memory::child(name);
    }
    // First, so that its hooks are in place before ours look at the entries.
    let ucx = if options.alone { Err("not asked for".to_owned()) } else { peer::load_ucx() };
    if let Err(cause) = &ucx {
        eprintln!("versus-ucx: without UCX: {cause}");
    }
    let rows = measure(&options, ucx.is_ok());
    let document = Document {
        ucx: ucx.ok(),
        machine: machine::Machine::here(),
        turns: options.turns,
        operations: options.operations,
        slow_turns: options.slow_turns,
        rows,
    };
    if !options.json {
        return print(&document);
    }
    match serde_json::to_string_pretty(&document) {
        Ok(text) => println!("{text}"),
        Err(error) => fail(&error.to_string()),
    }
}
