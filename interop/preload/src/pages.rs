//! A set of pages, for hooks: marked by whoever registers, taken out by changes.
//!
//! A radix tree over 48 bits of address, of which a branch or leaf is made when a page
//! below it is first marked, and stays. Marking may allocate; taking out does not, and
//! waits for nobody.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use pinyard_hooks::PAGE_SIZE;

const WORDS: usize = 512;
/// Pages of a leaf.
const LEAF: usize = WORDS * 64;
const LEAVES: usize = 1024;
const BRANCHES: usize = (1 << 48) / PAGE_SIZE / LEAF / LEAVES;

struct Leaf([AtomicU64; WORDS]);
struct Branch([AtomicPtr<Leaf>; LEAVES]);

/// Bounds are addresses; a page that is touched counts as a whole.
pub(crate) struct Pages(Box<[AtomicPtr<Branch>; BRANCHES]>);

/// What `place` points to; made if it is not there.
fn or_made<T>(place: &AtomicPtr<T>, make: impl Fn() -> T) -> &T {
    let mut there = place.load(Acquire);
    if there.is_null() {
        let made = Box::into_raw(Box::new(make()));
        // Release: what is in it, before its address.
        match place.compare_exchange(null_mut(), made, AcqRel, Acquire) {
            Ok(_) => there = made,
            Err(other) => {
                // SAFETY: from `into_raw`, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                there = other;
            }
        }
    }
    // SAFETY: not null, from `into_raw`, and freed only with the set.
    unsafe { &*there }
}

fn there<T>(place: &AtomicPtr<T>) -> Option<&T> {
    // SAFETY: null, or as in `or_made`.
    unsafe { place.load(Acquire).as_ref() }
}

/// The pages of a range, as the first and one past the last; the second is false where
/// the range reaches beyond what a set can hold.
fn pages(start: usize, end: usize) -> (core::ops::Range<usize>, bool) {
    const ALL: usize = BRANCHES * LEAVES * LEAF;
    let past = end.div_ceil(PAGE_SIZE);
    (start / PAGE_SIZE..past.min(ALL), past <= ALL)
}

/// The bits of `pages` that are in the word with the index `word`.
fn mask(pages: &core::ops::Range<usize>, word: usize) -> u64 {
    let low = pages.start.saturating_sub(word * 64).min(64);
    let high = pages.end.saturating_sub(word * 64).min(64);
    let up_to = |bits: usize| if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    up_to(high) & !up_to(low)
}

impl Pages {
    pub(crate) fn new() -> Pages {
        Pages(Box::new([const { AtomicPtr::new(null_mut()) }; BRANCHES]))
    }

    /// From now on a change of `start..end` finds it. Not from a hook: it allocates.
    pub(crate) fn mark(&self, start: usize, end: usize) {
        let (pages, _) = pages(start, end);
        let mut at = pages.start;
        while at < pages.end {
            let branch = or_made(&self.0[at / LEAF / LEAVES], || {
                Branch([const { AtomicPtr::new(null_mut()) }; LEAVES])
            });
            let leaf = or_made(&branch.0[at / LEAF % LEAVES], || Leaf([const { AtomicU64::new(0) }; WORDS]));
            let word = at / 64;
            // Also where the bits are there: they may be about to be taken.
            leaf.0[word % WORDS].fetch_or(mask(&pages, word), AcqRel);
            at = (word + 1) * 64;
        }
    }

    /// Takes the pages of `start..end` out. Whether any was in.
    pub(crate) fn take(&self, start: usize, end: usize) -> bool {
        let (pages, holds) = pages(start, end);
        // What cannot be held may always have been marked.
        let mut any = !holds && start < end;
        let mut at = pages.start;
        while at < pages.end {
            let Some(branch) = there(&self.0[at / LEAF / LEAVES]) else {
                at = (at / LEAF / LEAVES + 1) * LEAVES * LEAF;
                continue;
            };
            let Some(leaf) = there(&branch.0[at / LEAF % LEAVES]) else {
                at = (at / LEAF + 1) * LEAF;
                continue;
            };
            let word = at / 64;
            let (bits, of) = (&leaf.0[word % WORDS], mask(&pages, word));
            // A read first: most changes are of pages that nobody marked.
            any |= bits.load(Acquire) & of != 0 && bits.fetch_and(!of, AcqRel) & of != 0;
            at = (word + 1) * 64;
        }
        any
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        for branch in self.0.iter_mut().map(|place| *place.get_mut()).filter(|branch| !branch.is_null()) {
            // SAFETY: from `into_raw`, once; nobody else refers to the set.
            let mut branch = unsafe { Box::from_raw(branch) };
            for leaf in branch.0.iter_mut().map(|place| *place.get_mut()).filter(|leaf| !leaf.is_null()) {
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(leaf) });
            }
        }
    }
}

#[cfg(test)]
mod tests;
