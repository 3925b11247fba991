//! The processor's counter, for operations of a few nanoseconds.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

/// The counter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads the counter.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// What a tick is.
pub(crate) struct Clock {
    nanoseconds: f64,
}

impl Clock {
    /// Compares the counter with the system's clock.
    pub(crate) fn calibrated() -> Clock {
        let (began, first) = (Instant::now(), ticks());
        thread::sleep(Duration::from_millis(50));
        Clock { nanoseconds: began.elapsed().as_nanos() as f64 / (ticks() - first).max(1) as f64 }
    }

    /// Of ticks between two readings.
    pub(crate) fn nanoseconds(&self, ticks: f64) -> f64 {
        ticks * self.nanoseconds
    }
}
