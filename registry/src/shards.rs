//! Which counter a thread counts its references on.
//!
//! Every thread has a shard of its own while there are enough, so that counting
//! is a plain addition that no other thread's line bounces with. Threads beyond
//! that, threads that are ending, and processes without membarrier(2) share the
//! last shard and pay for an atomic addition.

use crate::membarrier;
use pinyard_hooks::at_thread_end;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::*, fence};

/// Shards of the process.
pub(crate) const SHARDS: usize = 64;
/// The shard that threads share.
pub(crate) const SHARED: u32 = SHARDS as u32 - 1;

/// Bits of the shards that a running thread has to itself.
static CLAIMED: AtomicU64 = AtomicU64::new(0);
/// Bits of the shards that any thread has ever counted on.
static EVER: AtomicU64 = AtomicU64::new(1 << SHARED);

const UNSET: u32 = u32::MAX;

thread_local! {
    static SHARD: Cell<u32> = const { Cell::new(UNSET) };
}

/// The thread ends.
fn give_back() {
    let shard = SHARD.replace(SHARED);
    if shard < SHARED {
        // Release: pairs with the Acquire of the thread that claims the shard next or
        // finds it unclaimed; it sees the counts.
        CLAIMED.fetch_and(!(1 << shard), Release);
    }
}

/// The calling thread's shard.
#[inline]
pub(crate) fn mine() -> u32 {
    match SHARD.get() {
        UNSET => claim(),
        shard => shard,
    }
}

#[cold]
fn claim() -> u32 {
    let shard = claim_own().unwrap_or(SHARED);
    SHARD.set(shard);
    shard
}

fn claim_own() -> Option<u32> {
    // Otherwise the thread could not give the shard back.
    if !membarrier::prepare() || !at_thread_end(give_back) {
        return None;
    }
    let lowest_free = |claimed: u64| {
        let shard = claimed.trailing_ones();
        (shard < SHARED).then_some(claimed | 1 << shard)
    };
    let before = CLAIMED.fetch_update(SeqCst, Acquire, lowest_free).ok()?;
    let shard = before.trailing_ones();
    EVER.fetch_or(1 << shard, SeqCst);
    // Before the first count, in the order of fences: a retirer that did not see
    // the claim has set its region's state before we look at it.
    fence(SeqCst);
    Some(shard)
}

/// The shards on which there may be counts.
pub(crate) fn ever_used() -> impl Iterator<Item = u32> {
    let mut bits = EVER.load(Acquire);
    std::iter::from_fn(move || {
        let shard = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (shard < u64::BITS).then_some(shard)
    })
}

/// Whether no other thread has a shard of its own now.
pub(crate) fn is_alone() -> bool {
    let own = match SHARD.get() {
        UNSET => 0,
        shard => 1 << shard,
    };
    // Acquire: the counts of a thread that has ended are visible. SeqCst: see
    // `order_all_counts`.
    CLAIMED.load(SeqCst) & !own == 0
}

/// Orders retirements (SeqCst swaps of a state) before it in every thread that has a
/// shard of its own. `false`: the kernel refused, and nothing was ordered.
///
/// A thread whose claim `is_alone` does not see claims later in the total order than
/// the swaps, and looks at the state again (SeqCst) after its claim: it sees them.
#[must_use]
pub(crate) fn order_all_counts() -> bool {
    is_alone() || membarrier::heavy()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_its_own_shard_and_gives_it_back() {
        // As a registry's thread has.
        assert!(pinyard_hooks::make_key());
        let here = mine();
        assert_eq!(mine(), here);
        let there = std::thread::spawn(mine).join().unwrap();
        if here == SHARED {
            eprintln!("skipped: membarrier is not served");
            return;
        }
        assert_ne!(here, there);
        assert_ne!(CLAIMED.load(SeqCst) & 1 << here, 0);
        assert!(ever_used().any(|shard| shard == there) && ever_used().any(|shard| shard == SHARED));
    }

    #[test]
    fn more_threads_than_shards_share_the_last() {
        assert!(pinyard_hooks::make_key());
        let gate = std::sync::Barrier::new(SHARDS + 8);
        let shards: Vec<u32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..SHARDS + 8)
                .map(|_| {
                    scope.spawn(|| {
                        let shard = mine();
                        gate.wait();
                        shard
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut own: Vec<u32> = shards.iter().copied().filter(|&shard| shard != SHARED).collect();
        let count = own.len();
        own.sort_unstable();
        own.dedup();
        assert_eq!(own.len(), count, "two threads at a time had one shard");
        assert!(count < SHARDS);
    }
}
