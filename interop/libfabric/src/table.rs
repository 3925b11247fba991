//! What libfabric's caches hold, as far as the monitor's callbacks tell.
//!
//! libfabric asks about an entry by address and length alone: the callbacks say
//! neither which cache asks (one per domain) nor, before 2.1, when an entry is
//! evicted. So the table keeps, per `(base, len)`, an *upper bound* of the
//! entries that exist with that key, and answers by three rules:
//!
//! - an event makes every overlapping key **stale**, with all its entries;
//! - a stale key is answered "no". libfabric drops exactly the entry that it
//!   asked about, so each "no" takes one off the bound, and at zero the key is
//!   forgotten: the next subscription starts afresh, whatever events came before;
//! - while a stale key may still have an entry somewhere, a new subscription of
//!   it is refused: "yes" for the new entry would be "yes" for the old one too.
//!
//! What is not in the table is answered "no".
//!
//! Sorted by key in memory reserved once: the callbacks run where nothing may be
//! allocated.

use std::collections::TryReserveError;

/// What is known about all entries of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No event since the first of them was subscribed.
    Fresh,
    /// An event since.
    Stale,
    /// Stale, and libfabric is being told so.
    Delivering,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    base: usize,
    len: usize,
    /// Entries with this key, at most.
    entries: u32,
    /// Has been stale for a whole round of the helper.
    waited: bool,
    state: State,
}

impl Slot {
    fn key(&self) -> (usize, usize) {
        (self.base, self.len)
    }

    fn end(&self) -> usize {
        self.base + self.len
    }
}

/// What came of a subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Subscribed {
    /// The key is in the table, and was not before.
    First,
    /// The key was there and fresh.
    Again,
    /// An older entry with this key may still be about. Do not cache.
    RefusedStale,
    /// No room. Do not cache.
    RefusedFull,
}

/// What a lookup is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// No event since the entry was subscribed.
    Valid,
    /// An event since, and other entries of the key may be about.
    Stale,
    /// An event since, and that was the last entry: the key has been forgotten.
    StaleForgotten,
    /// Not in the table.
    Unknown,
}

/// At most `capacity` keys; see the module's text.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    capacity: usize,
    /// Length of the longest key since the table was last empty: an event looks
    /// no further back than that.
    longest: usize,
}

