//! A row of the table: the ranks' reports added up.

use super::job::{Ended, How};
use super::rows::{Kind, Spec};
use super::{Refusal, tenths};
use pinyard_cli::demo::{Counts, Outcome, RankReport};
use serde::Serialize;

/// How a row ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    /// Every rank went through its rounds.
    Completed,
    /// The watchdog ended at least one rank, and nothing else went wrong.
    Hung,
    /// Something else.
    Failed(String),
}

/// A row's numbers: sums over the ranks, except for times.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) name: &'static str,
    pub(crate) allocator: &'static str,
    pub(crate) end: End,
    /// The time limit ended the rounds.
    pub(crate) cut_short: bool,
    pub(crate) rounds: u64,
    #[serde(flatten)]
    pub(crate) counts: Counts,
    /// `None` if a rank never got through the warm-up.
    pub(crate) registrations_after_warm_up: Option<u64>,
    pub(crate) stale: u64,
    pub(crate) hangs: u64,
    /// The slower rank's median.
    pub(crate) ns_per_hit: Option<f64>,
    /// The slower rank's 99th percentile.
    pub(crate) ns_per_hit_p99: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) reports: Vec<RankReport>,
}

impl Row {
    /// Adds up what is left of a job. A rank that could not start ends the demo.
    pub(crate) fn of(spec: &Spec, ended: Ended) -> Result<Row, Refusal> {
        let reports: Vec<RankReport> = ended.reports.iter().flatten().cloned().collect();
        if let Some(refusal) = refusal(&reports) {
            return Err(refusal);
        }
        if reports.is_empty() && matches!(ended.how, How::ByItself(_)) {
            let why = format!("the row {:?} left no report: {}", spec.name, status(&ended));
            return Err(Refusal::new(why, ""));
        }
        let sum = |of: fn(&RankReport) -> u64| reports.iter().map(of).sum();
        let slowest = |of: fn(&RankReport) -> Option<f64>| {
            reports.iter().filter_map(of).reduce(f64::max).map(|ns| (ns * 10.0).round() / 10.0)
        };
        Ok(Row {
            kind: spec.kind,
            name: spec.name,
            allocator: spec.allocator,
            end: end(&ended),
            cut_short: reports.iter().any(|report| report.cut_short),
            rounds: sum(|report| report.rounds),
            counts: Counts {
                hits: sum(|report| report.counts.hits),
                misses: sum(|report| report.counts.misses),
                invalidations: sum(|report| report.counts.invalidations),
                registrations: sum(|report| report.counts.registrations),
            },
            registrations_after_warm_up: reports
                .iter()
                .map(|report| report.registrations_after_warm_up)
                .sum::<Option<u64>>()
                .filter(|_| !reports.is_empty()),
            stale: sum(|report| report.stale),
            hangs: sum(|report| u64::from(matches!(report.outcome, Outcome::Hung { .. }))),
            ns_per_hit: slowest(|report| report.hit.map(|hit| hit.median_ns)),
            ns_per_hit_p99: slowest(|report| report.hit.map(|hit| hit.p99_ns)),
            seconds: tenths(ended.elapsed),
            reports,
        })
    }
}

/// What a rank found that keeps the demo from running. Its own finding goes
/// before the news that another rank had one.
fn refusal(reports: &[RankReport]) -> Option<Refusal> {
    let refused = reports.iter().filter_map(|report| match &report.outcome {
        Outcome::Refused { why, remedy } => Some(Refusal::new(why, remedy)),
        _ => None,
    });
    refused.max_by_key(|refusal| !refusal.remedy.is_empty())
}

fn end(ended: &Ended) -> End {
    let outcomes = || ended.reports.iter().map(|report| report.as_ref().map(|report| &report.outcome));
    // A rank that failed takes the others with it: its reason goes first.
    for (rank, outcome) in outcomes().enumerate() {
        if let Some(Outcome::Failed { why } | Outcome::Refused { why, .. }) = outcome {
            return End::Failed(format!("rank {rank}: {why}"));
        }
    }
    if let Some(rank) = ended.reports.iter().position(Option::is_none) {
        return End::Failed(format!("rank {rank} left no report: {}", status(ended)));
    }
    let hung = outcomes().any(|outcome| matches!(outcome, Some(Outcome::Hung { .. })));
    match ended.how {
        _ if hung => End::Hung,
        How::ByItself(status) if status.success() => End::Completed,
        _ => End::Failed(status(ended)),
    }
}

