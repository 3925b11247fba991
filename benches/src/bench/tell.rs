//! What the command reads on standard output.

use pinyard_cli::bench::{Absence, Row, Word};
use std::io::Write;

fn tell(word: &Word) {
    let line = serde_json::to_string(word).unwrap_or_default();
    // A command that has gone wants no more.
    if writeln!(std::io::stdout(), "{line}").is_err() {
        std::process::exit(1);
    }
}

/// So many steps will come.
pub(crate) fn steps(count: usize) {
    tell(&Word::Steps(count as u64));
}

/// The next one begins.
pub(crate) fn step(what: impl Into<String>) {
    tell(&Word::Step(what.into()));
}

/// A peer takes part, or does not. Its version, where it does.
pub(crate) fn peer(name: &str, version: Result<String, Absence>) -> Option<String> {
    let name = name.to_owned();
    match version {
        Ok(version) => {
            tell(&Word::Peer { name, version: version.clone() });
            Some(version)
        }
        Err(absence) => {
            tell(&Word::Absent { name, absence });
            None
        }
    }
}

/// A figure.
pub(crate) fn row(row: Row) {
    tell(&Word::Row(row));
}

/// The benchmark cannot run here.
pub(crate) fn skipped(absence: Absence) {
    tell(&Word::Skipped(absence));
}
