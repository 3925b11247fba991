//! What a program that measures tells the command, one JSON line each.

use crate::bench::row::Row;
use serde::{Deserialize, Serialize};

/// A line of a program's standard output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// So many steps will come.
    Steps(u64),
    /// The next one begins.
    Step(String),
    /// A peer that takes part, and its version.
    Peer {
        /// Its name in the rows.
        name: String,
        /// Its version.
        version: String,
    },
    /// A peer that does not take part; the benchmark runs without it.
    Absent {
        /// Its name.
        name: String,
        /// Why, and what to do.
        #[serde(flatten)]
        absence: Absence,
    },
    /// A figure.
    Row(Row),
    /// The benchmark cannot run here.
    Skipped(Absence),
}

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The cause.
    pub why: String,
    /// What the user can do about it.
    pub remedy: String,
}

impl Absence {
    /// With its cause and its remedy.
    pub fn new(why: impl Into<String>, remedy: impl Into<String>) -> Absence {
        Absence { why: why.into(), remedy: remedy.into() }
    }
}

impl std::fmt::Display for Absence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let separator = if self.remedy.is_empty() { "" } else { "; " };
        write!(f, "{}{separator}{}", self.why, self.remedy)
    }
}

impl Word {
    /// Of a line; `None` where a library wrote it.
    pub fn read(line: &str) -> Option<Word> {
        serde_json::from_str(line).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_comes_back_as_it_was_and_other_lines_are_none() {
        let words = [
            Word::Steps(3),
            Word::Step("hits of 2 threads".into()),
            Word::Peer { name: "UCX".into(), version: "1.13.1".into() },
            Word::Absent { name: "UCX".into(), absence: Absence::new("no file", "install libucx0") },
            Word::Row(Row::new("cache.hit", "one region")),
            Word::Skipped(Absence::new("no GPU", "")),
        ];
        for word in words {
            let line = serde_json::to_string(&word).unwrap();
            assert_eq!(Word::read(&line), Some(word), "{line}");
        }
        assert_eq!(Word::read("[host:1] UCX  WARN  something"), None);
    }
}
