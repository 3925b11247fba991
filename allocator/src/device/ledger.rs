//! Whose a block is and was, by its address: who allocated it, who freed it, and which
//! free memory holds the pattern. Only in pools that are watched.

use crate::trace::Stack;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// A moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note {
    /// Since the pool was made.
    pub(crate) time_ns: u64,
    pub(crate) thread: u32,
    pub(crate) stack: Stack,
}

/// A block in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Life {
    pub(crate) id: u64,
    pub(crate) bytes: u64,
    pub(crate) wanted: u64,
    pub(crate) stream: u64,
    pub(crate) allocated: Note,
}

/// Memory that was freed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    /// Of this entry; less than its life's where the rest is used again.
    pub(crate) bytes: u64,
    pub(crate) life: Life,
    /// Where the block began.
    pub(crate) block: u64,
    pub(crate) freed: Note,
    /// The pattern was written, or will be by the stream.
    pub(crate) poisoned: bool,
}

#[derive(Default)]
struct Books {
    ids: u64,
    live: BTreeMap<u64, Life>,
    past: BTreeMap<u64, Past>,
}

/// Its lock is a leaf: nothing is called under it.
#[derive(Default)]
pub(crate) struct Ledger(Mutex<Books>);

impl Ledger {
    /// Forgets everything but the numbers, which are given out once.
    pub(crate) fn clear(&self) {
        let mut books = self.0.lock();
        books.live.clear();
        books.past.clear();
    }

    /// The block's number.
    pub(crate) fn allocated(&self, at: u64, bytes: u64, wanted: u64, stream: u64, allocated: Note) -> u64 {
        let mut books = self.0.lock();
        books.ids += 1;
        let id = books.ids;
        books.live.insert(at, Life { id, bytes, wanted, stream, allocated });
        id
    }

    pub(crate) fn dropped(&self, at: u64, freed: Note) -> Option<Life> {
        let mut books = self.0.lock();
        let life = books.live.remove(&at)?;
        books.past.insert(at, Past { bytes: life.bytes, life, block: at, freed, poisoned: false });
        Some(life)
    }

    pub(crate) fn life(&self, at: u64) -> Option<Life> {
        self.0.lock().live.get(&at).copied()
    }

    pub(crate) fn past(&self, at: u64) -> Option<Past> {
        self.0.lock().past.get(&at).copied()
    }

    pub(crate) fn poisoned(&self, at: u64) {
        if let Some(past) = self.0.lock().past.get_mut(&at) {
            past.poisoned = true;
        }
    }

    /// Takes out what was freed within the range: what lies across its ends is cut.
    pub(crate) fn take_past(&self, start: u64, bytes: u64) -> Vec<(u64, Past)> {
        let mut books = self.0.lock();
        let end = start + bytes;
        let first = books.past.range(..start).next_back().filter(|(at, past)| *at + past.bytes > start);
        let first = first.map_or(start, |(&at, _)| at);
        let found: Vec<(u64, Past)> = books.past.range(first..end).map(|(&at, &past)| (at, past)).collect();
        let mut taken = Vec::with_capacity(found.len());
        for (at, past) in found {
            books.past.remove(&at);
            let (from, to) = (at.max(start), (at + past.bytes).min(end));
            if at < from {
                books.past.insert(at, Past { bytes: from - at, ..past });
            }
            if to < at + past.bytes {
                books.past.insert(to, Past { bytes: at + past.bytes - to, ..past });
            }
            taken.push((from, Past { bytes: to - from, ..past }));
        }
        taken
    }

    /// All blocks in use, by address.
    pub(crate) fn live(&self) -> Vec<(u64, Life)> {
        self.0.lock().live.iter().map(|(&at, &life)| (at, life)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: Note = Note { time_ns: 1, thread: 2, stack: Stack::NONE };

    #[test]
    fn the_past_is_cut_where_it_is_used_again() {
        let ledger = Ledger::default();
        ledger.allocated(1000, 100, 90, 7, NOTE);
        ledger.allocated(1100, 50, 50, 7, NOTE);
        ledger.dropped(1000, NOTE);
        ledger.dropped(1100, NOTE);
        let taken: Vec<_> =
            ledger.take_past(1040, 80).iter().map(|(at, past)| (*at, past.bytes, past.block)).collect();
        assert_eq!(taken, [(1040, 60, 1000), (1100, 20, 1100)]);
        let left: Vec<_> = ledger.take_past(0, 5000).iter().map(|(at, past)| (*at, past.bytes)).collect();
        assert_eq!(left, [(1000, 40), (1120, 30)]);
        assert!(ledger.take_past(0, 5000).is_empty() && ledger.live().is_empty());
    }
}
