//! An asymmetric pair of fences: nothing on the path that runs always, a system
//! call on the one that runs hardly ever (membarrier(2)).
//!
//! A thread that does `store a; light; load b` and one that does `store b; heavy;
//! load a` cannot both read the old value: the kernel runs a full barrier on
//! every running thread of the process before `heavy` returns.
#![allow(unsafe_code)]

use pinyard_hooks::sys;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst, compiler_fence, fence};

const PRIVATE_EXPEDITED: usize = 1 << 3;
const REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;

/// Whether the kernel serves membarrier: the same answer for whoever asks, so no
/// thread waits for another one's question (which a forked child would do for ever).
static SERVED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// Asks the kernel, before the first use of the others. Whether it serves
/// membarrier: if not, `light` is a full fence.
pub fn prepare() -> bool {
    if SERVED.load(Relaxed) == UNKNOWN {
        SERVED.store(if call(REGISTER_PRIVATE_EXPEDITED) { YES } else { NO }, Relaxed);
    }
    is_served()
}

#[inline(always)]
fn is_served() -> bool {
    SERVED.load(Relaxed) == YES
}

/// The side that runs always.
#[inline(always)]
pub fn light() {
    if is_served() { compiler_fence(SeqCst) } else { fence(SeqCst) }
}

/// The side that runs hardly ever. `false`: the kernel, which granted it at the
/// start, refuses it now (a filter on system calls); nothing was ordered.
#[must_use]
pub fn heavy() -> bool {
    fence(SeqCst);
    !is_served()
        || call(PRIVATE_EXPEDITED)
        // A child of fork may have to register anew.
        || (call(REGISTER_PRIVATE_EXPEDITED) && call(PRIVATE_EXPEDITED))
}

fn call(command: usize) -> bool {
    // SAFETY: membarrier reads and writes no memory of ours.
    unsafe { sys::syscall6(libc::SYS_membarrier as usize, [command, 0, 0, 0, 0, 0]) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without it every allocation and every free would pay for a full fence.
    #[test]
    fn where_the_kernel_serves_it_the_light_side_costs_nothing() {
        const QUERY: usize = 0;
        // SAFETY: as in `call`.
        let served = unsafe { sys::syscall6(libc::SYS_membarrier as usize, [QUERY, 0, 0, 0, 0, 0]) };
        let expected = served > 0 && served as usize & PRIVATE_EXPEDITED != 0;
        if !expected {
            eprintln!("skipped: the kernel does not serve membarrier (query: {served})");
        }
        assert_eq!(prepare(), expected);
        assert!(heavy());
    }
}
