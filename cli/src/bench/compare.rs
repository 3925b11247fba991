//! A run beside a saved one: which of our figures changed by more than noise.
//!
//! A figure has changed where its median did by more than `noise`, and the middle halves
//! of the samples do not overlap. The first alone would report a case whose samples
//! scatter, the second one whose samples hardly do: turns of one process are more alike
//! than two runs are.

use crate::bench::document::Document;
use crate::bench::row::{OURS, Row, Subject, Summary};
use serde::Serialize;

/// By how much a median has to differ, where nothing else is said.
pub const NOISE: f64 = 0.10;
/// The same of what is counted.
const COUNTED: f64 = 0.01;

/// What became of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// No more than noise.
    Same,
    /// More than noise: it takes longer, or is more.
    Slower,
    /// More than noise: it takes less.
    Faster,
}

/// A figure in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// The case, with the figures of the later run.
    pub row: Row,
    /// Which of ours it is.
    pub subject: String,
    /// In the saved run.
    pub saved: Summary,
    /// In the later one.
    pub now: Summary,
    /// The later median by the saved one; `None` where that is 0.
    pub ratio: Option<f64>,
    /// Whether it changed.
    pub change: Change,
}

/// Both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The figures that both have.
    pub rows: Vec<Compared>,
    /// How many of ours have no counterpart in the saved run.
    pub new: usize,
    /// What makes the two runs hard to compare.
    pub notes: Vec<String>,
}

impl Comparison {
    /// Of `now` beside `saved`. `noise` is the part by which a median has to differ.
    pub fn of(saved: &Document, now: &Document, noise: f64) -> Comparison {
        let mut comparison = Comparison { rows: Vec::new(), new: 0, notes: notes(saved, now) };
        for row in &now.rows {
            let before = saved.rows.iter().find(|before| before.is_same_case(row));
            for Subject { name, summary } in row.of.iter().filter(|subject| is_ours(&subject.name)) {
                match before.and_then(|before| before.summary(name)) {
                    Some(before) => comparison.rows.push(compared(row, name, before, summary, noise)),
                    None => comparison.new += 1,
                }
            }
        }
        comparison
    }

    /// How many figures changed so.
    pub fn count(&self, change: Change) -> usize {
        self.rows.iter().filter(|row| row.change == change).count()
    }
}

/// `pinyard`, and its other settings: `pinyard, virtual memory`.
fn is_ours(subject: &str) -> bool {
    subject.starts_with(OURS)
}

fn compared(row: &Row, subject: &str, saved: &Summary, now: &Summary, noise: f64) -> Compared {
    let noise = if row.unit.is_counted() { COUNTED } else { noise };
    let apart = now.p25 > saved.p75 || now.p75 < saved.p25;
    let slower = now.median > saved.median * (1.0 + noise);
    // As far below as `slower` is above: a ratio of 1 / (1 + noise).
    let faster = now.median * (1.0 + noise) < saved.median;
    let change = match (apart, slower, faster) {
        (true, true, _) => Change::Slower,
        (true, _, true) => Change::Faster,
        _ => Change::Same,
    };
    let ratio = (saved.median > 0.0).then(|| now.median / saved.median);
    Compared { row: row.clone(), subject: subject.to_owned(), saved: *saved, now: *now, ratio, change }
}

/// Machines, versions and peers that differ.
fn notes(saved: &Document, now: &Document) -> Vec<String> {
    let mut notes = Vec::new();
    if !saved.machine.is_like(&now.machine) {
        notes.push(format!("the saved run is of another machine: {}", saved.machine));
    }
    if saved.machine.kernel != now.machine.kernel {
        notes.push(format!(
            "the saved run is of Linux {}, and this is {}",
            saved.machine.kernel, now.machine.kernel
        ));
    }
    if saved.quick != now.quick {
        let which = if saved.quick { "the saved run" } else { "this run" };
        notes.push(format!("{which} was a quick one, with few turns"));
    }
    for (peer, version) in &now.peers {
        if let Some(before) = saved.peers.get(peer).filter(|before| *before != version) {
            notes.push(format!("{peer} was {before}, and is {version} now"));
        }
    }
    let drift = drift(saved, now);
    if let Some(drift) = drift.filter(|drift| (drift - 1.0).abs() > 0.05) {
        notes.push(format!(
            "the peers took {drift:.2} times as long as in the saved run: so may everything on this machine"
        ));
    }
    notes
}

