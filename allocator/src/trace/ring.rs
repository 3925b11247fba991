//! The last events, in a ring of fixed size.
//!
//! Whoever records waits for nobody: a slot is claimed by its number, its words are
//! written between two values of the slot's sequence (Lameter, "Effective
//! synchronization on Linux/NUMA systems", 2005), and a writer that is overtaken by a
//! whole round while it writes costs one event, which is counted as lost. Readers skip
//! what is being written.

use super::event::Kind;
use super::stack::{DEPTH, Stack};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

/// An event without words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) time_ns: u64,
    pub(crate) thread: u32,
    pub(crate) kind: Kind,
    pub(crate) stream: u64,
    pub(crate) bytes: u64,
    pub(crate) block_bytes: u64,
    pub(crate) block: u64,
    pub(crate) address: u64,
}

const WORDS: usize = 7;

struct Slot {
    /// Twice the event's number plus two when it stands; odd while it is written.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

pub(crate) struct Ring {
    slots: Box<[Slot]>,
    /// [`DEPTH`] per slot, if stacks are kept.
    frames: Box<[AtomicU64]>,
    /// Events so far.
    next: AtomicU64,
    /// Events before the last `clear`.
    cleared: AtomicU64,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl Ring {
    pub(crate) fn new(events: usize, stacks: bool) -> Ring {
        let slot = || Slot { sequence: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] };
        let frames = if stacks { events * DEPTH } else { 0 };
        Ring {
            slots: (0..events).map(|_| slot()).collect(),
            frames: (0..frames).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        }
    }

    pub(crate) fn keeps_stacks(&self) -> bool {
        !self.frames.is_empty()
    }

    pub(crate) fn push(&self, record: Record, stack: &Stack) {
        let number = self.next.fetch_add(1, Relaxed);
        let at = (number % self.slots.len() as u64) as usize;
        let slot = &self.slots[at];
        let before = slot.sequence.load(Relaxed);
        let free = before.is_multiple_of(2) && before <= 2 * number;
        // Acquire: after whoever wrote the slot a round ago.
        if !free || slot.sequence.compare_exchange(before, 2 * number + 1, Acquire, Relaxed).is_err() {
            return;
        }
        // Release: a reader that finds a word of ours finds the odd sequence as well.
        fence(Release);
        let Record { time_ns, thread, kind, stream, bytes, block_bytes, block, address } = record;
        let tag = u64::from(thread) << 8 | kind as u64;
        for (word, value) in slot.words.iter().zip([time_ns, tag, stream, bytes, block_bytes, block, address])
        {
            word.store(value, Relaxed);
        }
        if self.keeps_stacks() {
            for (word, &value) in self.frames[at * DEPTH..].iter().zip(&stack.0) {
                word.store(value, Relaxed);
            }
        }
        // Release: pairs with the Acquire in `read`.
        slot.sequence.store(2 * number + 2, Release);
    }

    /// The events that stand, oldest first, and how many there were besides since the
    /// start, or the last `clear`.
    pub(crate) fn read(&self) -> (Vec<(Record, Stack)>, u64) {
        let end = self.next.load(Acquire);
        let first = end.saturating_sub(self.slots.len() as u64);
        let mut events = Vec::with_capacity((end - first) as usize);
        events.extend((first..end).filter_map(|number| self.read_one(number)));
        // Overwritten, being written, or overtaken while they were.
        let since = end.saturating_sub(self.cleared.load(Relaxed));
        let lost = since.saturating_sub(events.len() as u64);
        (events, lost)
    }

    fn read_one(&self, number: u64) -> Option<(Record, Stack)> {
        let at = (number % self.slots.len() as u64) as usize;
        let slot = &self.slots[at];
        // Acquire: pairs with the Release in `push`.
        if slot.sequence.load(Acquire) != 2 * number + 2 {
            return None;
        }
        let words: [u64; WORDS] = std::array::from_fn(|word| slot.words[word].load(Relaxed));
        let mut stack = Stack::NONE;
        for (value, word) in stack.0.iter_mut().zip(self.frames.get(at * DEPTH..).unwrap_or_default()) {
            *value = word.load(Relaxed);
        }
        // Acquire: had a word been a later writer's, its odd sequence shows.
        fence(Acquire);
        if slot.sequence.load(Relaxed) != 2 * number + 2 {
            return None;
        }
        let [time_ns, tag, stream, bytes, block_bytes, block, address] = words;
        let kind = *Kind::ALL.get((tag & 0xff) as usize)?;
        let thread = (tag >> 8) as u32;
        Some((Record { time_ns, thread, kind, stream, bytes, block_bytes, block, address }, stack))
    }

    /// Forgets all events. Those that are being written may stay.
    pub(crate) fn clear(&self) {
        let end = self.next.load(Relaxed);
        for slot in &self.slots {
            let before = slot.sequence.load(Relaxed);
            if before.is_multiple_of(2) && before > 0 && before <= 2 * end {
                let _ = slot.sequence.compare_exchange(before, 0, Relaxed, Relaxed);
            }
        }
        self.cleared.store(end, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn record(number: u64) -> Record {
        Record {
            time_ns: number,
            thread: 7,
            kind: Kind::ALL[(number % 7) as usize],
            stream: number,
            bytes: number,
            block_bytes: number,
            block: number,
            address: number,
        }
    }

    #[test]
    fn the_last_events_stand_in_order() {
        let ring = Ring::new(8, true);
        assert_eq!(ring.read(), (Vec::new(), 0));
        for number in 0..21 {
            ring.push(record(number), &Stack([number; DEPTH]));
        }
        let (events, lost) = ring.read();
        assert_eq!(lost, 13);
        assert_eq!(events, (13..21).map(|at| (record(at), Stack([at; DEPTH]))).collect::<Vec<_>>());
    }

    #[test]
    fn no_event_is_torn() {
        let ring = Ring::new(4, true);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in 0..3u64 {
                let (ring, stop) = (&ring, &stop);
                scope.spawn(move || {
                    let mut number = writer;
                    while !stop.load(Relaxed) {
                        ring.push(record(number), &Stack([number; DEPTH]));
                        number += 3;
                    }
                });
            }
            let mut seen = 0;
            while seen < 5_000 {
                for (event, stack) in ring.read().0 {
                    assert_eq!((event, stack), (record(event.time_ns), Stack([event.time_ns; DEPTH])));
                    seen += 1;
                }
            }
            stop.store(true, Relaxed);
        });
    }
}
