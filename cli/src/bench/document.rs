//! A run, as it is saved.

use crate::bench::machine::Machine;
use crate::bench::row::Row;
use crate::bench::word::Absence;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Name and version of the format.
pub const SCHEMA: &str = "pinyard-bench/1";

/// A run of some benchmarks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// The version of pinyard.
    pub pinyard: String,
    /// Where it ran.
    pub machine: Machine,
    /// The peers that took part, with their versions.
    pub peers: BTreeMap<String, String>,
    /// With few turns and small sizes: that it works, no figures to publish.
    pub quick: bool,
    /// How long it took.
    pub seconds: f64,
    /// The figures.
    pub rows: Vec<Row>,
    /// What did not take part.
    pub skipped: Vec<Skipped>,
    /// What should have and failed.
    pub failed: Vec<Failed>,
}

/// A benchmark that did not run, or ran without a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its name.
    pub benchmark: String,
    /// The peer; none where all of the benchmark was skipped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peer: Option<String>,
    /// The cause and the remedy.
    #[serde(flatten)]
    pub absence: Absence,
}

/// A benchmark whose program ended badly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Its name.
    pub benchmark: String,
    /// How it ended, and its last words.
    pub why: String,
}

/// Why a saved run cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file.
    #[error("open {0} failed: {1}")]
    Open(PathBuf, io::Error),
    /// It is damaged, or something else.
    #[error("{0} is not JSON: {1}; name a file that `pinyard bench --save` has written")]
    Json(PathBuf, serde_json::Error),
    /// It is JSON of another kind.
    #[error(
        "{0} is no run of benchmarks, it has no schema {SCHEMA:?}; name a file that `pinyard bench --save` has written"
    )]
    Foreign(PathBuf),
    /// Another version wrote it.
    #[error(
        "{path} has the schema {found:?}, and this is {SCHEMA:?}; compare with the pinyard that wrote it"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says it is.
        found: String,
    },
    /// Parts are missing or of another type.
    #[error("{0} is a run of benchmarks, but not whole: {1}; save one again")]
    Damaged(PathBuf, serde_json::Error),
}

impl Document {
    /// An empty run on this machine.
    pub fn new(quick: bool) -> Document {
        Document {
            schema: SCHEMA.to_owned(),
            pinyard: env!("CARGO_PKG_VERSION").to_owned(),
            machine: Machine::here(),
            peers: BTreeMap::new(),
            quick,
            seconds: 0.0,
            rows: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Reads a run.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn read(path: &Path) -> Result<Document, ReadError> {
        let own = || path.to_owned();
        let text = std::fs::read(path).map_err(|error| ReadError::Open(own(), error))?;
        let value: serde_json::Value =
            serde_json::from_slice(&text).map_err(|error| ReadError::Json(own(), error))?;
        match value.get("schema").and_then(|schema| schema.as_str()) {
            Some(SCHEMA) => serde_json::from_value(value).map_err(|error| ReadError::Damaged(own(), error)),
            Some(found) if found.starts_with("pinyard-bench/") => {
                Err(ReadError::Version { path: own(), found: found.to_owned() })
            }
            _ => Err(ReadError::Foreign(own())),
        }
    }

    /// The run as JSON that [`read`](Document::read) takes.
    ///
    /// # Errors
    /// None of a run whose figures are numbers.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }

    /// Brings rows of a benchmark together, and of those the ones of a case, each where its
    /// first one stood.
    pub fn sort(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        let group = |a: &Row, b: &Row| a.benchmark == b.benchmark;
        let unit = |a: &Row, b: &Row| group(a, b) && a.unit == b.unit;
        let case = |a: &Row, b: &Row| unit(a, b) && a.case == b.case && a.threads == b.threads;
        let first = |row: &Row, is_same: &dyn Fn(&Row, &Row) -> bool| {
            rows.iter().position(|other| is_same(row, other))
        };
        let mut sorted = rows.clone();
        sorted.sort_by_cached_key(|row| (first(row, &group), first(row, &unit), first(row, &case)));
        self.rows = sorted;
    }

    /// A subject's name with its version, as far as that is known.
    pub fn named(&self, subject: &str) -> String {
        match self.peers.get(subject) {
            Some(version) if !version.is_empty() => format!("{subject} {version}"),
            _ => subject.to_owned(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::bench::row::{Axis, OURS, Summary};

    /// A hit at three sizes beside UCX.
    pub(crate) fn hits(ours: f64) -> Document {
        let mut document = Document::new(false);
        document.peers.insert("UCX".to_owned(), "1.13.1".to_owned());
        for (regions, factor) in [(1, 1.0), (100, 1.1), (10_000, 2.0)] {
            let mut row = Row::new("cache.hit", "get and release").threads(2).at(Axis::Regions, regions);
            let of = |median: f64| {
                Summary::of(
                    (0..100).map(|turn| median * factor * (0.98 + f64::from(turn) * 0.0004)).collect(),
                )
            };
            row.enter(OURS, of(ours));
            row.enter("UCX", of(90.0));
            document.rows.push(row);
        }
        let absence = Absence::new("no device", "install a driver");
        document.skipped.push(Skipped { benchmark: "pools.pinned".into(), peer: None, absence });
        document
    }

    fn reason(text: &str) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Document::read(file.path()).unwrap_err().to_string()
    }

    #[test]
    fn a_saved_run_comes_back_as_it_was() {
        let document = hits(27.5);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), document.to_json().unwrap()).unwrap();
        assert_eq!(Document::read(file.path()).unwrap(), document);
    }

    #[test]
    fn rows_of_a_case_come_together() {
        let mut document = hits(27.5);
        let mut lookups = hits(20.0).rows;
        lookups.iter_mut().for_each(|row| row.case = "lookup".to_owned());
        let mixed = document.rows.drain(..).zip(lookups).flat_map(|(hit, lookup)| [hit, lookup]);
        document.rows = mixed.collect();
        document.sort();
        let cases: Vec<_> =
            document.rows.iter().map(|row| (row.case.as_str(), row.at.map(|at| at.value))).collect();
        let each = |case| [1, 100, 10_000].map(|value| (case, Some(value)));
        assert_eq!(cases, [each("get and release"), each("lookup")].concat());
    }

    #[test]
    fn what_is_no_saved_run_says_what_it_is() {
        let whole = hits(27.5).to_json().unwrap();
        assert!(reason(&whole[..whole.len() / 2]).contains("is not JSON: EOF"));
        assert!(reason("").contains("is not JSON"));
        assert!(reason("{\"rows\": []}").contains("no run of benchmarks"));
        assert!(reason("[1]").contains("no run of benchmarks"));
        assert!(
            reason(&whole.replace(SCHEMA, "pinyard-bench/9")).contains("has the schema \"pinyard-bench/9\"")
        );
        let damaged = reason(&whole.replacen("\"median\"", "\"middle\"", 1));
        assert!(damaged.contains("not whole") && damaged.contains("median"), "{damaged}");
        let missing = Document::read(Path::new("/nonexistent/run.json")).unwrap_err().to_string();
        assert!(missing.starts_with("open /nonexistent/run.json failed"), "{missing}");
    }
}
