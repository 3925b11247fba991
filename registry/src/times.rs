//! How long calls took, in buckets of powers of two.
//!
//! To read the clock twice takes as long as a short call does: of calls as short as
//! that one in 16 is timed, and the others count as that one did.

use std::time::Duration;

/// A microsecond or less, in ticks: below it a call is short.
const SHORT: u64 = 1 << 10;
/// Of this many short calls one is timed.
const SAMPLED: u32 = 16;

/// What the writer records, in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    /// By the number of significant bits.
    counts: [u64; 65],
    total: u64,
    /// What the call took that was timed last.
    last: u64,
    /// Calls that need not be timed.
    spared: u32,
}

impl Default for Ticks {
    fn default() -> Self {
        Ticks { counts: [0; 65], total: 0, last: SHORT, spared: 0 }
    }
}

impl Ticks {
    /// Whether the call that comes is to be timed.
    #[inline]
    pub(crate) fn times_next(&mut self) -> bool {
        if self.last < SHORT && self.spared > 0 {
            self.spared -= 1;
            return false;
        }
        self.spared = SAMPLED - 1;
        true
    }

    /// A call is over: it took so long, or was not timed.
    #[inline]
    pub(crate) fn add(&mut self, ticks: Option<u64>) {
        if let Some(ticks) = ticks {
            self.last = ticks;
        }
        self.counts[(u64::BITS - self.last.leading_zeros()) as usize] += 1;
        self.total = self.total.wrapping_add(self.last);
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
            ticks.add(Some(value));
        }
        let times = ticks.in_time(2.0);
        assert_eq!((times.count(), times.total()), (6, Duration::from_nanos(2602)));
        assert_eq!(times.quantile(0.5), Duration::from_nanos(256));
        assert_eq!(times.quantile(1.0), Duration::from_nanos(2048));
        assert_eq!(times.buckets().map(|(_, count)| count).collect::<Vec<_>>(), [1, 1, 3, 1]);
        assert_eq!(Times::default().quantile(0.9), Duration::ZERO);
        ticks.add(Some(u64::MAX));
        assert_eq!(ticks.in_time(1.0).count(), 7);
    }

    #[test]
    fn of_short_calls_some_are_timed_and_all_are_counted() {
        let mut ticks = Ticks::default();
        let mut timed = 0;
        let mut call = |ticks: &mut Ticks, took| {
            let is_timed = ticks.times_next();
            ticks.add(is_timed.then_some(took));
            timed += is_timed as u64;
            timed
        };
        (0..160).for_each(|_| _ = call(&mut ticks, 7));
        assert_eq!((call(&mut ticks, 7), ticks.in_time(1.0).count()), (11, 161));
        // Once a long one has been met, each is timed.
        (0..15).for_each(|_| _ = call(&mut ticks, SHORT));
        assert_eq!(call(&mut ticks, SHORT), 12);
        assert_eq!((0..100).map(|_| call(&mut ticks, SHORT)).last(), Some(112));
        assert_eq!(ticks.in_time(1.0).total(), Duration::from_nanos(176 * 7 + 101 * SHORT));
    }
}
