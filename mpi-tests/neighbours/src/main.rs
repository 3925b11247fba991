//! pinyard and another patcher of libc in one process: afterwards both caches see
//! every change, whoever came first.
//!
//! Ours is judged by the bytes that travel through io_uring, theirs by its own
//! cache and handlers (theirs.c). What theirs sees when it is alone is written to
//! a file first; beside ours it must see the same.

mod changes;
mod ours;
mod theirs;

use changes::{CHANGES, Change, Pages};
use clap::{Parser, ValueEnum};
use ours::Ours;
use std::collections::BTreeSet;
use std::path::PathBuf;
use theirs::Theirs;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Theirs without ours: writes what it sees to the baseline.
    Alone,
    OursFirst,
    TheirsFirst,
}

/// Runs one neighbour in one order.
#[derive(Parser)]
struct Options {
    #[arg(long)]
    order: Order,
    /// The neighbour's side, built from theirs.c.
    #[arg(long)]
    theirs: PathBuf,
    /// Its caches that are to be asked, separated by commas.
    #[arg(long)]
    caches: String,
    /// What it sees alone, a line for each change.
    #[arg(long)]
    baseline: PathBuf,
}

type Failure = String;

fn main() {
    if let Err(cause) = run(&Options::parse()) {
        eprintln!("neighbour: {cause}");
        std::process::exit(1);
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    // What was cached before the neighbour came, and is changed right after.
    let mut early = Pages::new(4)?;
    let (ours, theirs) = match options.order {
        Order::Alone => (None, Theirs::start(&options.theirs, &options.caches)?),
        Order::OursFirst => {
            let ours = Ours::start()?;
            early.fill(1);
            ours.expect(&early, 1, "before theirs")?;
            (Some(ours), Theirs::start(&options.theirs, &options.caches)?)
        }
        Order::TheirsFirst => {
            let theirs = Theirs::start(&options.theirs, &options.caches)?;
            (Some(Ours::start()?), theirs)
        }
    };
    if let Some(ours) = &ours {
        early.empty()?;
        early.fill(2);
        ours.expect(&early, 2, "the first change after their start")?;
    }
    let mut told = BTreeSet::new();
    let mut stale = Vec::new();
    for Change { name, make, change } in CHANGES {
        // Between an munmap and the mmap after it a thread of the neighbour's may be
        // given the addresses: then once more.
        let mut left = 5;
        let mut pages = loop {
            let mut pages = make()?;
            pages.fill(1);
            if let Some(ours) = &ours {
                ours.expect(&pages, 1, name)?;
            }
            theirs.watch(&pages)?;
            match change(&pages) {
                Ok(()) => break pages,
                Err(cause) if left == 0 => return Err(cause),
                Err(_) => left -= 1,
            }
        };
        let by: Vec<String> = theirs.told();
        println!("{name:<24} told: {}", by.join(" "));
        told.extend(by.iter().map(|cache| format!("{name}: {cache}")));
        if let Some(ours) = &ours {
            pages.fill(2);
            stale.extend(ours.expect(&pages, 2, name).and_then(|()| ours.expect_hits(&pages)).err());
        }
    }
    if let Some(ours) = &ours {
        println!("{}", ours.report());
    }
    theirs.stop();
    if let Some(ours) = &ours {
        // Some take their patches out again at their end.
        early.empty()?;
        early.fill(3);
        stale.extend(ours.expect(&early, 3, "the first change after their end").err());
    }
    judge(options, &told, stale)
}

fn judge(options: &Options, told: &BTreeSet<String>, mut wrong: Vec<Failure>) -> Result<(), Failure> {
    let file = &options.baseline;
    let named = |error| format!("{}: {error}", file.display());
    if options.order == Order::Alone {
        let lines: Vec<&str> = told.iter().map(String::as_str).collect();
        return std::fs::write(file, lines.join("\n")).map_err(named);
    }
    let baseline = std::fs::read_to_string(file).map_err(named)?;
    let missed = baseline.lines().filter(|line| !line.is_empty() && !told.contains(*line));
    wrong.extend(missed.map(|line| format!("theirs is not told any more of {line}")));
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n           ")) }
}
