//! The tables of the page.

use crate::stress::operation::Operation;
use crate::stress::options::word;
use crate::stress::record::{Machine, Outcome, PerOperation, Rank, Run};
use crate::text::{bytes, escaped, grouped, microseconds, percent};
use std::collections::BTreeMap;

/// A table; columns whose heading starts with `'` are text.
fn table(title: &str, heading: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let is_text = |column: usize| heading.get(column).is_some_and(|name| name.starts_with('\''));
    let class = |column: usize| if is_text(column) { " class=\"text\"" } else { "" };
    let cells = |tag: &str, row: &[String]| -> String {
        let cell = |(column, text): (usize, &String)| match text.strip_prefix('!') {
            Some(text) => format!("<td class=\"bad\">{}</td>", escaped(text)),
            None => format!("<{tag}{}>{}</{tag}>", class(column), escaped(text)),
        };
        row.iter().enumerate().map(cell).collect()
    };
    let names: Vec<String> = heading.iter().map(|name| name.trim_start_matches('\'').to_owned()).collect();
    let rows: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", cells("td", row))).collect();
    format!(
        "<h2>{title}</h2>\n<div class=\"card wide\"><table>\n<tr>{}</tr>\n{rows}</table></div>",
        cells("th", &names)
    )
}

/// A count that must be 0.
fn must_be_none(count: u64) -> String {
    if count == 0 { "0".to_owned() } else { format!("!{}", grouped(count)) }
}

pub(super) fn operations(run: &Run) -> String {
    let mut sums: BTreeMap<Operation, PerOperation> = BTreeMap::new();
    for (&operation, one) in run.ranks.iter().flat_map(|rank| &rank.operations) {
        let sum = sums.entry(operation).or_default();
        sum.count += one.count;
        sum.bytes += one.bytes;
        sum.seconds += one.seconds;
    }
    let row = |(operation, sum): (&Operation, &PerOperation)| {
        vec![
            operation.name().to_owned(),
            grouped(sum.count),
            bytes(sum.bytes),
            bytes(sum.bytes / sum.count.max(1)),
            microseconds(1e6 * sum.seconds / sum.count.max(1) as f64),
        ]
    };
    let rows: Vec<Vec<String>> = sums.iter().map(row).collect();
    table(
        "Operations, all ranks",
        &["operation", "calls", "message bytes", "mean length", "mean time in MPI"],
        &rows,
    )
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Completed => "completed".to_owned(),
        Outcome::Stopped { why } => format!("stopped: {why}"),
        Outcome::Hung { doing, seconds } => format!("hung for {seconds:.0} s in {doing}"),
        Outcome::Ended { signal, doing } => format!("ended by signal {signal} in {doing}"),
        Outcome::Refused { why } => format!("could not start: {why}"),
        Outcome::Lost => "lost, left nothing".to_owned(),
        Outcome::LostIn { doing } => format!("lost in {doing}"),
    }
}

pub(super) fn ranks(run: &Run) -> String {
    let row = |rank: &Rank| {
        let counts = &rank.counts;
        vec![
            rank.rank.to_string(),
            grouped(counts.steps),
            grouped(counts.messages),
            must_be_none(counts.corrupt),
            grouped(counts.device_checks),
            must_be_none(counts.stale),
            grouped(counts.refused),
            percent(counts.hits, counts.misses),
            grouped(counts.misses),
            grouped(counts.invalidations),
            grouped(counts.evictions),
            bytes(counts.peak_pinned),
            format!("{}, {}", microseconds(rank.registering.p50_us), microseconds(rank.registering.p99_us)),
            outcome(&rank.outcome),
        ]
    };
    let heading = [
        "rank",
        "steps",
        "messages",
        "not as sent",
        "device checks",
        "stale",
        "refused",
        "hits",
        "misses",
        "invalidations",
        "evictions",
        "pinned at most",
        "registration: median, 99 %",
        "'ending",
    ];
    table("Ranks", &heading, &run.ranks.iter().map(row).collect::<Vec<_>>())
}

pub(super) fn changes(run: &Run) -> String {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in run.ranks.iter().flat_map(|rank| &rank.changes) {
        *sums.entry(name).or_default() += count;
    }
    let rows: Vec<Vec<String>> =
        sums.iter().map(|(name, count)| vec![(*name).to_owned(), grouped(*count)]).collect();
    table("What was done to buffers before they were used, all ranks", &["change", "times"], &rows)
}

pub(super) fn events(run: &Run) -> String {
    const MOST: usize = 60;
    let mut events: Vec<(f64, u32, String)> = Vec::new();
    for rank in &run.ranks {
        let mut add = |at: f64, what: String| events.push((at, rank.rank, what));
        rank.injected.iter().for_each(|injected| add(injected.at, format!("fault: {}", injected.what)));
        rank.stalls.iter().for_each(|stall| {
            add(stall.at, format!("no step for {:.1} s, in {}", stall.seconds, stall.doing))
        });
        rank.wrong.iter().for_each(|wrong| add(wrong.at, format!("step {}: {}", wrong.step, wrong.what)));
        for refusal in &rank.refusals {
            add(
                refusal.at,
                format!("{} refused ({}): {}", grouped(refusal.count), refusal.kind, refusal.first),
            );
        }
    }
    events.sort_by(|a, b| a.0.total_cmp(&b.0));
    let row =
        |(at, rank, what): &(f64, u32, String)| vec![format!("{at:.1} s"), rank.to_string(), what.clone()];
    let rows: Vec<Vec<String>> = events.iter().take(MOST).map(row).collect();
    table("Faults and what came of them", &["time", "rank", "'event"], &rows)
}

pub(super) fn machines(run: &Run) -> String {
    let mut machines: Vec<(&Machine, Vec<&Rank>)> = Vec::new();
    for rank in &run.ranks {
        match machines.iter_mut().find(|(machine, _)| machine.host == rank.machine.host) {
            Some((_, ranks)) => ranks.push(rank),
            None => machines.push((&rank.machine, vec![rank])),
        }
    }
    let row = |(machine, ranks): &(&Machine, Vec<&Rank>)| {
        let numbers: Vec<String> = ranks.iter().map(|rank| rank.rank.to_string()).collect();
        let first = ranks.first();
        vec![
            machine.host.clone(),
            numbers.join(" "),
            machine.cores.to_string(),
            bytes(machine.memory),
            machine.memlock.clone(),
            machine.processor.clone(),
            machine.system.clone(),
            first.map(|rank| rank.backend_choice.clone()).unwrap_or_default(),
            first.map(|rank| rank.events.clone()).unwrap_or_default(),
        ]
    };
    let heading = [
        "machine",
        "ranks",
        "cores",
        "memory",
        "RLIMIT_MEMLOCK",
        "'processor",
        "'system",
        "'backend",
        "'changes are told by",
    ];
    table("Machines", &heading, &machines.iter().map(row).collect::<Vec<_>>())
}

pub(super) fn options(run: &Run) -> String {
    let options = &run.options;
    let mut rows = vec![
        vec!["seed".to_owned(), options.seed.to_string()],
        vec!["time".to_owned(), format!("{} s", options.time)],
        vec!["longest message".to_owned(), bytes(options.max_bytes)],
        vec!["operations".to_owned(), options.operations.iter().map(word).collect::<Vec<_>>().join(", ")],
        vec!["backend asked for".to_owned(), word(&options.backend)],
    ];
    if let Some(fault) = &options.fault {
        rows.push(vec![
            "fault".to_owned(),
            format!("{} at {:.1} s", word(fault), options.fault_time().as_secs_f64()),
        ]);
    }
    table("Options", &["option", "'value"], &rows)
}
