//! How fast this machine's processors are now: a second of the processor's is worth less where its
//! core is shared, or where it is older. A fixed piece of work, timed before each step, tells.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

/// Processor time of the piece of work in this thread.
pub(crate) fn sample() -> Duration {
    let began = own_time();
    black_box(work(black_box(20_000)));
    own_time().saturating_sub(began)
}

/// How many of the reference's seconds a second here is worth: at most one, so that a fast machine's
/// budget is the list's. One where there is no sample, or no reference.
pub(crate) fn worth(samples: &[Duration], reference_ms: Option<f64>) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    match (sorted.get(sorted.len() / 2), reference_ms) {
        (Some(median), Some(reference)) if !median.is_zero() => {
            (reference / (median.as_secs_f64() * 1000.0)).min(1.0)
        }
        _ => 1.0,
    }
}

/// As a compiler spends its time: small allocations, trees, text, and memory out of order.
fn work(turns: u64) -> usize {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut words: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for turn in 0..turns {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        words.entry(format!("{:x}", seed % 5000)).or_default().push(turn);
    }
    words.iter().map(|(word, turns)| word.len() * turns.len()).sum()
}

/// Processor time of the calling thread (clock_gettime(2)).
fn own_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec that the kernel may write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_machine_has_more_of_its_own_seconds() {
        let ms = |ms: u64| Duration::from_millis(ms);
        assert_eq!(worth(&[ms(20), ms(10), ms(90)], Some(10.0)), 0.5);
        assert_eq!(worth(&[ms(5)], Some(10.0)), 1.0, "a fast one has no fewer");
        assert_eq!(worth(&[], Some(10.0)), 1.0);
        assert_eq!(worth(&[ms(20)], None), 1.0);
    }

    #[test]
    fn the_work_is_the_same_each_time_and_takes_time() {
        assert_eq!(work(20_000), work(20_000));
        assert!(!sample().is_zero());
    }
}