impl Table {
    /// An empty table. The only function here that allocates, half a megabyte as a rule.
    pub(super) fn with_capacity(capacity: usize) -> Result<Table, TryReserveError> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(capacity)?;
        Ok(Table { slots, capacity, longest: 0 })
    }

    fn find(&self, base: usize, len: usize) -> Result<usize, usize> {
        self.slots.binary_search_by_key(&(base, len), Slot::key)
    }

    /// Whether `base..base + len` is in the table, in whatever state.
    pub(super) fn contains(&self, base: usize, len: usize) -> bool {
        self.find(base, len).is_ok()
    }

    /// An entry for `base..base + len` (not empty, does not wrap) is about to be
    /// cached; its pages were pinned just now.
    pub(super) fn subscribe(&mut self, base: usize, len: usize) -> Subscribed {
        match self.find(base, len) {
            Ok(at) => match &mut self.slots[at] {
                Slot { state: State::Fresh, entries, .. } => {
                    *entries = entries.saturating_add(1);
                    Subscribed::Again
                }
                _ => Subscribed::RefusedStale,
            },
            Err(_) if self.slots.len() == self.capacity => Subscribed::RefusedFull,
            Err(at) => {
                self.longest = self.longest.max(len);
                self.slots.insert(at, Slot { base, len, entries: 1, waited: false, state: State::Fresh });
                Subscribed::First
            }
        }
    }

    /// libfabric found an entry for `base..base + len` and drops it unless the
    /// answer is [`Answer::Valid`].
    pub(super) fn valid(&mut self, base: usize, len: usize) -> Answer {
        let Ok(at) = self.find(base, len) else {
            return Answer::Unknown;
        };
        let slot = &mut self.slots[at];
        match slot.state {
            State::Fresh => Answer::Valid,
            State::Delivering => Answer::Stale,
            State::Stale if slot.entries > 1 => {
                slot.entries -= 1;
                Answer::Stale
            }
            State::Stale => {
                self.remove(at);
                Answer::StaleForgotten
            }
        }
    }

    /// The pages `start..end` change: whatever overlaps is stale from now on.
    pub(super) fn mark(&mut self, start: usize, end: usize) {
        let first = self.slots.partition_point(|slot| slot.base.saturating_add(self.longest) <= start);
        for slot in self.slots[first..].iter_mut().take_while(|slot| slot.base < end) {
            if slot.end() > start && slot.state == State::Fresh {
                slot.state = State::Stale;
            }
        }
    }

    /// Anything may have changed.
    pub(super) fn mark_everything(&mut self) {
        self.mark(0, usize::MAX);
    }

    /// Chooses a stale key that libfabric can be told about without losing a
    /// fresh entry that overlaps it, and starts its delivery. Looks at keys from
    /// `from` on, and only at those that have [waited](Table::wait): what the program
    /// is about to look up again is none of the helper's business.
    pub(super) fn begin_delivery(&mut self, from: (usize, usize)) -> Option<(usize, usize)> {
        let first = self.slots.partition_point(|slot| slot.key() < from);
        let at = (first..self.slots.len()).find(|&at| {
            self.slots[at].waited && self.slots[at].state == State::Stale && !self.overlaps_fresh(at)
        })?;
        self.slots[at].state = State::Delivering;
        Some(self.slots[at].key())
    }

    fn overlaps_fresh(&self, at: usize) -> bool {
        let stale = self.slots[at];
        let first = self.slots.partition_point(|slot| slot.base.saturating_add(self.longest) <= stale.base);
        self.slots[first..]
            .iter()
            .take_while(|slot| slot.base < stale.end())
            .any(|slot| slot.end() > stale.base && slot.state == State::Fresh)
    }

    /// A round of the helper's is over: what is stale now may be delivered in the next.
    pub(super) fn wait(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| slot.state == State::Stale) {
            slot.waited = true;
        }
    }

    /// Whether a stale key waits for its delivery.
    pub(super) fn has_stale(&self) -> bool {
        self.slots.iter().any(|slot| slot.state == State::Stale)
    }

    /// Starts the delivery of everything, fresh keys included.
    pub(super) fn begin_delivery_of_everything(&mut self) {
        for slot in &mut self.slots {
            slot.state = State::Delivering;
        }
    }

    /// No cache holds an entry of this key any more. Whether it was forgotten.
    pub(super) fn delivered(&mut self, base: usize, len: usize) -> bool {
        match self.find(base, len) {
            Ok(at) if self.slots[at].state == State::Delivering => {
                self.remove(at);
                true
            }
            _ => false,
        }
    }

    /// No cache holds an entry of any key whose delivery had started. Forgets
    /// them, telling each.
    pub(super) fn delivered_everything(&mut self, mut forgotten: impl FnMut(usize, usize)) {
        self.slots.retain(|slot| {
            let kept = slot.state != State::Delivering;
            if !kept {
                forgotten(slot.base, slot.len);
            }
            kept
        });
        self.forget_longest();
    }

    /// No cache is left. Forgets all keys, telling each.
    pub(super) fn clear(&mut self, mut forgotten: impl FnMut(usize, usize)) {
        self.slots.drain(..).for_each(|slot| forgotten(slot.base, slot.len));
        self.forget_longest();
    }

    fn remove(&mut self, at: usize) {
        self.slots.remove(at);
        self.forget_longest();
    }

    fn forget_longest(&mut self) {
        if self.slots.is_empty() {
            self.longest = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: (usize, usize) = (0x10_000, 0x4000);

    fn table_with(keys: &[(usize, usize)]) -> Table {
        let mut table = Table::with_capacity(8).unwrap();
        for &(base, len) in keys {
            assert_eq!(table.subscribe(base, len), Subscribed::First);
        }
        table
    }

    #[test]
    fn no_memory_is_an_error_and_ends_nothing() {
        assert!(Table::with_capacity(usize::MAX / 2).is_err());
    }

    #[test]
    fn an_event_makes_overlapping_keys_stale_and_no_others() {
        let mut table = table_with(&[(0x1000, 0x9000), (0xa000, 0x1000), (0xb000, 0x1000), (0xc000, 0x1000)]);
        table.mark(0x9fff, 0xb000);
        assert_eq!(table.valid(0x1000, 0x9000), Answer::StaleForgotten);
        assert_eq!(table.valid(0xa000, 0x1000), Answer::StaleForgotten);
        assert_eq!(table.valid(0xb000, 0x1000), Answer::Valid);
        assert_eq!(table.valid(0xc000, 0x1000), Answer::Valid);
        assert_eq!(table.valid(0xa000, 0x1000), Answer::Unknown);
    }

    #[test]
    fn a_long_key_far_below_the_event_is_found() {
        let mut table = table_with(&[(0x1000, 0x100_0000), (0x2000, 0x10), (0x3000, 0x10)]);
        table.mark(0x80_0000, 0x80_1000);
        assert_eq!(table.valid(0x2000, 0x10), Answer::Valid);
        assert_eq!(table.valid(0x1000, 0x100_0000), Answer::StaleForgotten);
    }

    #[test]
    fn one_cache_subscribes_again_after_its_entry_was_dropped() {
        let mut table = table_with(&[K]);
        table.mark(K.0, K.0 + 1);
        assert_eq!(table.valid(K.0, K.1), Answer::StaleForgotten);
        assert_eq!(table.subscribe(K.0, K.1), Subscribed::First);
        assert_eq!(table.valid(K.0, K.1), Answer::Valid);
    }

    /// Two domains registered the same buffer; one of them asks after the event.
    /// A new entry in its cache must not make the other's old entry valid.
    #[test]
    fn a_second_cache_never_gets_its_old_entry_back() {
        let mut table = table_with(&[K]);
        assert_eq!(table.subscribe(K.0, K.1), Subscribed::Again);
        table.mark(K.0, K.0 + 1);
        assert_eq!(table.valid(K.0, K.1), Answer::Stale, "the first cache drops its entry");
        assert_eq!(table.subscribe(K.0, K.1), Subscribed::RefusedStale);
        assert_eq!(table.valid(K.0, K.1), Answer::StaleForgotten, "the second cache drops its own");
        assert_eq!(table.subscribe(K.0, K.1), Subscribed::First);
        assert_eq!(table.valid(K.0, K.1), Answer::Valid);
    }

    #[test]
    fn a_full_table_refuses_and_forgets_nothing() {
        let mut table = Table::with_capacity(2).unwrap();
        assert_eq!(table.subscribe(0x1000, 1), Subscribed::First);
        assert_eq!(table.subscribe(0x2000, 1), Subscribed::First);
        assert_eq!(table.subscribe(0x3000, 1), Subscribed::RefusedFull);
        assert_eq!(table.subscribe(0x2000, 1), Subscribed::Again);
        assert_eq!(table.valid(0x3000, 1), Answer::Unknown);
        assert_eq!(table.valid(0x1000, 1), Answer::Valid);
    }

    #[test]
    fn a_key_in_delivery_is_refused_until_delivered() {
        let mut table = table_with(&[K]);
        table.mark_everything();
        table.wait();
        assert_eq!(table.begin_delivery((0, 0)), Some(K));
        table.wait();
        assert_eq!(table.begin_delivery((0, 0)), None);
        assert_eq!(table.valid(K.0, K.1), Answer::Stale);
        assert_eq!(table.subscribe(K.0, K.1), Subscribed::RefusedStale);
        assert!(table.delivered(K.0, K.1) && !table.delivered(K.0, K.1));
        assert_eq!(table.subscribe(K.0, K.1), Subscribed::First);
    }

    /// A late delivery must not take out a newer entry that overlaps.
    #[test]
    fn what_overlaps_a_fresh_key_is_not_delivered() {
        let mut table = table_with(&[K]);
        table.mark(K.0, K.0 + 1);
        let newer = (K.0 - 0x1000, 0x2000);
        assert_eq!(table.subscribe(newer.0, newer.1), Subscribed::First);
        table.wait();
        assert_eq!(table.begin_delivery((0, 0)), None);
        table.mark(newer.0, newer.0 + 1);
        table.wait();
        assert_eq!(table.begin_delivery((0, 0)), Some(newer));
        assert_eq!(table.begin_delivery(newer), Some(K));
    }

    #[test]
    fn everything_is_forgotten_after_a_delivery_of_everything() {
        let mut table = table_with(&[(0x1000, 1), (0x2000, 1)]);
        table.begin_delivery_of_everything();
        assert_eq!(table.subscribe(0x3000, 1), Subscribed::First);
        let mut forgotten = Vec::new();
        table.delivered_everything(|base, len| forgotten.push((base, len)));
        assert_eq!(forgotten, [(0x1000, 1), (0x2000, 1)]);
        assert_eq!(table.valid(0x3000, 1), Answer::Valid, "subscribed meanwhile: but see Monitor::deliver");
        table.clear(|_, _| ());
        assert_eq!((table.slots.len(), table.longest), (0, 0));
    }
}
