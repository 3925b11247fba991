//! The last events, in a ring of fixed size.
//!
//! Whoever records waits for nobody: a slot is claimed by its number, its words are
//! written between two values of the slot's sequence (Lameter, "Effective
//! synchronization on Linux/NUMA systems", 2005), and a writer that is overtaken by a
//! whole round while it writes costs one event, which is counted as lost. Readers skip
//! what is being written.

use crate::event::Kind;
use crate::names::Name;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

/// An event without words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // as in `Event`
pub struct Record {
    pub time_ns: u64,
    pub thread: u32,
    pub kind: Kind,
    pub stream: u64,
    pub bytes: u64,
    pub block_bytes: u64,
    pub block: u64,
    pub address: u64,
    pub duration_ns: u64,
    /// 24 bits are kept.
    pub of: u32,
    pub name: Name,
    pub path: Name,
    pub slab: u64,
}

impl Record {
    /// With nothing but its kind.
    pub const fn of(kind: Kind) -> Record {
        Record {
            time_ns: 0,
            thread: 0,
            kind,
            stream: 0,
            bytes: 0,
            block_bytes: 0,
            block: 0,
            address: 0,
            duration_ns: 0,
            of: 0,
            name: Name::NONE,
            path: Name::NONE,
            slab: 0,
        }
    }

    fn words(self) -> [u64; WORDS] {
        let Record { time_ns, thread, kind, stream, bytes, block_bytes, block, address, .. } = self;
        let tag = u64::from(self.of) << 40 | u64::from(thread) << 8 | kind as u64;
        let names = u64::from(self.name.number()) << 16 | u64::from(self.path.number());
        [time_ns, tag, stream, bytes, block_bytes, block, address, self.duration_ns, names, self.slab]
    }

    fn from_words(words: [u64; WORDS]) -> Option<Record> {
        let [time_ns, tag, stream, bytes, block_bytes, block, address, duration_ns, names, slab] = words;
        Some(Record {
            time_ns,
            thread: (tag >> 8) as u32,
            kind: *Kind::ALL.get((tag & 0xff) as usize)?,
            stream,
            bytes,
            block_bytes,
            block,
            address,
            duration_ns,
            of: (tag >> 40) as u32,
            name: Name::from_number((names >> 16) as u16),
            path: Name::from_number(names as u16),
            slab,
        })
    }
}

const WORDS: usize = 10;

struct Slot {
    /// Twice the event's number plus two when it stands; odd while it is written.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The last events; 88 bytes each, and 8 for each frame of a stack.
pub struct Ring {
    slots: Box<[Slot]>,
    /// So many per slot, if stacks are kept.
    depth: usize,
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
    /// For `events` events, at least one, each with `depth` return addresses.
    pub fn new(events: usize, depth: usize) -> Ring {
        let events = events.max(1);
        let slot = || Slot { sequence: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] };
        Ring {
            slots: (0..events).map(|_| slot()).collect(),
            depth,
            frames: (0..events * depth).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        }
    }

    /// Whether events have stacks.
    pub fn keeps_stacks(&self) -> bool {
        self.depth > 0
    }

    /// Events that it holds.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Adds an event, over the oldest one; its number, from 0. Waits for nobody.
    pub fn push(&self, record: Record, stack: &[u64]) -> u64 {
        let number = self.next.fetch_add(1, Relaxed);
        let at = (number % self.slots.len() as u64) as usize;
        let slot = &self.slots[at];
        let before = slot.sequence.load(Relaxed);
        let free = before.is_multiple_of(2) && before <= 2 * number;
        // Acquire: after whoever wrote the slot a round ago.
        if !free || slot.sequence.compare_exchange(before, 2 * number + 1, Acquire, Relaxed).is_err() {
            return number;
        }
        // Release: a reader that finds a word of ours finds the odd sequence as well.
        fence(Release);
        for (word, value) in slot.words.iter().zip(record.words()) {
            word.store(value, Relaxed);
        }
        for (word, &value) in self.frames_at(at).iter().zip(stack) {
            word.store(value, Relaxed);
        }
        // Release: pairs with the Acquire in `read_one`.
        slot.sequence.store(2 * number + 2, Release);
        number
    }

    fn frames_at(&self, at: usize) -> &[AtomicU64] {
        &self.frames[at * self.depth..(at + 1) * self.depth]
    }

