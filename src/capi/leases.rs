//! Leases that C holds: a ticket that is good once.
//!
//! ```text
//! give   Local::pop, or a few from the stack that all threads share -> the ticket's word is live
//! take   the word is live, of the ticket's generation -> not any more -> Local::push
//! ```
//!
//! A thread keeps a few free tickets, and each has a cache line of its own, so that as a
//! rule two threads write no line of each other's. No lock, so that a forked child cannot find one taken.
#![allow(unsafe_code)]

use super::status::{Failure, pny_status::*};
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use pinyard_hooks::at_thread_end;

/// Tickets come in chunks, which are never given back.
const CHUNK: usize = 1024;
const CHUNKS: usize = 4096;
/// A thread takes this many at a time, and keeps at most twice as many.
const BATCH: u32 = 32;
/// The number of no ticket: lists end there.
const NONE: u32 = 0;

/// One ticket's place.
#[repr(align(64))]
struct Place {
    /// Generation, and in the lowest bit whether it is live.
    word: AtomicU64,
    /// While it is live: whose registry, and the lease's own number.
    registry: AtomicU64,
    lease: AtomicU32,
    /// While it is free: the next free one.
    next: AtomicU32,
}

static CHUNKS_USED: [AtomicPtr<[Place; CHUNK]>; CHUNKS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS];
/// The first number that was never used.
static FRESH: AtomicU32 = AtomicU32::new(NONE + 1);
/// The top of the stack of free tickets, and a number that changes with it.
static STACK: AtomicU64 = AtomicU64::new(NONE as u64);

/// What a thread keeps.
struct Local {
    top: Cell<u32>,
    count: Cell<u32>,
}

thread_local! {
    static LOCAL: Local = const { Local { top: Cell::new(NONE), count: Cell::new(0) } };
}

/// The thread ends.
fn give_all_back() {
    LOCAL.with(|local| local.give_back(local.count.get()));
}

fn place(number: u32) -> Option<&'static Place> {
    let chunk = CHUNKS_USED.get(number as usize / CHUNK)?.load(Acquire);
    // SAFETY: null, or made by `chunk` and never freed.
    unsafe { chunk.as_ref() }.map(|places| &places[number as usize % CHUNK])
}

/// Makes the chunk of a number if nobody has.
fn chunk(number: u32) -> Option<()> {
    let entry = CHUNKS_USED.get(number as usize / CHUNK)?;
    if entry.load(Acquire).is_null() {
        let new = || Place {
            word: AtomicU64::new(0),
            registry: AtomicU64::new(0),
            lease: AtomicU32::new(0),
            next: AtomicU32::new(NONE),
        };
        let made = Box::into_raw(Box::new(core::array::from_fn(|_| new())));
        if entry.compare_exchange(core::ptr::null_mut(), made, AcqRel, Acquire).is_err() {
            // SAFETY: made just now, and nobody has seen it.
            drop(unsafe { Box::from_raw(made) });
        }
    }
    Some(())
}

/// Pushes a chain of free tickets from `first` to `last`.
fn push_all(first: u32, last: &Place) {
    let mut top = STACK.load(Relaxed);
    loop {
        last.next.store(top as u32, Relaxed);
        let with = (top >> 32).wrapping_add(1) << 32 | u64::from(first);
        // Release: pairs with `pop_one`, which reads `next`.
        match STACK.compare_exchange_weak(top, with, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => top = now,
        }
    }
}

fn pop_one() -> Option<u32> {
    let mut top = STACK.load(Acquire);
    loop {
        // What is read of a ticket that somebody else pops meanwhile is not used: the
        // number beside the top has changed then.
        let next = place(top as u32).filter(|_| top as u32 != NONE)?.next.load(Relaxed);
        let with = (top >> 32).wrapping_add(1) << 32 | u64::from(next);
        match STACK.compare_exchange_weak(top, with, Acquire, Acquire) {
            Ok(_) => return Some(top as u32),
            Err(now) => top = now,
        }
    }
}

/// One that was never used.
fn fresh() -> Option<u32> {
    let more = |number: u32| (number as usize + 1 < CHUNK * CHUNKS).then_some(number + 1);
    let number = FRESH.fetch_update(Relaxed, Relaxed, more).ok()?;
    chunk(number)?;
    Some(number)
}

impl Local {
    #[inline]
    fn pop(&self) -> Option<u32> {
        if self.count.get() == 0 {
            return self.refill();
        }
        self.pop_own()
    }

    #[inline]
    fn pop_own(&self) -> Option<u32> {
        let number = self.top.get();
        let place = place(number).filter(|_| number != NONE)?;
        self.top.set(place.next.load(Relaxed));
        self.count.set(self.count.get() - 1);
        Some(number)
    }

    #[cold]
    #[inline(never)]
    fn refill(&self) -> Option<u32> {
        // Otherwise what it keeps would be lost with it.
        if !at_thread_end(give_all_back) {
            return pop_one().or_else(fresh);
        }
        for _ in 0..BATCH {
            match pop_one().or_else(fresh) {
                Some(number) => self.push(number),
                None => break,
            }
        }
        self.pop_own()
    }

