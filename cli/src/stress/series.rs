//! The ranks' samples as one series: sums over ranks at common times.

use crate::stress::record::{Rank, SAMPLE_SECONDS, Sample, Times};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// All ranks at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since the ranks began together.
    pub at: f64,
    /// Ranks that have a sample here.
    pub ranks: u32,
    /// Steps per second of the slowest rank.
    pub steps: f64,
    /// Bytes checked per second, by all ranks.
    pub bytes: f64,
    /// Hits per second, of all.
    pub hits: f64,
    /// Misses per second, of all.
    pub misses: f64,
    /// Invalidations per second, of all.
    pub invalidations: f64,
    /// Bytes pinned, by all.
    pub pinned: u64,
    /// Of the median registration, in the middle rank that registered; microseconds.
    pub register_p50_us: f64,
    /// Of the slow ones, in the slowest rank; microseconds.
    pub register_p99_us: f64,
}

/// One point per sampling period in which any rank left a sample.
pub fn of(ranks: &[Rank]) -> Vec<Point> {
    let mut slots: BTreeMap<u64, Vec<Sample>> = BTreeMap::new();
    for rank in ranks {
        let mut own: BTreeMap<u64, Sample> = BTreeMap::new();
        for sample in &rank.samples {
            let slot = (sample.at / SAMPLE_SECONDS).round() as u64;
            own.entry(slot).and_modify(|earlier| *earlier = both(earlier, sample)).or_insert(*sample);
        }
        own.into_iter().for_each(|(slot, sample)| slots.entry(slot).or_default().push(sample));
    }
    slots.into_iter().map(|(slot, here)| point(slot as f64 * SAMPLE_SECONDS, &here)).collect()
}

/// Two samples of one rank in one period, as the last one is with the one before it.
fn both(earlier: &Sample, later: &Sample) -> Sample {
    let (a, b) = (earlier.registering, later.registering);
    Sample {
        at: later.at,
        seconds: earlier.seconds + later.seconds,
        steps: earlier.steps + later.steps,
        bytes: earlier.bytes + later.bytes,
        hits: earlier.hits + later.hits,
        misses: earlier.misses + later.misses,
        invalidations: earlier.invalidations + later.invalidations,
        pinned: later.pinned,
        registering: Times {
            count: a.count + b.count,
            p50_us: if a.count > b.count { a.p50_us } else { b.p50_us },
            p99_us: a.p99_us.max(b.p99_us),
        },
    }
}

fn point(at: f64, here: &[Sample]) -> Point {
    let rate = |sample: &Sample, count: u64| count as f64 / sample.seconds.max(1e-3);
    let sum = |count: fn(&Sample) -> u64| here.iter().map(|sample| rate(sample, count(sample))).sum();
    let registered = || here.iter().map(|sample| sample.registering).filter(|times| times.count > 0);
    let mut medians: Vec<f64> = registered().map(|times| times.p50_us).collect();
    medians.sort_by(f64::total_cmp);
    Point {
        at,
        ranks: here.len() as u32,
        steps: here.iter().map(|sample| rate(sample, sample.steps)).fold(f64::INFINITY, f64::min),
        bytes: sum(|sample| sample.bytes),
        hits: sum(|sample| sample.hits),
        misses: sum(|sample| sample.misses),
        invalidations: sum(|sample| sample.invalidations),
        pinned: here.iter().map(|sample| sample.pinned).sum(),
        register_p50_us: medians.get(medians.len() / 2).copied().unwrap_or(0.0),
        register_p99_us: registered().map(|times| times.p99_us).fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_summed_at_common_times() {
        let sample = |at, steps, p50_us| Sample {
            at,
            seconds: 0.5,
            steps,
            bytes: 10,
            pinned: 100,
            registering: Times { count: 1, p50_us, p99_us: 2.0 * p50_us },
            ..Sample::default()
        };
        let rank = |samples| Rank { samples, ..Rank::default() };
        let ranks =
            [rank(vec![sample(0.5, 10, 1.0), sample(1.5, 10, 1.0)]), rank(vec![sample(0.52, 8, 3.0)])];
        let points = of(&ranks);
        assert_eq!(
            points.iter().map(|point| (point.at, point.ranks)).collect::<Vec<_>>(),
            [(0.5, 2), (1.5, 1)]
        );
        let first = points[0];
        assert_eq!((first.steps, first.bytes, first.pinned), (16.0, 40.0, 200));
        assert_eq!((first.register_p50_us, first.register_p99_us), (3.0, 6.0));
        assert_eq!(of(&[]), []);
        let twice = [rank(vec![sample(0.5, 10, 1.0), sample(0.6, 10, 1.0)])];
        assert_eq!((of(&twice)[0].pinned, of(&twice)[0].steps, of(&twice)[0].ranks), (100, 20.0, 1));
    }
}
