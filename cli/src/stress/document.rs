//! The JSON document, and where reports go.

use crate::place::put_in_place;
use crate::stress::options::Outputs;
use crate::stress::page;
use crate::stress::record::{Rank, Run};
use crate::stress::series::{self, Point};
use crate::stress::verdict::Verdict;
use crate::text;
use serde::Serialize;
use std::io::{self, Write};
use std::path::Path;

/// Name and version of the schema (docs/src/stress.md).
pub const SCHEMA: &str = "pinyard-stress/1";

/// The whole document.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    pinyard: &'static str,
    verdict: &'a Verdict,
    #[serde(flatten)]
    run: &'a Run,
    series: &'a [Point],
}

/// Writes what `outputs` names, for `run`.
///
/// # Errors
/// The file that could not be written, with the cause.
pub fn write_reports(outputs: &Outputs, run: &Run, verdict: &Verdict) -> io::Result<()> {
    let series = series::of(&run.ranks);
    if let Some(path) = &outputs.json {
        write(path, (json(run, verdict, &series)? + "\n").as_bytes())?;
    }
    if let Some(path) = &outputs.report {
        write(path, page::of(run, verdict, &series).map_err(io::Error::other)?.as_bytes())?;
    }
    Ok(())
}

fn json(run: &Run, verdict: &Verdict, series: &[Point]) -> io::Result<String> {
    let document = Document { schema: SCHEMA, pinyard: env!("CARGO_PKG_VERSION"), verdict, run, series };
    Ok(serde_json::to_string_pretty(&document)?)
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let failed =
        |error: io::Error| io::Error::new(error.kind(), format!("write {}: {error}", path.display()));
    put_in_place(path, |file| file.write_all(bytes)).map_err(failed)
}

/// The run in one line.
pub fn summary(run: &Run) -> String {
    let sum = |count: fn(&Rank) -> u64| run.ranks.iter().map(count).sum::<u64>();
    let steps = run.ranks.iter().map(|rank| rank.counts.steps).min().unwrap_or(0);
    format!(
        "{}, {}: {} of {} checked, {} wrong; {} device checks, {} stale; hits {}, {} invalidations",
        text::counted(run.ranks.len() as u64, "rank"),
        text::counted(steps, "step"),
        text::counted(sum(|rank| rank.counts.messages), "message"),
        text::bytes(sum(|rank| rank.counts.bytes)),
        text::grouped(sum(|rank| rank.counts.corrupt)),
        text::grouped(sum(|rank| rank.counts.device_checks)),
        text::grouped(sum(|rank| rank.counts.stale)),
        text::percent(sum(|rank| rank.counts.hits), sum(|rank| rank.counts.misses)),
        text::grouped(sum(|rank| rank.counts.invalidations)),
    )
}
