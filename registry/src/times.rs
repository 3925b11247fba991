//! How long calls took, in buckets of powers of two.

use std::time::Duration;

/// What the writer records, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    /// By the number of significant bits.
    counts: [u64; 65],
    total: u64,
}

impl Default for Ticks {
    fn default() -> Self {
        Ticks { counts: [0; 65], total: 0 }
    }
}

impl Ticks {
    pub(crate) fn add(&mut self, ticks: u64) {
        self.counts[(u64::BITS - ticks.leading_zeros()) as usize] += 1;
        self.total = self.total.wrapping_add(ticks);
    }

    /// `tick`: nanoseconds of a tick.
    pub(crate) fn in_time(&self, tick: f64) -> Times {
        Times { counts: self.counts, total: Duration::from_nanos((self.total as f64 * tick) as u64), tick }
    }
}

/// The times that a backend's calls took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    counts: [u64; 65],
    total: Duration,
    tick: f64,
}

impl Default for Times {
    fn default() -> Self {
        Ticks::default().in_time(1.0)
    }
}

impl Times {
    /// Calls, those that failed included.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Time spent in them, by all threads together.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// The buckets that are not empty, shortest first: calls that took less than
    /// the duration, and at least half of it.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let upper = |bits: usize| Duration::from_nanos(((1u128 << bits) as f64 * self.tick) as u64);
        let used = self.counts.iter().enumerate().filter(|&(_, &count)| count != 0);
        used.map(move |(bits, &count)| (upper(bits), count))
    }

    /// A duration that `quantile` (0 to 1) of the calls did not reach, at most
    /// twice what they took. Zero where there was none.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let wanted = (quantile.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64;
        let mut seen = 0;
        let reached = self.buckets().find(|&(_, count)| {
            seen += count;
            seen >= wanted
        });
        reached.map_or(Duration::ZERO, |(upper, _)| upper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds_of_their_bucket() {
        let mut ticks = Ticks::default();
        for value in [0, 1, 100, 100, 100, 1000] {
            ticks.add(value);
        }
        let times = ticks.in_time(2.0);
        assert_eq!((times.count(), times.total()), (6, Duration::from_nanos(2602)));
        assert_eq!(times.quantile(0.5), Duration::from_nanos(256));
        assert_eq!(times.quantile(1.0), Duration::from_nanos(2048));
        assert_eq!(times.buckets().map(|(_, count)| count).collect::<Vec<_>>(), [1, 1, 3, 1]);
        assert_eq!(Times::default().quantile(0.9), Duration::ZERO);
        ticks.add(u64::MAX);
        assert_eq!(ticks.in_time(1.0).count(), 7);
    }
}
