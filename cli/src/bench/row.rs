//! A row: one case of a benchmark, with a summary of the samples for each subject.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The subject that is judged; the others are its peers.
pub const OURS: &str = "pinyard";

/// What a row's figures are in. Less is better in all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds, of one operation.
    Nanoseconds,
    /// Bytes.
    Bytes,
    /// Registrations.
    Registrations,
    /// Instructions, of one operation.
    Instructions,
    /// Allocations that failed.
    Failures,
    /// Calls of the driver, of 1,000 operations.
    Calls,
    /// A quotient of two sizes.
    Times,
}

impl Unit {
    /// Whether the figure is counted, and so the same in every run.
    pub fn is_counted(self) -> bool {
        matches!(self, Unit::Registrations | Unit::Instructions | Unit::Failures | Unit::Calls)
    }
}

/// What varies from row to row of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Regions in the cache.
    Regions,
    /// Invalidations that nobody has looked at yet.
    Pending,
    /// Bytes of a block, a region or a message.
    Bytes,
    /// Streams.
    Streams,
    /// Free blocks between used ones.
    Holes,
    /// Threads.
    Threads,
}

impl Axis {
    /// Its name, in the plural.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Regions => "regions",
            Axis::Pending => "pending invalidations",
            Axis::Bytes => "bytes",
            Axis::Streams => "streams",
            Axis::Holes => "holes",
            Axis::Threads => "threads",
        }
    }
}

/// Where a row lies on its axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// What varies.
    pub axis: Axis,
    /// Its value here.
    pub value: u64,
}

/// One case of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The benchmark's name, as in the catalogue.
    pub benchmark: String,
    /// What is done.
    pub case: String,
    /// Threads, or ranks, that do it at the same time.
    pub threads: usize,
    /// How many, or how large.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at: Option<At>,
    /// Of all figures of the row.
    pub unit: Unit,
    /// Ours first, then the peers.
    pub of: Vec<Subject>,
}

/// What a subject's samples come to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// `pinyard`, or a peer.
    pub name: String,
    /// Its samples.
    #[serde(flatten)]
    pub summary: Summary,
}

/// Quantiles of the samples, in the row's unit. A sample is a turn: the mean over its
/// operations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle one.
    pub median: f64,
    /// A quarter of the samples is less.
    pub p25: f64,
    /// A quarter of the samples is more.
    pub p75: f64,
    /// One in a hundred is more.
    pub p99: f64,
    /// How many there were.
    pub samples: u64,
    /// Turns that do not count, as the scheduler took the processor away.
    pub left_out: u64,
}

impl Summary {
    /// Of samples in any order; `None` where there are none.
    pub fn of(mut samples: Vec<f64>) -> Option<Summary> {
        samples.sort_unstable_by(f64::total_cmp);
        let at = |share: usize| samples.get(((samples.len() - 1) * share + 50) / 100).copied();
        (!samples.is_empty()).then_some(())?;
        // Of an even number the mean of the middle two.
        let middle = [(samples.len() - 1) / 2, samples.len() / 2].map(|at| samples[at]);
        Some(Summary {
            median: middle.iter().sum::<f64>() / 2.0,
            p25: at(25)?,
            p75: at(75)?,
            p99: at(99)?,
            samples: samples.len() as u64,
            left_out: 0,
        })
    }

    /// Of one figure.
    pub fn counted(figure: f64) -> Summary {
        Summary { median: figure, p25: figure, p75: figure, p99: figure, samples: 1, left_out: 0 }
    }

    /// Of a histogram of thousandths of the unit; `None` where it is empty.
    pub fn of_thousandths(samples: &Histogram<u64>, left_out: u64) -> Option<Summary> {
        let at = |quantile| samples.value_at_quantile(quantile) as f64 / 1000.0;
        (!samples.is_empty()).then(|| Summary {
            median: at(0.5),
            p25: at(0.25),
            p75: at(0.75),
            p99: at(0.99),
            samples: samples.len(),
            left_out,
        })
    }
}

impl Row {
    /// A row of one thread in nanoseconds, still without figures.
    pub fn new(benchmark: &str, case: impl Into<String>) -> Row {
        Row {
            benchmark: benchmark.to_owned(),
            case: case.into(),
            threads: 1,
            at: None,
            unit: Unit::Nanoseconds,
            of: Vec::new(),
        }
    }

    /// The same of so many threads.
    pub fn threads(mut self, threads: usize) -> Row {
        self.threads = threads;
        self
    }

    /// The same at a point of an axis.
    pub fn at(mut self, axis: Axis, value: usize) -> Row {
        self.at = Some(At { axis, value: value as u64 });
        self
    }

    /// The same in another unit.
    pub fn unit(mut self, unit: Unit) -> Row {
        self.unit = unit;
        self
    }

    /// Enters a subject; one without a sample stays out.
    pub fn enter(&mut self, name: &str, summary: Option<Summary>) {
        self.of.extend(summary.map(|summary| Subject { name: name.to_owned(), summary }));
    }

    /// A subject's summary.
    pub fn summary(&self, name: &str) -> Option<&Summary> {
        self.of.iter().find(|subject| subject.name == name).map(|subject| &subject.summary)
    }

    /// Our median by that of `peer`; `None` where one is missing or the peer's is 0.
    pub fn ratio(&self, peer: &str) -> Option<f64> {
        let (ours, theirs) = (self.summary(OURS)?, self.summary(peer)?);
        (peer != OURS && theirs.median > 0.0).then(|| ours.median / theirs.median)
    }

    /// Whether both are of the same case, so that their figures compare.
    pub fn is_same_case(&self, other: &Row) -> bool {
        let key = |row: &Row| (row.benchmark.clone(), row.case.clone(), row.threads, row.at, row.unit);
        key(self) == key(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_quantiles_of_its_samples() {
        let summary = Summary::of((0..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!((summary.p25, summary.median, summary.p75, summary.p99), (25.0, 50.0, 75.0, 99.0));
        assert_eq!(Summary::of(vec![]), None);
        assert_eq!(Summary::of(vec![3.0]).unwrap(), Summary::counted(3.0));
        let mut histogram = Histogram::new(3).unwrap();
        assert_eq!(Summary::of_thousandths(&histogram, 2), None);
        (0..=100).for_each(|at| histogram.record(at * 1000).unwrap());
        let of = Summary::of_thousandths(&histogram, 2).unwrap();
        assert!((of.median - 50.0).abs() < 0.1 && of.left_out == 2 && of.samples == 101, "{of:?}");
    }

    #[test]
    fn a_ratio_needs_both_and_a_peer_above_zero() {
        let mut row = Row::new("cache.hit", "a hit");
        row.enter(OURS, Some(Summary::counted(30.0)));
        assert_eq!(row.ratio("UCX"), None);
        row.enter("UCX", Some(Summary::counted(60.0)));
        row.enter("nothing", Some(Summary::counted(0.0)));
        assert_eq!((row.ratio("UCX"), row.ratio("nothing"), row.ratio(OURS)), (Some(0.5), None, None));
    }
}
