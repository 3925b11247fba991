//! Figures, rows, and how a turn is timed.
#![allow(unsafe_code)]

use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::Instant;

pub(crate) const REGION: usize = 16 << 10;
pub(crate) const STRIDE: usize = 32 << 10;

/// Ends the program.
pub(crate) fn fail(cause: &str) -> ! {
    eprintln!("versus-ucx: {cause}");
    std::process::exit(1)
}

pub(crate) fn or_fail<T>(result: Result<T, String>) -> T {
    result.unwrap_or_else(|cause| fail(&cause))
}

/// Nanoseconds per operation: the median turn and the 99th percentile of the turns.
#[derive(Serialize, Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// One line of the table. `figure` is in `unit`, the same for both.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) group: &'static str,
    pub(crate) case: String,
    pub(crate) threads: usize,
    pub(crate) regions: usize,
    pub(crate) unit: &'static str,
    pub(crate) pinyard: Option<Figure>,
    pub(crate) ucx: Option<Figure>,
    /// Turns that were left out because the scheduler took the processor away.
    pub(crate) left_out: usize,
}

impl Row {
    pub(crate) fn new(group: &'static str, case: impl Into<String>, regions: usize) -> Row {
        let case = case.into();
        Row { group, case, threads: 1, regions, unit: "ns", pinyard: None, ucx: None, left_out: 0 }
    }

    pub(crate) fn unit(mut self, unit: &'static str) -> Row {
        self.unit = unit;
        self
    }

    /// Enters a number that was counted, not timed.
    pub(crate) fn enter_count(&mut self, name: &str, count: f64) {
        let figure = Some(Figure { median: count, p99: count });
        if name == "UCX" { self.ucx = figure } else { self.pinyard = figure }
    }

    /// Enters the turns of a peer, by its name.
    pub(crate) fn enter(&mut self, name: &str, turns: &Turns) {
        let figure = turns.figure();
        if name == "UCX" {
            self.ucx = figure
        } else {
            self.pinyard = figure
        }
        self.left_out += turns.disturbed;
    }
}

/// Thousandths of a unit per operation of each turn.
pub(crate) struct Turns {
    quiet: Histogram<u64>,
    all: Histogram<u64>,
    disturbed: usize,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        // From 1 ps to 1000 s.
        let bounds = || Histogram::new_with_bounds(1, 1_000_000_000_000_000, 3);
        let make = || bounds().unwrap_or_else(|error| fail(&error.to_string()));
        Turns { quiet: make(), all: make(), disturbed: 0 }
    }

    /// A turn that came to `value` in all.
    pub(crate) fn add(&mut self, value: f64, operations: usize, disturbed: bool) {
        let each = (value * 1000.0 / operations as f64) as u64;
        self.all.saturating_record(each.max(1));
        if disturbed {
            self.disturbed += 1;
        } else {
            self.quiet.saturating_record(each.max(1));
        }
    }

    /// Counts what was left out without a turn of its own.
    pub(crate) fn leave_out(&mut self, count: usize) {
        self.disturbed += count;
    }

    /// Times `operations` of them in one turn.
    pub(crate) fn time(&mut self, operations: usize, work: impl FnOnce()) {
        let switches = involuntary_switches();
        let began = Instant::now();
        work();
        let took = began.elapsed().as_nanos() as f64;
        self.add(took, operations, involuntary_switches() != switches);
    }

    pub(crate) fn merge(&mut self, other: &Turns) {
        let merged = self.quiet.add(&other.quiet).and_then(|()| self.all.add(&other.all));
        merged.unwrap_or_else(|error| fail(&error.to_string()));
        self.disturbed += other.disturbed;
    }

    /// Of the quiet turns, or of all where none was quiet.
    pub(crate) fn figure(&self) -> Option<Figure> {
        let turns = if self.quiet.is_empty() { &self.all } else { &self.quiet };
        let at = |quantile| turns.value_at_quantile(quantile) as f64 / 1000.0;
        (!turns.is_empty()).then(|| Figure { median: at(0.5), p99: at(0.99) })
    }
}

/// How often the scheduler took the processor away from this thread.
pub(crate) fn involuntary_switches() -> i64 {
    // SAFETY: all-zero is a valid rusage, which getrusage fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}

/// A xorshift sequence of region numbers.
pub(crate) fn sequence(regions: usize, seed: u64) -> Vec<u32> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % regions as u64) as u32
    };
    std::iter::repeat_with(next).take(1 << 14).collect()
}
