//! Calls of the driver for 1,000 allocations and frees, once a trace has been replayed
//! before. Every contender's are counted by CUPTI, where its shim (xtask/ci/gpu/calls_shim.cpp)
//! is; without it those of the pools and of `cuMemAllocAsync`, which go through here.
#![allow(unsafe_code)] // the shim's functions are called

use super::contenders::Contender;
use super::device::{Stage, replay};
use super::shim::library;
use crate::{Settings, tell};
use pinyard_benches::traces::{self, Trace};
use pinyard_benches::turns::fail;
use pinyard_cli::bench::{Absence, Row, Summary, Unit};

/// Names the shim over CUPTI.
const COUNTER: &str = "PINYARD_BENCH_CALLS";

/// Counts the calls of the whole process.
struct Counter {
    count: unsafe extern "C" fn() -> u64,
}

impl Counter {
    /// None without the shim.
    fn begin() -> Option<Counter> {
        let Ok(path) = std::env::var(COUNTER) else {
            let remedy = format!(
                "build xtask/ci/gpu/calls_shim.cpp, as xtask/ci/gpu/pools.sh does, and name it in {COUNTER}"
            );
            tell::peer("CUPTI", Err(Absence::new(format!("{COUNTER} is not set"), remedy)));
            return None;
        };
        let failed = |error: libloading::Error| -> ! { fail(&format!("{COUNTER}={path}: {error}")) };
        let library = library(&path).unwrap_or_else(|error| failed(error));
        // SAFETY: the types of calls_shim.cpp.
        let (begin, count) = unsafe {
            let begin: libloading::Symbol<'_, unsafe extern "C" fn() -> bool> =
                library.get(b"calls_begin").unwrap_or_else(|error| failed(error));
            (begin, *library.get(b"calls_count").unwrap_or_else(|error| failed(error)))
        };
        // SAFETY: called once.
        if !unsafe { begin() } {
            let absence = Absence::new("CUPTI does not count", "end what else profiles this process");
            tell::peer("CUPTI", Err(absence));
            return None;
        }
        tell::peer("CUPTI", Ok(String::new()));
        Some(Counter { count })
    }

    fn now(&self) -> u64 {
        // SAFETY: reads a number.
        unsafe { (self.count)() }
    }
}

/// A row for each trace of one stream.
pub(crate) fn run(settings: &Settings, benchmark: &str) {
    let stage = Stage::new(1);
    let mut contenders = stage.contenders();
    let counter = stage.device.cuda.as_ref().and_then(|_| Counter::begin());
    let traces: Vec<Trace> =
        traces::same_sizes(settings.quick).into_iter().chain(traces::steady(settings.quick)).collect();
    tell::steps(traces.len());
    for trace in traces {
        tell::step(trace.name.clone());
        let mut row = Row::new(benchmark, format!("{}{}", trace.name, stage.device.suffix)).unit(Unit::Calls);
        row = trace.at.map_or(row.clone(), |(axis, value)| row.at(axis, value));
        for contender in &mut contenders {
            row.enter(contender.name(), calls(&stage, &mut **contender, &trace, counter.as_ref()));
        }
        tell::row(row);
    }
}

/// For 1,000 operations of the second time that the trace is replayed.
fn calls(
    stage: &Stage,
    contender: &mut dyn Contender,
    trace: &Trace,
    counter: Option<&Counter>,
) -> Option<Summary> {
    let now = |contender: &dyn Contender| {
        counter.map_or_else(|| contender.driver_calls(), |counter| Some(counter.now()))
    };
    let mut times = Vec::new();
    contender.begin(trace.cap);
    let first = replay(contender, trace, stage, &mut times);
    stage.settle();
    let before = now(contender);
    let second = first.and_then(|_| replay(contender, trace, stage, &mut times));
    let after = now(contender);
    let operations: u32 = times.iter().map(|&(_, operations)| operations).sum();
    stage.settle();
    contender.end();
    let calls = second.and(after)?.checked_sub(before?)?;
    Some(Summary::counted(calls as f64 * 1000.0 / f64::from(operations.max(1))))
}
