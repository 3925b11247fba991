//! Locks of a node's ranks, one for each, which they take and give back without each other's
//! help: words in memory that all of them share.
//!
//! A rank that wants one alone is counted first, and as long as one waits nobody shares it anew:
//! those that come and go do not keep it away for good.

use super::shared::Shared;
use crate::operations::Lock;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Held by one rank alone; otherwise the word counts those that share it.
const ALONE: u64 = u64::MAX;

/// By place on the node.
pub(crate) struct Locks {
    memory: Arc<Shared>,
}

impl Locks {
    /// In memory that is for nothing else.
    pub(crate) fn new(memory: Arc<Shared>) -> Locks {
        Locks { memory }
    }

    /// Takes the lock of the rank at `place`, with a `turn` between one try and the next.
    pub(crate) fn take(&self, place: usize, lock: Lock, mut turn: impl FnMut()) {
        let [holders, waiting] = self.memory.lock(place);
        // Acquire, of all that take: what the holder before wrote is there (`give_back`).
        match lock {
            Lock::Exclusive => {
                waiting.fetch_add(1, Relaxed);
                while holders.compare_exchange_weak(0, ALONE, Acquire, Relaxed).is_err() {
                    turn();
                }
                waiting.fetch_sub(1, Relaxed);
            }
            Lock::Shared => {
                let one_more = |held: u64| (held != ALONE).then(|| held + 1);
                while waiting.load(Relaxed) > 0 || holders.fetch_update(Acquire, Relaxed, one_more).is_err() {
                    turn();
                }
            }
        }
    }

    /// Gives it back as it was taken.
    pub(crate) fn give_back(&self, place: usize, lock: Lock) {
        let [holders, _] = self.memory.lock(place);
        match lock {
            // Release: pairs with whoever takes it next.
            Lock::Exclusive => holders.store(0, Release),
            // And with whoever takes it after several have shared it.
            Lock::Shared => {
                holders.fetch_sub(1, AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::Shape;
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::AtomicU64;

    const SHAPE: Shape = Shape { ranks: 4, slots: 0, slot_bytes: 0 };

    #[test]
    fn one_alone_or_several_that_share() {
        let views = Shared::of_one_process(SHAPE);
        // Written by two steps, so that anybody in between would see it.
        let (low, high) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for (place, memory) in views.into_iter().enumerate() {
                let (low, high) = (&low, &high);
                scope.spawn(move || {
                    let locks = Locks::new(memory);
                    for round in 0..2000 {
                        let lock = if (round + place) % 3 == 0 { Lock::Exclusive } else { Lock::Shared };
                        locks.take(2, lock, std::thread::yield_now);
                        let before = low.load(Relaxed);
                        assert_eq!(before, high.load(Relaxed));
                        if lock == Lock::Exclusive {
                            low.store(before + 1, Relaxed);
                            std::thread::yield_now();
                            high.store(before + 1, Relaxed);
                        }
                        locks.give_back(2, lock);
                    }
                });
            }
        });
        let exclusive = (0..4).map(|place| (0..2000).filter(|round| (round + place) % 3 == 0).count());
        assert_eq!(low.into_inner(), exclusive.sum::<usize>() as u64);
    }

    #[test]
    fn who_waits_for_it_alone_comes_before_those_that_would_share_it_later() {
        let mut views = Shared::of_one_process(SHAPE).into_iter().map(Locks::new);
        let (first, second, third) = (views.next().unwrap(), views.next().unwrap(), views.next().unwrap());
        first.take(0, Lock::Shared, || unreachable!("nobody has it"));
        // Another rank's lock is another.
        first.take(1, Lock::Exclusive, || unreachable!("nobody has it"));
        let tries = Cell::new(0);
        second.take(0, Lock::Exclusive, || {
            tries.set(tries.get() + 1);
            if tries.get() == 3 {
                // It is refused while the second waits, and the second gets it.
                let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    third.take(0, Lock::Shared, || panic!("refused"));
                }));
                assert!(refused.is_err());
                first.give_back(0, Lock::Shared);
            }
        });
        assert_eq!(tries.get(), 3);
        second.give_back(0, Lock::Exclusive);
        third.take(0, Lock::Shared, || unreachable!("nobody waits"));
    }
}
