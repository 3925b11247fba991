//! What one way took, and how it is told.

use mpi::traits::Communicator;
use std::error::Error;
use std::time::{Duration, Instant};

pub(crate) struct Row {
    pub(crate) name: String,
    first: Duration,
    pub(crate) median: Duration,
    p25: Duration,
    p75: Duration,
    p99: Duration,
    /// How many there were after the first.
    samples: usize,
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

impl Row {
    /// Of the first time, and of others, at least one.
    pub(crate) fn new(name: String, first: Duration, mut times: Vec<Duration>) -> Row {
        times.sort_unstable();
        let at = |share: usize| times[(times.len() * share / 100).min(times.len() - 1)];
        Row { name, first, median: at(50), p25: at(25), p75: at(75), p99: at(99), samples: times.len() }
    }

    /// As JSON, with `more` members at its end.
    pub(crate) fn json(&self, operation: &str, ranks: i32, bytes: usize, more: &str) -> String {
        let Row { name, first, median, p25, p75, p99, samples } = self;
        format!(
            "{{\"operation\": \"{operation}\", \"path\": \"{name}\", \"ranks\": {ranks}, \"bytes\": {bytes}, \"first_us\": {:.1}, \"median_us\": {:.2}, \"p25_us\": {:.2}, \"p75_us\": {:.2}, \"p99_us\": {:.2}, \"samples\": {samples}{more}}}",
            micros(*first),
            micros(*median),
            micros(*p25),
            micros(*p75),
            micros(*p99)
        )
    }

    /// Median and bandwidth, for a table.
    pub(crate) fn cells(&self, bytes: usize) -> String {
        let rate = bytes as f64 / self.median.as_secs_f64() / 1e9;
        format!("{:>10.1} us {rate:>6.2} GB/s", micros(self.median))
    }
}

/// The slowest rank's time.
pub(crate) fn timed(
    world: &impl Communicator,
    once: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<Duration, Box<dyn Error>> {
    use mpi::collective::SystemOperation;
    use mpi::traits::CommunicatorCollectives;
    world.barrier();
    let began = Instant::now();
    once()?;
    let (mine, mut all) = (began.elapsed().as_nanos() as u64, 0u64);
    world.all_reduce_into(&mine, &mut all, SystemOperation::max());
    Ok(Duration::from_nanos(all))
}
