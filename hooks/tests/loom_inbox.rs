//! Invariant 4 on the real inbox, in every interleaving that loom finds:
//! whoever sees `pushed` drains that many events, or an order to flush.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p pinyard-hooks --test loom_inbox --release`.
#![cfg(loom)]
#![allow(clippy::unwrap_used)]

use loom::sync::Arc;
use loom::thread;
use pinyard_hooks::{Event, Inbox};

fn page(index: usize) -> Event {
    Event::new(index << 12, 1).unwrap()
}

/// Two producers (of the same event where `same`) against one drainer.
fn model<const N: usize>(same: bool) {
    loom::model(move || {
        let inbox = Arc::new(Inbox::<N>::new());
        let producers: Vec<_> = [1, if same { 1 } else { 2 }]
            .into_iter()
            .map(|index| {
                let inbox = inbox.clone();
                thread::spawn(move || inbox.push(page(index)))
            })
            .collect();
        let mut got = [0; 3];
        let mut everything = drain(&inbox, &mut got);
        for producer in producers {
            producer.join().unwrap();
        }
        assert!(everything || inbox.has_news() || got[1] > 0, "no news, yet an event is missing");
        everything |= drain(&inbox, &mut got);
        assert!(!inbox.has_news());
        assert!(everything || got[1] > 0 && (same || got[2] > 0), "lost: {got:?}");
    });
}

fn drain<const N: usize>(inbox: &Inbox<N>, got: &mut [u32; 3]) -> bool {
    let mark = inbox.begin();
    let everything = inbox.take(|event| got[event.start() >> 12] += 1);
    inbox.finish(mark);
    everything
}

#[test]
fn two_events_two_slots() {
    model::<2>(false);
}

#[test]
fn one_slot_overflows_to_a_flush() {
    model::<1>(false);
}

#[test]
fn the_same_event_twice_is_never_lost() {
    model::<1>(true);
}
