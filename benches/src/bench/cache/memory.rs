//! Resident memory, measured in a process of its own for each peer.
#![allow(unsafe_code)]

use super::{NO_LIMIT, Present, fill};
use crate::peer::libfabric::{self, Monitor};
use crate::peer::{Libfabric, Memory, Ours, Peer, Ucx, ucx};
use crate::tell;
use pinyard_benches::turns::{REGION, STRIDE, or_fail};
use pinyard_cli::bench::{Row, Summary, Unit};
use std::process::Command;

const REGIONS: usize = 100_000;
const ROUNDS: usize = 40_000;
const PAGE: usize = 4096;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * PAGE
}

/// Maps and unmaps through libc, whose entries are hooked.
#[allow(clippy::disallowed_methods)]
fn round() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping that nobody else knows, unmapped once.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), REGION, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        libc::munmap(at, REGION);
    }
}

fn measure<P: Peer>() -> [usize; 4] {
    let memory = or_fail(Memory::map((REGIONS + 1) * STRIDE));
    let peer: P = or_fail(P::new(REGIONS + 64));
    peer.hit(memory.at(REGIONS * STRIDE), REGION);
    let before = resident();
    fill(&peer, &memory, REGIONS);
    let filled = resident();
    (0..1000).for_each(|_| round());
    let start = resident();
    (0..ROUNDS).for_each(|_| round());
    [before, filled, start, resident()]
}

/// What the child that is to measure `name` does: four numbers on standard output.
pub(crate) fn child(name: &str) {
    let numbers = match name {
        Ucx::NAME => {
            or_fail(ucx::load());
            measure::<Ucx>()
        }
        Libfabric::NAME => {
            or_fail(libfabric::load(NO_LIMIT, Monitor::Memhooks));
            measure::<Libfabric>()
        }
        _ => measure::<Ours>(),
    };
    println!("{}", numbers.map(|number| number.to_string()).join(" "));
}

fn ask(name: &str) -> Result<[f64; 4], String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["cache.memory", "--child", name])
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    numbers
        .try_into()
        .map_err(|_| format!("cache.memory --child {name}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// Bytes of a region, and what a cache that nobody asks grows by.
pub(crate) fn run() {
    let present = Present::find();
    let cases = ["a region of 100,000", "grown over 40,000 map and unmap rounds without a get"];
    let mut rows = cases.map(|case| Row::new("cache.memory", case).unit(Unit::Bytes));
    tell::steps(present.names().count());
    for name in present.names() {
        tell::step(name);
        let [before, filled, start, end] = or_fail(ask(name));
        for (row, (value, count)) in
            rows.iter_mut().zip([(filled - before, REGIONS as f64), (end - start, 1.0)])
        {
            row.enter(name, Some(Summary::counted(value.max(0.0) / count)));
        }
    }
    rows.into_iter().for_each(tell::row);
}
