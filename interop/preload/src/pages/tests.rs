//! The set of pages against a plain one.
use super::Pages;
use pinyard_hooks::PAGE_SIZE;
use std::collections::BTreeSet;

fn touched(start: usize, end: usize) -> std::ops::Range<usize> {
    start / PAGE_SIZE..end.div_ceil(PAGE_SIZE)
}

#[test]
fn it_answers_as_a_plain_set() {
    let (set, mut plain) = (Pages::new(), BTreeSet::new());
    // Around the borders of words, leaves and branches.
    let borders = [0usize, 64, 512 * 64, 1024 * 512 * 64, 5 * 1024 * 512 * 64 + 7];
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut next = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % below as u64) as usize
    };
    let (mut hits, mut misses) = (0, 0);
    for _ in 0..20_000 {
        let border = borders[next(borders.len())] * PAGE_SIZE;
        let start = (border + next(200 * PAGE_SIZE)).saturating_sub(100 * PAGE_SIZE);
        let end = start + 1 + next(80 * PAGE_SIZE);
        if next(4) == 0 {
            set.mark(start, end);
            plain.extend(touched(start, end));
        } else {
            let expected = touched(start, end).filter(|page| plain.remove(page)).count() > 0;
            assert_eq!(set.take(start, end), expected, "{start:#x}..{end:#x}");
            if expected { hits += 1 } else { misses += 1 }
        }
    }
    assert!(hits > 1000 && misses > 1000, "{hits} {misses}");
}

#[test]
fn everything_is_taken_at_once() {
    let set = Pages::new();
    set.mark(0x7fff_0000_0000, 0x7fff_0000_0001);
    set.mark(0x1000, 0x2000);
    assert!(set.take(PAGE_SIZE, 1 << 47));
    assert!(!set.take(PAGE_SIZE, 1 << 47));
    assert!(!set.take(0x7fff_0000_0000, 0x7fff_0000_1000));
}

#[test]
fn what_it_cannot_hold_always_counts_as_marked() {
    let set = Pages::new();
    assert!(set.take((1 << 48) + PAGE_SIZE, (1 << 48) + 2 * PAGE_SIZE));
    assert!(!set.take(1 << 48, 1 << 48));
    set.mark((1 << 48) - PAGE_SIZE, (1 << 48) + PAGE_SIZE);
    assert!(set.take((1 << 48) - PAGE_SIZE, 1 << 48));
    assert!(!set.take((1 << 48) - PAGE_SIZE, 1 << 48));
}

#[test]
fn threads_lose_nothing() {
    let set = Pages::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let set = &set;
            // Neighbouring pages: the same words.
            scope.spawn(move || {
                for round in 0..20_000 {
                    let at = (4 * (round % 500) + thread) * PAGE_SIZE;
                    set.mark(at, at + PAGE_SIZE);
                    assert!(set.take(at, at + PAGE_SIZE));
                    assert!(!set.take(at, at + PAGE_SIZE));
                }
            });
        }
    });
}
