//! The files of a run: progress words, samples and a record per rank.

use crate::place::{UNFINISHED, put_in_place};
use crate::stress::options::Options;
use crate::stress::progress::{self, Progress, Word};
use crate::stress::record::{Counts, Injected, Outcome, Rank, Run, Sample};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file with what was asked.
const ASKED: &str = "run.json";

/// Where the record of `rank` is.
pub fn record_path(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}.json"))
}

/// Where the samples of `rank` are, a JSON document a line.
pub fn samples_path(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}.samples"))
}

/// Writes a record, whole or not at all.
///
/// # Errors
/// The file could not be written.
pub fn write_record(folder: &Path, rank: &Rank) -> io::Result<()> {
    put_in_place(&record_path(folder, rank.rank), |file| Ok(serde_json::to_writer(file, rank)?))
}

#[derive(Serialize, Deserialize)]
struct Asked {
    ranks: u32,
    options: Options,
}

/// Removes what an earlier run left of `rank`, which would be taken for this one's.
///
/// # Errors
/// A file could not be removed.
pub fn forget(folder: &Path, rank: u32) -> io::Result<()> {
    for path in [record_path(folder, rank), samples_path(folder, rank), progress::path(folder, rank)] {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Leaves what was asked, for [`merge`].
///
/// # Errors
/// The file could not be written.
pub fn write_options(folder: &Path, options: &Options, ranks: u32) -> io::Result<()> {
    let asked = Asked { ranks, options: options.clone() };
    put_in_place(&folder.join(ASKED), |file| Ok(serde_json::to_writer(file, &asked)?))
}

/// Removes what a run left in `folder`, and nothing else.
///
/// # Errors
/// A file could not be removed.
pub fn clear(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let ends = [".progress", ".samples", ".json", UNFINISHED];
        if name == ASKED || name.starts_with("rank-") && ends.iter().any(|end| name.ends_with(end)) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// A run from its folder alone.
///
/// # Errors
/// The folder is not one of a run.
pub fn merge(folder: &Path) -> io::Result<Run> {
    let path = folder.join(ASKED);
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("read {}: {error}", path.display()));
    let asked = fs::read(&path).map_err(failed)?;
    let asked: Asked = serde_json::from_slice(&asked).map_err(|error| failed(error.into()))?;
    Ok(Run { options: asked.options, launcher: None, ranks: read(folder, asked.ranks) })
}

/// The records of `ranks` ranks; of a rank without one, what its progress words and
/// samples tell.
pub fn read(folder: &Path, ranks: u32) -> Vec<Rank> {
    (0..ranks).map(|rank| record(folder, rank).unwrap_or_else(|| lost(folder, rank, ranks))).collect()
}

fn record(folder: &Path, rank: u32) -> Option<Rank> {
    serde_json::from_slice(&fs::read(record_path(folder, rank)).ok()?).ok()
}

fn lost(folder: &Path, rank: u32, ranks: u32) -> Rank {
    let progress = Progress::read(folder, rank);
    let lines = fs::read_to_string(samples_path(folder, rank)).unwrap_or_default();
    // The last line may be half written.
    let samples: Vec<Sample> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let counts = Counts {
        steps: progress.get(Word::Steps),
        messages: progress.get(Word::Messages),
        bytes: progress.get(Word::Checked),
        corrupt: progress.get(Word::Corrupt),
        stale: progress.get(Word::Stale),
        refused: progress.get(Word::Refused),
        hits: progress.get(Word::Hits),
        misses: progress.get(Word::Misses),
        pinned: progress.get(Word::Pinned),
        peak_pinned: samples.iter().map(|sample| sample.pinned).max().unwrap_or(0),
        ..Counts::default()
    };
    let killed = |at| Injected { at, what: "sent itself SIGKILL, as asked".to_owned() };
    Rank {
        rank,
        ranks,
        pid: progress.get(Word::Pid),
        outcome: if progress.begun() { Outcome::LostIn { doing: progress.doing() } } else { Outcome::Lost },
        seconds: progress.seconds(),
        counts,
        samples,
        injected: progress.fault_seconds().map(killed).into_iter().collect(),
        ..Rank::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_run_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        write_record(folder.path(), &Rank { outcome: Outcome::Completed, ..Rank::default() }).unwrap();
        fs::write(samples_path(folder.path(), 0), "{}").unwrap();
        forget(folder.path(), 0).unwrap();
        forget(folder.path(), 0).unwrap();
        assert_eq!(read(folder.path(), 1)[0].outcome, Outcome::Lost);
        assert!(forget(&folder.path().join(ASKED), 0).is_ok());
    }

    #[test]
    fn a_rank_without_a_record_is_lost_and_its_samples_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        write_record(folder.path(), &Rank { outcome: Outcome::Completed, ..Rank::default() }).unwrap();
        fs::write(record_path(folder.path(), 1), "{\"rank\": 1, ").unwrap();
        let sample = serde_json::to_string(&Sample { pinned: 9, ..Sample::default() }).unwrap();
        fs::write(samples_path(folder.path(), 1), format!("{sample}\n{}", &sample[..10])).unwrap();
        let ranks = read(folder.path(), 2);
        assert_eq!(ranks[0].outcome, Outcome::Completed);
        assert_eq!((&ranks[1].outcome, ranks[1].samples.len()), (&Outcome::Lost, 1));
        assert_eq!(ranks[1].counts.peak_pinned, 9);
    }
}
