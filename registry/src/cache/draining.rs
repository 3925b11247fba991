//! What hooks left for the writer, applied: in slices, but for a caller's own range.

use super::{Locked, Reason, SLICE, Writer};
use crate::completion::Completion;
use crate::range::PageRange;
use crate::regions;
use pinyard_hooks::map::{Map, SlotId};
use std::ops::Deref;

impl Writer {
    /// Sorts wide events and keeps them apart, so that their number is bounded by what
    /// lies between them: one that is split where a `get` was served stays small.
    fn merge_wide(&mut self) {
        self.wide.sort_unstable_by_key(|range| range.start);
        self.wide.dedup_by(|range, before| {
            let apart = !range.overlaps(*before);
            if !apart {
                *before = before.union(*range);
            }
            !apart
        });
    }
}

impl<M: Deref<Target = Map>> Locked<'_, M> {
    /// Takes over what hooks left since the last time, and applies a slice of it.
    #[inline]
    pub(crate) fn drain(&mut self) {
        if self.cache.map.news() != self.writer.epoch {
            self.take_over();
        }
    }

    #[cold]
    fn take_over(&mut self) {
        let map = &*self.cache.map;
        let writer = &mut *self.writer;
        map.begin_drain(|event| {
            let range = PageRange { start: event.start(), end: event.end() };
            // Now, not in its turn: a registration that begins later is not old.
            for flight in writer.inflight.iter().filter(|flight| flight.range.overlaps(range)) {
                self.cache.slot(flight.slot).spoil();
            }
            writer.counters.overflows += 1;
            writer.wide.push(range);
        });
        writer.merge_wide();
        let epoch = map.epoch();
        if epoch != writer.epoch {
            writer.epoch = epoch;
            writer.sweep = 1;
            writer.counters.flushes += 1;
            // Whatever they touch is of an older epoch.
            writer.wide.clear();
        }
        self.apply_wide(SLICE);
    }

    /// Retires regions that wide events touched, at most `limit`.
    fn apply_wide(&mut self, mut limit: usize) {
        while let Some(&range) = self.writer.wide.last() {
            match self.first_in(range) {
                Some(_) if limit == 0 => return,
                Some(id) => self.kill(id, Reason::Invalidated),
                None => drop(self.writer.wide.pop()),
            }
            limit = limit.saturating_sub(1);
        }
        self.cache.map.finish_drain();
    }

    /// Retires every region in `range` that may no longer be served. Whether any
    /// is left there.
    #[inline]
    pub(crate) fn settle(&mut self, range: PageRange) -> bool {
        let nothing = self.writer.wide.is_empty() && self.first_in(range).is_none();
        !nothing && self.settle_each(range)
    }

    #[inline(never)]
    fn settle_each(&mut self, range: PageRange) -> bool {
        let from = self.writer.wide.partition_point(|event| event.end <= range.start);
        let to = self.writer.wide.partition_point(|event| event.start < range.end);
        if from < to {
            let events = self.writer.wide[from..to].to_vec();
            for common in events.iter().filter_map(|event| event.intersection(range)) {
                while let Some(id) = self.first_in(common) {
                    self.kill(id, Reason::Invalidated);
                }
            }
            // What is registered in `range` from now on is newer than the events.
            let left = events.into_iter().flat_map(|event| event.without(range));
            self.writer.wide.splice(from..to, left);
        }
        let (mut rest, mut occupied) = (Some(range), false);
        while let Some(id) = rest.and_then(|rest| self.first_in(rest)) {
            let end = regions::range_of(self.cache.slot(id)).end;
            match self.doom(id) {
                Some(reason) => self.kill(id, reason),
                None => occupied = true,
            }
            rest = PageRange::from(end, range.end);
        }
        occupied
    }

    /// Why nobody finds the region any more, if so.
    pub(super) fn doom(&self, id: SlotId) -> Option<Reason> {
        let slot = self.cache.slot(id);
        if slot.state().is_stale() {
            return Some(Reason::Invalidated);
        }
        let reason = if slot.has_file_pages() { Reason::Invalidated } else { Reason::Flushed };
        (!self.cache.map.is_current(slot, self.writer.epoch)).then_some(reason)
    }

    /// Retires regions that nobody finds any more, a slice of them. Whether there
    /// may be more.
    pub(crate) fn tidy(&mut self) -> bool {
        // Not `drain`: whoever repeats this until nothing is left must get on.
        if !self.writer.wide.is_empty() || self.cache.map.news() != self.writer.epoch {
            self.take_over();
        }
        let files = self.cache.map.files();
        if files != self.writer.files {
            self.writer.files = files;
            if self.writer.of_files != 0 {
                self.writer.sweep = 1;
            }
        }
        let mut doomed = Vec::new();
        let (marks, below) = (self.writer.marks, self.writer.next_slot);
        let marks = self.cache.map.take_changed(marks, below, SLICE, |id| doomed.push(id));
        self.writer.marks = marks.unwrap_or(0);
        let sweep =
            self.writer.sweep.min(below)..self.writer.sweep.saturating_add(SLICE as SlotId).min(below);
        doomed.extend(sweep.clone());
        let swept = sweep.end == below;
        self.writer.sweep = if swept { SlotId::MAX } else { sweep.end };
        for id in doomed {
            if self.cache.slot(id).state().is_listed()
                && let Some(reason) = self.doom(id)
            {
                self.kill(id, reason);
            }
        }
        marks.is_some() || !swept || !self.writer.wide.is_empty()
    }

    /// Nobody finds any region any more: `tidy` retires them.
    pub(crate) fn flush(&mut self) {
        self.cache.map.publish_everything();
        self.drain();
    }

    /// Takes out every region that shares a page with `range`. `done` is dropped
    /// when all of them have been deregistered, and those that were taken out
    /// earlier or are being registered.
    pub(crate) fn invalidate(&mut self, range: PageRange, done: Option<Completion>) {
        for flight in self.writer.inflight.iter().filter(|flight| flight.range.overlaps(range)) {
            self.cache.slot(flight.slot).spoil();
        }
        while let Some(id) = self.first_in(range) {
            self.kill(id, Reason::Invalidated);
        }
        if let Some(done) = done {
            let cache = self.cache;
            let writer = &mut *self.writer;
            let retired =
                writer.dead.iter().chain(&writer.ready).chain(&writer.in_use).chain(&writer.burying);
            let all = retired.copied().chain(writer.inflight.iter().map(|flight| flight.slot));
            let concerned = all.filter(|&id| regions::range_of(cache.slot(id)).overlaps(range));
            writer.waiting.extend(concerned.map(|id| (id, done.clone())));
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backend::Unlocked;
    use crate::cache::{Cache, Geometry, map_size};

    fn pages(first: usize, end: usize) -> PageRange {
        PageRange { start: first << 12, end: end << 12 }
    }

    /// Each `get` splits the events that hold its pages, and must not split as many
    /// as have come.
    #[test]
    fn overlapping_wide_events_become_one() {
        let geometry = Geometry { regions: 2, budget: usize::MAX.into(), max_region_bytes: usize::MAX };
        let map = std::sync::Arc::new(Map::new(map_size(2, 1 << 40)).unwrap());
        let cache = Cache::new(map, geometry).unwrap();
        let mut unlocked = Unlocked::at_entry();
        let mut locked = cache.lock(&mut unlocked);
        let add = |locked: &mut Locked<'_, _>, range| {
            locked.writer.wide.push(range);
            locked.writer.merge_wide();
        };
        add(&mut locked, pages(2000, 2001));
        for first in (1..=100).rev() {
            add(&mut locked, pages(first, 1000));
        }
        assert_eq!(locked.writer.wide, [pages(1, 1000), pages(2000, 2001)]);
        for page in 1..50 {
            locked.settle(pages(10 * page, 10 * page + 1));
        }
        assert_eq!(locked.writer.wide.len(), 51);
        locked.settle(pages(15, 36));
        assert_eq!(locked.writer.wide[..3], [pages(1, 10), pages(11, 15), pages(36, 40)]);
        assert!(locked.writer.wide.is_sorted_by_key(|range| range.start));
        locked.settle(pages(1500, 3000));
        assert_eq!(locked.writer.wide.last(), Some(&pages(491, 1000)));
        add(&mut locked, pages(5, 2001));
        assert_eq!(locked.writer.wide, [pages(1, 2001)]);
    }
}