    /// The events that stand, oldest first, and how many there were besides since the
    /// start, or the last `clear`.
    pub fn read(&self) -> (Vec<(Record, Vec<u64>)>, u64) {
        let end = self.next.load(Acquire);
        let first = end.saturating_sub(self.slots.len() as u64);
        let mut events = Vec::with_capacity((end - first) as usize);
        events.extend((first..end).filter_map(|number| self.read_one(number)));
        // Overwritten, being written, or overtaken while they were.
        let since = end.saturating_sub(self.cleared.load(Relaxed));
        let lost = since.saturating_sub(events.len() as u64);
        (events, lost)
    }

    /// Hands out the events from number `next` on, oldest first, and moves `next` behind
    /// them; how many were lost. It stops before an event that is being written;
    /// at that one for the second time (`stalled`), its writer has given it up.
    pub fn take(&self, next: &mut u64, stalled: &mut Option<u64>, mut to: impl FnMut(Record)) -> u64 {
        let end = self.next.load(Acquire);
        let first = end.saturating_sub(self.slots.len() as u64);
        let mut lost = first.saturating_sub(*next);
        *next = first.max(*next);
        while *next < end {
            match self.read_one(*next) {
                Some((record, _)) => to(record),
                None if self.is_coming(*next) && *stalled != Some(*next) => {
                    *stalled = Some(*next);
                    return lost;
                }
                None => lost += 1,
            }
            *next += 1;
        }
        lost
    }

    /// Whether the slot has not got as far as this event.
    fn is_coming(&self, number: u64) -> bool {
        let at = (number % self.slots.len() as u64) as usize;
        self.slots[at].sequence.load(Acquire) < 2 * number + 2
    }

    fn read_one(&self, number: u64) -> Option<(Record, Vec<u64>)> {
        let at = (number % self.slots.len() as u64) as usize;
        let slot = &self.slots[at];
        // Acquire: pairs with the Release in `push`.
        if slot.sequence.load(Acquire) != 2 * number + 2 {
            return None;
        }
        let words: [u64; WORDS] = std::array::from_fn(|word| slot.words[word].load(Relaxed));
        let stack = self.frames_at(at).iter().map(|word| word.load(Relaxed)).collect();
        // Acquire: had a word been a later writer's, its odd sequence shows.
        fence(Acquire);
        if slot.sequence.load(Relaxed) != 2 * number + 2 {
            return None;
        }
        Some((Record::from_words(words)?, stack))
    }

    /// Forgets all events. Those that are being written may stay.
    pub fn clear(&self) {
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

    const DEPTH: usize = 24;
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
            duration_ns: number,
            of: number as u32 & 0xff_ffff,
            name: Name::NONE,
            path: Name::from_number(number as u16),
            slab: number,
        }
    }

    #[test]
    fn the_last_events_stand_in_order() {
        let ring = Ring::new(8, DEPTH);
        assert_eq!(ring.read(), (Vec::new(), 0));
        for number in 0..21 {
            ring.push(record(number), &[number; DEPTH]);
        }
        let (events, lost) = ring.read();
        assert_eq!(lost, 13);
        assert_eq!(events, (13..21).map(|at| (record(at), vec![at; DEPTH])).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_taken_is_taken_once_and_what_is_missing_is_counted() {
        let ring = Ring::new(8, 0);
        let (mut next, mut stalled, mut seen) = (0, None, Vec::new());
        let mut lost = 0;
        for number in 0..40 {
            ring.push(record(number), &[]);
            if [3, 5, 20, 39].contains(&number) {
                lost += ring.take(&mut next, &mut stalled, |record| seen.push(record.time_ns));
            }
        }
        let expected: Vec<u64> = (0..6).chain(13..21).chain(32..40).collect();
        assert_eq!((seen, lost, next), (expected, 7 + 11, 40));
        // Claimed, and never written: waited for once.
        ring.next.fetch_add(1, Relaxed);
        ring.push(record(41), &[]);
        let mut taken = Vec::new();
        assert_eq!(ring.take(&mut next, &mut stalled, |record| taken.push(record.time_ns)), 0);
        assert_eq!(ring.take(&mut next, &mut stalled, |record| taken.push(record.time_ns)), 1);
        assert_eq!((taken, next), (vec![41], 42));
    }

    #[test]
    fn no_event_is_torn() {
        let ring = Ring::new(4, DEPTH);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for writer in 0..3u64 {
                let (ring, stop) = (&ring, &stop);
                scope.spawn(move || {
                    let mut number = writer;
                    while !stop.load(Relaxed) {
                        ring.push(record(number), &[number; DEPTH]);
                        number += 3;
                    }
                });
            }
            let mut seen = 0;
            while seen < 5_000 {
                for (event, stack) in ring.read().0 {
                    assert_eq!((event, stack), (record(event.time_ns), vec![event.time_ns; DEPTH]));
                    seen += 1;
                }
            }
            stop.store(true, Relaxed);
        });
    }
}
