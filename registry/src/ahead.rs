//! The cache's own pages, made resident before a miss writes to them: for each one
//! that is new the kernel takes longer than a miss whose backend takes no time, and
//! a region needs up to 2 KiB of them.
//!
//! The reaper sees to it. A miss that comes close to the end wakes it.

use crate::cache::{Locked, Writer};
use pinyard_hooks::map::{Map, SlotId};
use std::ops::{Deref, Range};

/// Slots kept ready: 256 KiB, and 32 KiB of counts on the shard of each thread.
const AHEAD: SlotId = 4096;
/// Below this many regions the cache pays as it grows, and stays small.
const FEW: SlotId = 512;
/// Leaves kept ready, at most: 512 KiB.
const MOST_LEAVES: u32 = 256;

/// What has been made resident, kept by the writer.
#[derive(Default)]
pub(crate) struct Resident {
    slots: SlotId,
    leaves: u32,
    /// The reaper has been told to go on from `slots`.
    asked: Option<SlotId>,
    /// It is to be told.
    is_due: bool,
}

/// Slots and leaves that come next.
pub(crate) struct Ahead {
    pub(crate) slots: Range<usize>,
    pub(crate) leaves: Range<usize>,
}

impl Resident {
    /// Whether too few slots from `next` on are resident.
    fn is_short(&self, next: SlotId) -> bool {
        next >= FEW && next + AHEAD / 2 > self.slots
    }

    /// Slot `next` is about to be used for the first time.
    #[inline]
    pub(crate) fn take(&mut self, next: SlotId) {
        if self.is_short(next) && self.asked != Some(self.slots) {
            self.asked = Some(self.slots);
            self.is_due = true;
        }
    }
}

impl Writer {
    /// Whether the reaper is to be woken for this. Said once.
    #[inline]
    pub(crate) fn needs_pages(&mut self) -> bool {
        std::mem::take(&mut self.resident.is_due)
    }

    fn plan(&mut self, slots: usize) -> Option<Ahead> {
        let (next, resident) = (self.next_slot, &mut self.resident);
        if !resident.is_short(next) {
            return None;
        }
        let until = (next + AHEAD).min(slots as SlotId);
        let slots = resident.slots.max(next).min(until)..until;
        // As many leaves for a slot as so far.
        let leaf = self.leaves.taken();
        let share = u64::from(leaf) * u64::from(AHEAD) / u64::from(next);
        let until = leaf.saturating_add((share as u32).min(MOST_LEAVES)).min(self.leaves.limit());
        let leaves = resident.leaves.max(leaf).min(until)..until;
        (resident.slots, resident.leaves) = (slots.end, leaves.end);
        (!slots.is_empty()).then_some(Ahead {
            slots: slots.start as usize..slots.end as usize,
            leaves: leaves.start as usize..leaves.end as usize,
        })
    }
}

impl<M: Deref<Target = Map>> Locked<'_, M> {
    /// What the reaper shall make resident; `None` where enough is.
    pub(crate) fn plan_ahead(&mut self) -> Option<Ahead> {
        let slots = self.cache.map.slots().len();
        self.writer.plan(slots)
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backend::Unlocked;
    use crate::cache::{Cache, Geometry, map_size};
    use std::sync::Arc;

    #[test]
    fn what_comes_next_is_planned_once() {
        const SLOTS: usize = 10_000;
        let geometry = Geometry { regions: SLOTS, budget: usize::MAX.into(), max_region_bytes: usize::MAX };
        let map = Arc::new(Map::new(map_size(SLOTS, 1 << 40)).unwrap());
        let cache = Cache::new(map, geometry).unwrap();
        let mut unlocked = Unlocked::at_entry();
        let mut locked = cache.lock(&mut unlocked);
        let writer = &mut *locked.writer;
        let mut planned = Vec::new();
        for slot in 1..SLOTS as SlotId {
            writer.next_slot = slot;
            writer.resident.take(slot);
            if writer.needs_pages() {
                // At the end there is nothing left to plan.
                planned.extend(writer.plan(SLOTS).map(|ahead| ahead.slots));
                assert!(writer.plan(SLOTS).is_none());
            }
        }
        assert_eq!(planned[0].start, FEW as usize, "few regions need none");
        assert!(planned.windows(2).all(|two| two[0].end == two[1].start), "{planned:?}");
        assert_eq!(planned.last().unwrap().end, SLOTS);
        assert!((3..8).contains(&planned.len()), "{planned:?}");
    }
}