    /// Its first one.
    #[cold]
    #[inline(never)]
    fn push_first(&self, number: u32) {
        match (at_thread_end(give_all_back), place(number)) {
            (false, Some(place)) => push_all(number, place),
            _ => self.push(number),
        }
    }

    #[inline]
    fn push(&self, number: u32) {
        if let Some(place) = place(number) {
            place.next.store(self.top.get(), Relaxed);
            self.top.set(number);
            self.count.set(self.count.get() + 1);
        }
    }

    /// Gives the topmost `many` to all threads.
    #[cold]
    fn give_back(&self, many: u32) {
        let (first, mut last) = (self.top.get(), None);
        for _ in 0..many {
            last = place(self.top.get());
            self.top.set(last.map_or(NONE, |place| place.next.load(Relaxed)));
            self.count.set(self.count.get() - 1);
        }
        if let Some(last) = last {
            push_all(first, last);
        }
    }
}

/// A lease that a ticket stands for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Deposited {
    pub(super) registry: u64,
    pub(super) lease: u32,
}

/// Takes a lease in and gives a ticket for it, never 0. `None`: there are as many
/// leases as there can be.
#[inline]
pub(super) fn give(Deposited { registry, lease }: Deposited) -> Option<u64> {
    let number = LOCAL.with(Local::pop)?;
    let place = place(number)?;
    let generation = place.word.load(Relaxed) >> 1;
    place.registry.store(registry, Relaxed);
    place.lease.store(lease, Relaxed);
    // Release: pairs with the exchange of `take`.
    place.word.store(generation << 1 | 1, Release);
    Some((generation & u64::from(u32::MAX)) << 32 | u64::from(number))
}

/// Gives the lease of a ticket out, once.
#[inline]
pub(super) fn take(ticket: u64) -> Result<Deposited, Failure> {
    let (number, generation) = (ticket as u32, ticket >> 32);
    let stale = || Failure::new(PNY_ERR_STALE, "the lease was given back before, or never was one");
    let place = place(number).filter(|_| number != NONE).ok_or_else(stale)?;
    let word = place.word.load(Relaxed);
    let free = (word | 1) + 1;
    if word & 1 == 0
        || (word >> 1) & u64::from(u32::MAX) != generation
        // Of two threads that give it back, one does. Acquire: pairs with `give`.
        || place.word.compare_exchange(word, free, AcqRel, Relaxed).is_err()
    {
        return Err(stale());
    }
    let deposited = Deposited { registry: place.registry.load(Relaxed), lease: place.lease.load(Relaxed) };
    LOCAL.with(|local| {
        if local.count.get() == 0 {
            return local.push_first(number);
        }
        local.push(number);
        if local.count.get() > 2 * BATCH {
            local.give_back(BATCH);
        }
    });
    Ok(deposited)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinyard_hooks::make_key;
    use std::collections::HashSet;

    fn lease(number: u32) -> Deposited {
        Deposited { registry: 7, lease: number }
    }

    #[test]
    fn a_ticket_is_good_once() {
        assert!(make_key(), "as a registry has");
        let ticket = give(lease(5)).unwrap();
        assert_ne!(ticket, 0);
        assert_eq!(take(ticket).unwrap(), lease(5));
        assert_eq!(take(ticket).unwrap_err().status, PNY_ERR_STALE);
        let next = give(lease(6)).unwrap();
        assert_eq!(next as u32, ticket as u32, "the place is used again");
        assert_eq!(take(ticket).unwrap_err().status, PNY_ERR_STALE, "and the old ticket is not");
        for wrong in [0, 1 << 32, u64::MAX, u64::from(u32::MAX), next + (1 << 32)] {
            assert_eq!(take(wrong).unwrap_err().status, PNY_ERR_STALE, "{wrong:#x}");
        }
        assert_eq!(take(next).unwrap(), lease(6));
    }

    /// Tickets that some threads take and others give back: none twice, none lost.
    #[test]
    fn tickets_wander_between_threads() {
        assert!(make_key(), "as a registry has");
        const EACH: u32 = 20_000;
        let before = FRESH.load(SeqCst);
        // No channel of the standard library's: ThreadSanitizer does not see what orders it.
        let places = [const { AtomicU64::new(0) }; 100];
        let taken = std::thread::scope(|scope| {
            for thread in 0..3 {
                let mut places = places.iter().cycle();
                scope.spawn(move || {
                    for number in 0..EACH {
                        let ticket = give(lease(thread * EACH + number)).unwrap();
                        while places.next().unwrap().compare_exchange(0, ticket, AcqRel, Relaxed).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut seen = HashSet::new();
            for place in places.iter().cycle() {
                let ticket = place.swap(0, AcqRel);
                if ticket != 0 {
                    assert!(seen.insert(take(ticket).unwrap().lease));
                    assert!(take(ticket).is_err());
                }
                if seen.len() == 3 * EACH as usize {
                    break;
                }
            }
            seen.len()
        });
        assert_eq!(taken, 3 * EACH as usize);
        assert!(FRESH.load(SeqCst) - before < 1000, "they are used again");
    }
}
