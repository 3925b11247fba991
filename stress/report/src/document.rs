//! The JSON document, and where reports go.

use crate::options::Outputs;
use crate::record::{Rank, Run};
use crate::series::{self, Point};
use crate::verdict::Verdict;
use crate::{page, text};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use tempfile::NamedTempFile;

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

/// Puts a file that `fill` writes at `path`: for its owner alone, and whole or not at all. A
/// symbolic link there is replaced, not followed.
///
/// # Errors
/// Those of `fill`, and of making the file beside its place and renaming it.
pub fn put_in_place(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = NamedTempFile::new_in(folder)?;
    let mut buffered = BufWriter::new(file.as_file_mut());
    fill(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    file.persist(path).map(drop).map_err(|error| error.error)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::write;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_report_is_its_owner_s_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (somebodys, report) = (folder.path().join("somebodys"), folder.path().join("report.html"));
        fs::write(&somebodys, "theirs").unwrap();
        symlink(&somebodys, &report).unwrap();
        write(&report, b"ours").unwrap();
        assert_eq!(fs::read(&somebodys).unwrap(), b"theirs");
        let written = fs::symlink_metadata(&report).unwrap();
        assert!(written.is_file() && written.permissions().mode() & 0o777 == 0o600);
        let missing = write(&folder.path().join("none/report.html"), b"").unwrap_err();
        assert!(missing.to_string().contains("none/report.html"), "{missing}");
    }
}
