//! Time for figures, not for decisions: a few nanoseconds a reading.

use once_cell::race::OnceBox;
use std::time::{Duration, Instant};

/// The processor's counter, or nanoseconds where there is none that a program
/// can read.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn ticks() -> u64 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 processor has the instruction; it touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        start().0.elapsed().as_nanos() as u64
    }
}

fn start() -> &'static (Instant, u64) {
    static START: OnceBox<(Instant, u64)> = OnceBox::new();
    let first = || if cfg!(all(target_arch = "x86_64", not(miri))) { ticks() } else { 0 };
    START.get_or_init(|| Box::new((Instant::now(), first())))
}

/// Sets the beginning against which ticks are measured. Early, so that `tick`
/// need not wait.
pub(crate) fn prepare() {
    start();
}

/// Nanoseconds of a tick, from all the time since `prepare`; at least a
/// millisecond, which it waits for.
pub(crate) fn tick() -> f64 {
    let (began, first) = start();
    while began.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
    began.elapsed().as_nanos() as f64 / ticks().wrapping_sub(*first).max(1) as f64
}
