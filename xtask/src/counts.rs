//! What a step's log says of its tests.

use std::collections::BTreeSet;
use std::ops::AddAssign;

/// Tests by their ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// Not run this time.
    pub(crate) left: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.left += other.left;
    }
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    Failed,
    /// With the reason.
    Skipped(String),
}

/// A log's closing lines, summed up, and the tests that it names.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) counts: Counts,
    pub(crate) cases: Vec<(String, End)>,
    /// Of all that was skipped, each once.
    pub(crate) reasons: BTreeSet<String>,
}

/// Reads what cargo-nextest, libtest and `xtask/ci/checks.sh` print. The first two say that a test
/// passed which prints `skipped: …` and returns: here it counts as skipped.
pub(crate) fn read(log: &str) -> Log {
    let mut read = Log::default();
    // A test of libtest's that has begun, and why it was skipped.
    let mut begun: Option<(String, Option<String>)> = None;
    let mut skips = 0;
    for line in log.lines() {
        if let Some(counts) = closing(line) {
            read.counts += counts;
            continue;
        }
        if let Some(name) = line.strip_prefix("ok      ") {
            read.cases.push((without_seconds(name), End::Passed));
        } else if let Some(name) = line.strip_prefix("FAILED  ") {
            read.cases.push((name.trim().to_owned(), End::Failed));
        } else if let Some(name) = killed(line) {
            read.cases.push((name, End::Failed));
        }
        let mut words = line.trim_start();
        if let Some((name, rest)) = words.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
            begun = Some((name.to_owned(), None));
            words = rest;
        }
        if let Some(why) = skipped(words) {
            read.reasons.insert(why.to_owned());
            match &mut begun {
                Some((_, reason)) => *reason = Some(why.to_owned()),
                None => read.cases.push((why.to_owned(), End::Skipped(why.to_owned()))),
            }
        }
        let end = match words.rsplit(' ').next() {
            Some("ok") => End::Passed,
            Some("FAILED") => End::Failed,
            _ => continue,
        };
        match (begun.take(), end) {
            (Some((name, Some(why))), End::Passed) => {
                skips += 1;
                read.cases.push((name, End::Skipped(why)));
            }
            (Some((name, _)), end) => read.cases.push((name, end)),
            (None, _) => {}
        }
    }
    read.counts.skipped += skips;
    read.counts.passed = read.counts.passed.saturating_sub(skips);
    read
}

/// The counts of a closing line: libtest's at the beginning of the line (nextest indents those of
/// its processes), nextest's own, or that of `xtask/ci/checks.sh`.
fn closing(line: &str) -> Option<Counts> {
    let libtest =
        line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". ")).map(|(_, rest)| rest);
    let nextest = || Some(line.trim_start().strip_prefix("Summary [")?.split_once(" run: ")?.1);
    let is_scripts = line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(" passed, ");
    let fields = libtest.or_else(nextest).or(is_scripts.then_some(line))?;
    let mut counts = Counts::default();
    for field in fields.split([',', ';']) {
        let Some((number, what)) = field.trim().split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what.split(' ').next() {
            Some("passed") => counts.passed += number,
            Some("failed" | "timed" | "exec") => counts.failed += number,
            // Of nextest: what a filter leaves, which another step or none runs.
            Some("skipped") if is_scripts => counts.skipped += number,
            Some("left") => counts.left += number,
            _ => {}
        }
    }
    Some(counts)
}

/// The reason of a skip, in a line of its own or behind a test's name.
fn skipped(words: &str) -> Option<&str> {
    let at = words.find("skipped: ")?;
    let before = words.get(..at)?;
    (before.is_empty() || before.ends_with(' ')).then(|| words[at + "skipped: ".len()..].trim())
}

/// The name of a test whose process nextest ended, or found ended by a signal.
fn killed(line: &str) -> Option<String> {
    let words = line.trim_start();
    let (kind, rest) = words.split_once(" [")?;
    let is_end = kind == "TIMEOUT" || kind == "ABORT" || kind.starts_with("SIG");
    is_end.then(|| rest.split_once("] ").map_or(rest, |(_, name)| name).trim().to_owned())
}

/// A check's name, without the time behind it.
fn without_seconds(name: &str) -> String {
    let name = name.trim_end();
    let bare = name
        .strip_suffix(" s")
        .and_then(|name| name.trim_end_matches(|c: char| c.is_ascii_digit()).strip_suffix(' '));
    bare.unwrap_or(name).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64, left: u64) -> Counts {
        Counts { passed, failed, skipped, left }
    }

    #[test]
    fn of_libtest_a_test_that_says_skipped_has_not_passed() {
        let log = "running 4 tests\n\
            test plain ... ok\n\
            test talks ... some words\nok\n\
            test lacks ... skipped: no device\nok\n\
            test lacks_both ... skipped: no device\nskipped: no network\nok\n\
            test breaks ... skipped: a part of it\nFAILED\n\
            test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out; finished in 0.00s\n";
        let read = read(log);
        assert_eq!(read.counts, counts(2, 1, 2, 0));
        assert_eq!(read.reasons.into_iter().collect::<Vec<_>>(), ["a part of it", "no device", "no network"]);
        assert_eq!(read.cases[2], ("lacks".to_owned(), End::Skipped("no device".to_owned())));
        assert_eq!(read.cases[4], ("breaks".to_owned(), End::Failed));
    }

    #[test]
    fn of_nextest_the_summary_counts_and_not_its_processes_lines() {
        let log = "        PASS [   0.005s] pinyard-hooks::loader unloads\n  stdout ───\n\n    running 1 test\n    \
            test unloads ... skipped: no dlmopen\n    ok\n\n    test result: ok. 1 passed; 0 failed; 0 ignored\n\n\
            \x20    TIMEOUT [  60.006s] pinyard-hooks::fork hangs\n  stdout ───\n\n    running 1 test\n    test hangs ... \n\
            ────────────\n     Summary [   2.006s] 5 tests run: 3 passed (1 slow), 1 failed, 1 timed out, 7 skipped\n";
        let read = read(log);
        assert_eq!(read.counts, counts(2, 2, 1, 0));
        assert!(
            read.cases.contains(&("pinyard-hooks::fork hangs".to_owned(), End::Failed)),
            "{:?}",
            read.cases
        );
    }

    #[test]
    fn of_scripts_the_last_lines_are_added_up() {
        let log = "ok      two ranks: staged                          12 s\nFAILED  three ranks\n        why\n\
            skipped: four ranks: no memory\n1 passed, 1 failed, 1 skipped\n30 passed, 0 failed, 0 skipped, 5 left\n";
        let read = read(log);
        assert_eq!(read.counts, counts(31, 1, 1, 5));
        let names: Vec<&str> = read.cases.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["two ranks: staged", "three ranks", "four ranks: no memory"]);
    }

    #[test]
    fn words_that_are_no_counts_count_nothing() {
        let log = "was skipped:nothing\n3 ranks passed the barrier\ntest of ok\nok\nthe gate failed\n";
        assert_eq!(read(log).counts, Counts::default());
    }
}