/// The median of what became of the peers' times; pinyard has no part in them.
fn drift(saved: &Document, now: &Document) -> Option<f64> {
    let mut ratios = Vec::new();
    for row in now.rows.iter().filter(|row| !row.unit.is_counted()) {
        let Some(before) = saved.rows.iter().find(|before| before.is_same_case(row)) else { continue };
        for Subject { name, summary } in row.of.iter().filter(|subject| !is_ours(&subject.name)) {
            let before = before.summary(name).filter(|before| before.median > 0.0);
            ratios.extend(before.map(|before| summary.median / before.median));
        }
    }
    Summary::of(ratios).map(|ratios| ratios.median)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::document::tests::hits;
    use crate::bench::row::Unit;

    fn changes(saved: f64, now: f64) -> Vec<Change> {
        Comparison::of(&hits(saved), &hits(now), NOISE).rows.iter().map(|row| row.change).collect()
    }

    #[test]
    fn a_run_slower_than_noise_is_reported_and_so_is_a_faster_one() {
        assert_eq!(changes(30.0, 36.0), [Change::Slower; 3]);
        assert_eq!(changes(36.0, 30.0), [Change::Faster; 3]);
    }

    #[test]
    fn noise_is_not_reported() {
        assert_eq!(changes(30.0, 30.0), [Change::Same; 3]);
        // 5 %: the samples are apart, but two runs differ by so much.
        assert_eq!(changes(30.0, 31.5), [Change::Same; 3]);
        // 20 %, but the samples of one run scatter by more than that.
        let (saved, mut now) = (hits(30.0), hits(36.0));
        now.rows.iter_mut().for_each(|row| row.of[0].summary.p25 = 25.0);
        assert_eq!(Comparison::of(&saved, &now, NOISE).count(Change::Slower), 0);
    }

    #[test]
    fn noise_can_be_said_and_counted_figures_have_hardly_any() {
        assert_eq!(Comparison::of(&hits(30.0), &hits(36.0), 0.5).count(Change::Slower), 0);
        let counted = |count| {
            let mut document = hits(1.0);
            document.rows.truncate(1);
            document.rows[0].unit = Unit::Instructions;
            document.rows[0].of[0].summary = Summary::counted(count);
            document
        };
        let of = |now| Comparison::of(&counted(263.0), &counted(now), NOISE).rows[0].change;
        assert_eq!(
            [of(263.0), of(264.0), of(270.0), of(250.0)],
            [Change::Same, Change::Same, Change::Slower, Change::Faster]
        );
    }

    #[test]
    fn what_stands_on_one_side_only_is_counted_and_machines_are_told_apart() {
        let (mut saved, now) = (hits(30.0), hits(30.0));
        saved.rows.remove(0);
        saved.machine.cpu = "another".into();
        saved.quick = true;
        saved.peers.insert("UCX".into(), "1.12.0".into());
        let comparison = Comparison::of(&saved, &now, NOISE);
        assert_eq!((comparison.rows.len(), comparison.new), (2, 1));
        let notes = comparison.notes.join("\n");
        assert!(notes.contains("another machine: another") && notes.contains("quick"), "{notes}");
        assert!(
            notes.contains("UCX was 1.12.0, and is 1.13.1 now") && !notes.contains("times as long"),
            "{notes}"
        );
    }

    #[test]
    fn a_machine_that_slowed_down_shows_in_the_peers() {
        let (saved, mut now) = (hits(30.0), hits(36.0));
        now.rows.iter_mut().for_each(|row| row.of[1].summary.median *= 1.2);
        let notes = Comparison::of(&saved, &now, NOISE).notes.join("\n");
        assert!(notes.contains("peers took 1.20 times as long"), "{notes}");
    }
}
