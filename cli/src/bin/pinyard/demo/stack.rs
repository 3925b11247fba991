//! The naive cache's hang in the calls that matter: who waits, who holds, and
//! how one led to the other.

use super::row::Row;
use super::rows::Kind;
use pinyard_cli::demo::{Frame, Outcome};
use serde::Serialize;
use std::fmt;

/// A call of the cycle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Call {
    /// Its place in the rank's whole stack.
    number: usize,
    call: String,
    at: String,
    meaning: String,
}

/// The stack of the naive row's first rank that has one.
pub(crate) struct Cycle {
    rank: i32,
    round: u64,
    pub(crate) calls: Vec<Call>,
}

/// The parts that calls play; a cycle needs the first four, in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Waits,
    Hook,
    Releases,
    Holds,
    Other,
}

/// What `call` is there for, if it matters.
fn part(call: &str) -> Option<(Part, &'static str)> {
    let ends = |end: &str| call.ends_with(end);
    if call.contains("::mutex::Mutex") && ends("::lock") {
        Some((Part::Waits, ""))
    } else if ends("naive::unmapped") {
        Some((Part::Other, "the cache looks for what to invalidate"))
    } else if call == "madvise" || call == "munmap" {
        Some((Part::Hook, "the cache's hook, in front of libc's"))
    } else if call.contains("GlobalAlloc>::alloc") {
        Some((Part::Releases, "the allocator releases pages first"))
    } else if call.contains("GlobalAlloc>::dealloc") {
        Some((Part::Releases, "the allocator releases the freed pages"))
    } else if call.contains("BTreeMap") && ends("::insert") {
        Some((Part::Other, "the map needs memory for a node"))
    } else if ends("NaiveCache::insert") {
        Some((Part::Holds, "HOLDS the mutex, enters the registration"))
    } else if ends("NaiveCache::get") {
        Some((Part::Other, "the buffer's pages have been registered"))
    } else if ends("rounds::run") {
        Some((Part::Other, "the program sends a buffer"))
    } else {
        None
    }
}

/// The hang of the naive row among `rows`, if its stack shows the cycle.
pub(crate) fn cycle(rows: &[Row]) -> Option<Cycle> {
    let naive = rows.iter().find(|row| row.kind == Kind::Naive)?;
    naive.reports.iter().find_map(|report| match &report.outcome {
        Outcome::Hung { round, stack, .. } => {
            calls(stack).map(|calls| Cycle { rank: report.rank, round: *round, calls })
        }
        _ => None,
    })
}

/// The calls that matter, or `None` if they are not the cycle.
fn calls(stack: &[Frame]) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut parts = Vec::new();
    for (number, frame) in stack.iter().enumerate() {
        let Some((part, meaning)) = part(&frame.call) else { continue };
        if part == Part::Waits && parts.contains(&Part::Waits) {
            continue; // the lock's own inner calls
        }
        parts.push(part);
        calls.push(Call { number, call: short(&frame.call), at: place(frame), meaning: meaning.to_owned() });
    }
    let order: Vec<Part> = parts.iter().copied().filter(|part| *part != Part::Other).collect();
    if order != [Part::Waits, Part::Hook, Part::Releases, Part::Holds] {
        return None;
    }
    let holder =
        calls.iter().zip(&parts).find(|(_, part)| **part == Part::Holds).map(|(call, _)| call.number)?;
    let waiter =
        calls.iter_mut().zip(&parts).find(|(_, part)| **part == Part::Waits).map(|(call, _)| call)?;
    waiter.meaning = format!("WAITS for the mutex that #{holder} below holds");
    Some(calls)
}

/// The last two parts of a path, without generics: `<a::b::C<T> as d::E>::f` as `C::f`.
fn short(call: &str) -> String {
    let qualified = call.strip_prefix('<').and_then(|rest| rest.rsplit_once(">::"));
    let (owner, function) = qualified.or_else(|| call.rsplit_once("::")).unwrap_or(("", call));
    let owner = owner.split(" as ").next().unwrap_or(owner);
    let owner = owner.split('<').next().unwrap_or(owner);
    match owner.rsplit("::").next() {
        Some(name) if !name.is_empty() => format!("{name}::{function}"),
        _ => function.to_owned(),
    }
}

/// `file:line` below mpi-tests/src, or whose code it is.
fn place(frame: &Frame) -> String {
    let at = frame.at.as_deref().unwrap_or_default();
    let line = at.rsplit_once(':').map_or(at, |(line, _column)| line);
    match line.split_once("mpi-tests/src/") {
        Some((_, file)) => file.to_owned(),
        None if at.contains("/library/") => "standard library".to_owned(),
        None => line.to_owned(),
    }
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "How the naive cache hangs: rank {} in round {}, innermost call first (files in mpi-tests/src)",
            self.rank,
            self.round + 1
        )?;
        let width = |of: fn(&Call) -> &str| self.calls.iter().map(|call| of(call).len()).max().unwrap_or(0);
        let (name, place) = (width(|call| &call.call), width(|call| &call.at));
        let lines = self.calls.iter().map(|Call { number, call, at, meaning }| {
            format!("  #{number:<2} {call:<name$}  {at:<place$}  {meaning}")
        });
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::row::tests::{clean, hung};

    #[test]
    fn names_are_shortened() {
        assert_eq!(short("std::sync::poison::mutex::Mutex<T>::lock"), "Mutex::lock");
        assert_eq!(short("<a::b::Purging as core::alloc::global::GlobalAlloc>::alloc"), "Purging::alloc");
        assert_eq!(short("pinyard_mpi_tests::naive::unmapped"), "naive::unmapped");
        assert_eq!(short("<alloc::btree::map::BTreeMap<usize, x::Entry>>::insert"), "BTreeMap::insert");
        assert_eq!(short("alloc::btree::map::BTreeMap<K,V,A>::insert"), "BTreeMap::insert");
        assert_eq!(short("madvise"), "madvise");
    }

    #[test]
    fn the_cycle_is_found_and_names_its_holder() {
        let cycle = cycle(&clean()).unwrap();
        let text = cycle.to_string();
        assert_eq!(cycle.calls.len(), 8, "{text}");
        assert!(text.contains("that #6 below") && text.contains("#6  NaiveCache::insert"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn another_hang_is_not_called_the_cycle() {
        let mut rows = clean();
        for report in &mut rows[1].reports {
            if let Outcome::Hung { stack, .. } = &mut report.outcome {
                stack.retain(|frame| !frame.call.ends_with("NaiveCache::insert"));
            }
        }
        assert!(cycle(&rows).is_none());
        rows[1].reports[1] = hung(1);
        assert_eq!(cycle(&rows).unwrap().rank, 1, "any rank's stack will do");
    }
}
