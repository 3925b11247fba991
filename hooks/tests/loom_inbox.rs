//! Invariant 4 on the real inbox, in every interleaving that loom finds:
//! whoever sees `pushed` drains that many events, or an order to flush.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p pinyard-hooks --test loom_inbox --release`.
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::thread;
use pinyard_hooks::{Event, Inbox};

/// Pages so far from each other that no event covers both.
const FAR: usize = 1 << 30;

fn page(index: usize) -> Event {
    Event::new(index << 12, 1).unwrap()
}

fn covers(got: &[Event], index: usize) -> bool {
    got.iter().any(|event| event.start() <= index << 12 && index << 12 < event.end())
}

/// Two producers, of a page each, against one drainer; `before` is pending when they begin.
fn model<const N: usize>(before: &'static [usize], pages: [usize; 2]) {
    loom::model(move || {
        let inbox = Arc::new(Inbox::<N>::new());
        before.iter().for_each(|&index| inbox.push(page(index)));
        let producers = pages.map(|index| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.push(page(index)))
        });
        let mut got = Vec::new();
        let mut everything = drain(&inbox, &mut got);
        for producer in producers {
            producer.join().unwrap();
        }
        let all = |got: &[Event]| pages.iter().all(|&index| covers(got, index));
        assert!(everything || inbox.has_news() || all(&got), "no news, yet an event is missing");
        everything |= drain(&inbox, &mut got);
        assert!(!inbox.has_news());
        assert!(everything || all(&got), "lost: {got:?}");
        assert!(everything || before.iter().all(|&index| covers(&got, index)), "lost: {got:?}");
    });
}

fn drain<const N: usize>(inbox: &Inbox<N>, got: &mut Vec<Event>) -> bool {
    let mark = inbox.begin();
    let everything = inbox.take(|event| got.push(event));
    inbox.finish(mark);
    everything
}

#[test]
fn two_events_two_slots() {
    model::<2>(&[], [1, 2]);
}

#[test]
fn the_same_event_twice_is_never_lost() {
    model::<1>(&[], [1, 1]);
}

/// The slots are taken: the one is widened over the other.
#[test]
fn one_slot_overflows_to_a_wider_event() {
    model::<1>(&[3], [1, 2]);
}

/// Both widen what is pending.
#[test]
fn two_events_widen_a_third() {
    model::<1>(&[3, 4], [1, 2]);
}

#[test]
fn where_no_event_covers_both_everything_goes() {
    model::<1>(&[3], [1, FAR]);
}
