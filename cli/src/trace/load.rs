//! Files into a run.

use crate::text::{short, shown};
use crate::trace::run::Run;
use pinyard_trace::Reader;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why there is nothing to report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A path that was named could not be read.
    #[error("{call}({}) failed: {source}", shown(path))]
    Path {
        /// The system call.
        call: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The folders hold no trace.
    #[error("no file that ends with .trace in {folders}: run the program with PINYARD_TRACE set to a folder")]
    Nothing {
        /// Where was looked.
        folders: String,
    },
    /// None of the files is a trace.
    #[error("no file could be read:\n{}", reasons.join("\n"))]
    Unreadable {
        /// A line for each file.
        reasons: Vec<String>,
    },
}

/// Files of folders, one level deep and in subfolders one below: a job's folder holds its
/// trace's.
fn files(paths: &[PathBuf]) -> Result<BTreeSet<PathBuf>, LoadError> {
    let mut files = BTreeSet::new();
    for path in paths {
        let failed = |call, source| LoadError::Path { call, path: path.clone(), source };
        if !fs::metadata(path).map_err(|error| failed("stat", error))?.is_dir() {
            files.insert(path.clone());
            continue;
        }
        for entry in fs::read_dir(path).map_err(|error| failed("readdir", error))?.flatten() {
            if entry.path().is_dir() {
                files.extend(traces(fs::read_dir(entry.path()).into_iter().flatten().flatten()));
            } else {
                files.extend(traces([entry]));
            }
        }
    }
    if files.is_empty() {
        let folders = paths.iter().map(|path| shown(path)).collect::<Vec<_>>().join(", ");
        return Err(LoadError::Nothing { folders });
    }
    Ok(files)
}

fn traces(entries: impl IntoIterator<Item = fs::DirEntry>) -> impl Iterator<Item = PathBuf> {
    let is_trace = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "trace");
    entries.into_iter().map(|entry| entry.path()).filter(is_trace)
}

fn file_name(path: &Path) -> String {
    short(&path.file_name().unwrap_or(path.as_os_str()).to_string_lossy())
}

/// Reads traces: files, and folders of them. A file that is cut short or spoilt is a
/// warning; what stands before the fault is in the run.
pub fn load(paths: &[PathBuf]) -> Result<Run, LoadError> {
    let (mut run, mut readers) = (Run::default(), Vec::new());
    for path in files(paths)? {
        let reader = File::open(&path).map_err(|error| format!("open failed: {error}"));
        let reader = reader.and_then(|file| {
            Reader::new(BufReader::with_capacity(1 << 20, file)).map_err(|error| error.to_string())
        });
        match reader {
            Ok(reader) => readers.push((file_name(&path), reader)),
            Err(reason) => run.warnings.push(format!("{}: {reason}", shown(&path))),
        }
    }
    if readers.is_empty() {
        return Err(LoadError::Unreadable { reasons: run.warnings });
    }
    let wall = |reader: &Reader<_>| reader.header().process.as_ref().map(|process| process.wall_ns);
    let began = readers.iter().filter_map(|(_, reader)| wall(reader)).min().unwrap_or(0);
    for (name, mut reader) in readers {
        let process = reader.header().process.clone();
        let label = match process.as_ref().and_then(|process| process.rank) {
            Some(rank) => format!("rank {rank}"),
            None => name.clone(),
        };
        let offset = wall(&reader).unwrap_or(began).saturating_sub(began);
        let version_1 = process.is_none();
        let mut open = run.open(label, process, offset);
        for event in &mut reader {
            match event {
                Ok(event) => run.add(&mut open, &event),
                Err(error) => run.warnings.push(format!("{name}: {error}")),
            }
        }
        let rank = run.ranks.last_mut();
        if let Some(rank) = rank {
            if version_1 {
                rank.lost = reader.header().lost;
            }
            if rank.lost > 0 {
                let more = "a larger PINYARD_TRACE_EVENTS loses fewer";
                run.warnings.push(format!(
                    "{name}: {} events were lost, overwritten before they were written; {more}",
                    rank.lost
                ));
            }
        }
    }
    run.close();
    Ok(run)
}
