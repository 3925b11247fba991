//! How a turn is timed, and what many of them come to.
#![allow(unsafe_code)]

use hdrhistogram::Histogram;
use pinyard_cli::bench::Summary;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::time::Instant;

/// Bytes of a region.
pub const REGION: usize = 16 << 10;
/// From one region to the next.
pub const STRIDE: usize = 32 << 10;

/// Ends the program.
pub fn fail(cause: &str) -> ! {
    eprintln!("{cause}");
    std::process::exit(1)
}

/// The value, or the end of the program.
pub fn or_fail<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|cause| fail(&cause.to_string()))
}

/// Thousandths of a unit per operation of each turn.
pub struct Turns {
    quiet: Histogram<u64>,
    all: Histogram<u64>,
    disturbed: usize,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::new()
    }
}

impl Turns {
    /// None yet.
    pub fn new() -> Turns {
        // From 1 ps to 1000 s.
        let bounds = || Histogram::new_with_bounds(1, 1_000_000_000_000_000, 3);
        let make = || bounds().unwrap_or_else(|error| fail(&error.to_string()));
        Turns { quiet: make(), all: make(), disturbed: 0 }
    }

    /// A turn that came to `value` in all.
    pub fn add(&mut self, value: f64, operations: usize, disturbed: bool) {
        let each = (value * 1000.0 / operations as f64) as u64;
        self.all.saturating_record(each.max(1));
        if disturbed {
            self.disturbed += 1;
        } else {
            self.quiet.saturating_record(each.max(1));
        }
    }

    /// Counts what was left out without a turn of its own.
    pub fn leave_out(&mut self, count: usize) {
        self.disturbed += count;
    }

    /// Times `operations` of them in one turn.
    pub fn time(&mut self, operations: usize, work: impl FnOnce()) {
        self.time_counted(|| {
            work();
            operations
        });
    }

    /// Times a turn whose `work` says how many operations it came to; one of none at all
    /// counts as one.
    pub fn time_counted(&mut self, work: impl FnOnce() -> usize) {
        let switches = involuntary_switches();
        let began = Instant::now();
        let operations = work();
        let took = began.elapsed().as_nanos() as f64;
        self.add(took, operations.max(1), involuntary_switches() != switches);
    }

    /// Adds those of another thread.
    pub fn merge(&mut self, other: &Turns) {
        let merged = self.quiet.add(&other.quiet).and_then(|()| self.all.add(&other.all));
        merged.unwrap_or_else(|error| fail(&error.to_string()));
        self.disturbed += other.disturbed;
    }

    /// Of the quiet turns, or of all where none was quiet.
    pub fn summary(&self) -> Option<Summary> {
        let turns = if self.quiet.is_empty() { &self.all } else { &self.quiet };
        Summary::of_thousandths(turns, self.disturbed as u64)
    }
}

/// How often the scheduler took the processor away from this thread.
pub fn involuntary_switches() -> i64 {
    // SAFETY: all-zero is a valid rusage, which getrusage fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}

/// Keeps the calling thread on the `number`th of the processors that it may run on, so that
/// threads that are measured together run at the same time.
pub fn keep_to_processor(number: usize) {
    let allowed = or_fail(sched_getaffinity(None));
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let mut own = CpuSet::new();
    own.set(processors[number % processors.len()]);
    or_fail(sched_setaffinity(None, &own));
}

/// A xorshift sequence of region numbers.
pub fn sequence(regions: usize, seed: u64) -> Vec<u32> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % regions as u64) as u32
    };
    std::iter::repeat_with(next).take(1 << 14).collect()
}
