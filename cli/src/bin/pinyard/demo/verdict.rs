//! Whether the run shows what it is to show, in plain words.

use super::row::{End, Row};
use super::rows::Kind;
use super::stack;
use pinyard_cli::text::grouped;
use std::fmt;

/// The end of it.
pub(crate) struct Verdict {
    /// What is not as it should be.
    pub(crate) faults: Vec<String>,
    clean: String,
}

impl Verdict {
    pub(crate) fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Judges all rows together.
pub(crate) fn of(rows: &[Row]) -> Verdict {
    let mut faults: Vec<String> = rows.iter().flat_map(faults_of).collect();
    let hung = rows.iter().any(|row| row.kind == Kind::Naive && row.hangs != 0);
    if hung && stack::cycle(rows).is_none() {
        faults.push("the naive cache hung, but its stack is not that of the cycle".to_owned());
    }
    let sum = |kinds: &[Kind], of: fn(&Row) -> u64| -> String {
        grouped(rows.iter().filter(|row| kinds.contains(&row.kind)).map(of).sum())
    };
    let ours = [Kind::Pinyard, Kind::Pool];
    let clean = format!(
        "without hooks {} of {} rounds sent stale bytes, and the naive cache hung;\n\
         pinyard went through {} rounds with no stale byte and no hang, and its pool registered nothing\n\
         after warm-up.",
        sum(&[Kind::NoHooks], |row| row.stale),
        sum(&[Kind::NoHooks], |row| row.rounds),
        sum(&ours, |row| row.rounds),
    );
    Verdict { faults, clean }
}

fn faults_of(row: &Row) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |text: String| faults.push(format!("{} on {}: {text}", row.name, row.allocator));
    let unfinished = match (&row.end, row.kind) {
        (End::Completed, Kind::Naive) => {
            Some("did not hang, so the demo does not show the problem".to_owned())
        }
        (End::Hung, Kind::Naive) | (End::Completed, _) => None,
        (End::Hung, _) => Some(format!("{} ranks hung", row.hangs)),
        (End::Failed(why), _) => Some(format!("failed: {why}")),
    };
    unfinished.into_iter().for_each(&mut fault);
    match row.kind {
        Kind::NoHooks if row.stale == 0 => {
            fault("no round was stale, so the demo does not show the problem".to_owned());
        }
        Kind::Pinyard | Kind::Pool if row.stale != 0 => {
            fault(format!("{} rounds sent stale bytes", grouped(row.stale)));
        }
        _ => {}
    }
    match (row.kind, row.registrations_after_warm_up) {
        (Kind::Pool, Some(0)) => {}
        (Kind::Pool, Some(some)) => fault(format!("registered {} times after warm-up", grouped(some))),
        (Kind::Pool, None) => fault("never got through the warm-up".to_owned()),
        _ => {}
    }
    faults
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_clean() {
            return write!(f, "Clean: {}", self.clean);
        }
        write!(f, "NOT clean:")?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::row::tests::clean;
    use pinyard_cli::demo::Outcome;

    fn faults_after(change: impl FnOnce(&mut Vec<Row>)) -> String {
        let mut rows = clean();
        change(&mut rows);
        let verdict = of(&rows);
        assert_eq!(verdict.is_clean(), verdict.to_string().starts_with("Clean"));
        verdict.faults.join("; ")
    }

    #[test]
    fn a_clean_run_is_called_clean() {
        assert_eq!(faults_after(|_| {}), "");
        let text = of(&clean()).to_string();
        assert!(text.contains("396 of 400") && text.contains("800 rounds"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn everything_that_must_not_be_is_a_fault() {
        let at = |kind| move |row: &Row| row.kind == kind;
        let index = |rows: &[Row], kind| rows.iter().position(at(kind)).unwrap();
        let change = |kind, change: fn(&mut Row)| {
            faults_after(|rows| {
                let index = index(rows, kind);
                change(&mut rows[index]);
            })
        };
        assert!(change(Kind::NoHooks, |row| row.stale = 0).contains("no round was stale"));
        assert!(change(Kind::Naive, |row| row.end = End::Completed).contains("did not hang"));
        assert!(change(Kind::Naive, |row| row.end = End::Failed("x".into())).contains("failed: x"));
        for kind in [Kind::Pinyard, Kind::Pool] {
            assert!(change(kind, |row| row.stale = 1).contains("1 rounds sent stale bytes"));
            assert!(change(kind, |row| row.end = End::Hung).contains("hung"));
            assert!(change(kind, |row| row.end = End::Failed("x".into())).contains("failed: x"));
        }
        assert!(change(Kind::Pool, |row| row.registrations_after_warm_up = Some(1)).contains("1 times"));
        assert!(change(Kind::Pool, |row| row.registrations_after_warm_up = None).contains("warm-up"));
        assert!(change(Kind::NoHooks, |row| row.end = End::Hung).contains("hung"));
        let other_hang = change(Kind::Naive, |row| {
            for report in &mut row.reports {
                if let Outcome::Hung { stack, .. } = &mut report.outcome {
                    stack.clear();
                }
            }
        });
        assert!(other_hang.contains("not that of the cycle"));
    }
}