/// How mpirun ended, and what it said last.
fn status(ended: &Ended) -> String {
    let how = match ended.how {
        How::ByItself(status) => format!("mpirun ended with {status}"),
        How::Overran(limit) => format!("mpirun was ended after {} s", limit.as_secs()),
        How::Interrupted => "interrupted".to_owned(),
    };
    if ended.last_words.is_empty() {
        how
    } else {
        format!("{how} and said:\n{}", indented(&ended.last_words))
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("      {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::demo::rows;
    use pinyard_cli::demo::{Frame, HitTime};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;
    use std::time::Duration;

    /// A rank's report as a clean run gives it.
    pub(crate) fn report(rank: i32) -> RankReport {
        RankReport {
            rank,
            ranks: 2,
            allocator: "purging".into(),
            cache: "pinyard".into(),
            mpi: "an MPI".into(),
            outcome: Outcome::Completed,
            rounds: 100,
            cut_short: false,
            stale: 0,
            counts: Counts { hits: 3200, misses: 100, invalidations: 99, registrations: 100 },
            registrations_after_warm_up: Some(84),
            hit: Some(HitTime { median_ns: 20.0 + f64::from(rank), p99_ns: 50.0, batch: 32, batches: 100 }),
            hooks: Vec::new(),
        }
    }

    pub(crate) fn hung(rank: i32) -> RankReport {
        let frame =
            |call: &str| Frame { call: call.into(), at: Some("/src/mpi-tests/src/naive.rs:1:1".into()) };
        let stack = [
            "syscall",
            "std::sync::poison::mutex::Mutex<T>::lock",
            "pinyard_mpi_tests::naive::unmapped",
            "madvise",
            "<pinyard_mpi_tests::purging::Purging as core::alloc::global::GlobalAlloc>::alloc",
            "alloc::collections::btree::map::BTreeMap<K,V,A>::insert",
            "pinyard_mpi_tests::naive::NaiveCache::insert",
            "pinyard_mpi_tests::naive::NaiveCache::get",
            "pinyard_mpi_tests::rounds::run",
        ];
        RankReport {
            outcome: Outcome::Hung { round: 0, seconds: 3.0, stack: stack.map(frame).to_vec() },
            rounds: 0,
            counts: Counts { misses: 1, registrations: 1, ..Counts::default() },
            registrations_after_warm_up: None,
            hit: None,
            ..report(rank)
        }
    }

    pub(crate) fn ended(reports: Vec<Option<RankReport>>, code: i32) -> Ended {
        let how = How::ByItself(ExitStatus::from_raw(code << 8));
        Ended { how, reports, last_words: "words".into(), elapsed: Duration::from_millis(1234) }
    }

    /// All rows as a clean run gives them.
    pub(crate) fn clean() -> Vec<Row> {
        rows::ALL
            .iter()
            .map(|spec| {
                let (mut reports, mut code) = ([report(0), report(1)], 0);
                match spec.kind {
                    Kind::NoHooks => reports.iter_mut().for_each(|report| report.stale = 99),
                    Kind::Naive => (reports, code) = ([hung(0), hung(1)], 42),
                    Kind::Pinyard => {}
                    Kind::Pool => {
                        reports.iter_mut().for_each(|report| report.registrations_after_warm_up = Some(0));
                    }
                }
                Row::of(spec, ended(reports.map(Some).to_vec(), code)).unwrap()
            })
            .collect()
    }

    #[test]
    fn ranks_are_added_up() {
        let row = Row::of(&rows::ALL[2], ended(vec![Some(report(0)), Some(report(1))], 0)).unwrap();
        assert_eq!((row.end, row.rounds, row.hangs), (End::Completed, 200, 0));
        assert_eq!((row.counts.hits, row.registrations_after_warm_up), (6400, Some(168)));
        assert_eq!((row.ns_per_hit, row.seconds), (Some(21.0), 1.2));
    }

    #[test]
    fn a_hang_is_not_a_failure_but_a_missing_report_is() {
        let row = Row::of(&rows::ALL[1], ended(vec![Some(hung(0)), Some(hung(1))], 42)).unwrap();
        assert_eq!((row.end, row.hangs, row.registrations_after_warm_up), (End::Hung, 2, None));
        let row = Row::of(&rows::ALL[1], ended(vec![Some(hung(0)), None], 42)).unwrap();
        assert!(matches!(row.end, End::Failed(why) if why.starts_with("rank 1 left no report")));
        let failed = RankReport { outcome: Outcome::Failed { why: "no memory".into() }, ..report(1) };
        let row = Row::of(&rows::ALL[2], ended(vec![None, Some(failed)], 1)).unwrap();
        assert_eq!(row.end, End::Failed("rank 1: no memory".into()), "the cause, not its consequence");
        let row = Row::of(&rows::ALL[2], ended(vec![Some(report(0)), Some(report(1))], 9)).unwrap();
        assert!(
            matches!(row.end, End::Failed(why) if why.contains("exit status: 9") && why.contains("words"))
        );
    }

    #[test]
    fn a_rank_that_could_not_start_ends_the_demo_with_its_own_words() {
        let refused = |why: &str, remedy: &str| {
            let outcome = Outcome::Refused { why: why.into(), remedy: remedy.into() };
            Some(RankReport { outcome, ..report(0) })
        };
        let reports = vec![refused("another rank could not start", ""), refused("io_uring", "sysctl")];
        let refusal = Row::of(&rows::ALL[0], ended(reports, 0)).unwrap_err();
        assert_eq!((refusal.why.as_str(), refusal.remedy.as_str()), ("io_uring", "sysctl"));
        let refusal = Row::of(&rows::ALL[0], ended(vec![None, None], 1)).unwrap_err();
        assert!(refusal.why.contains("left no report") && refusal.why.contains("words"));
    }
}
