//! How room is made: regions are retired, and those that nobody holds any more are
//! handed out to be deregistered without the lock.

use super::{Locked, Reason, SLICE, Writer};
use crate::backend::MemoryKey;
use crate::completion::Completion;
use crate::range::PageRange;
use crate::regions;
use crate::sync::{is_alone, order_all_counts};
use pinyard_hooks::map::{Map, SlotId};
use std::ops::Deref;

/// A registration to be taken back, outside the lock.
#[derive(Debug)]
pub(crate) struct Grave {
    pub(crate) slot: SlotId,
    pub(crate) key: MemoryKey,
    pub(crate) range: PageRange,
    /// userfaultfd watches the range for it.
    pub(crate) watched: bool,
    /// Its deregistration is to be timed.
    pub(crate) is_timed: bool,
    /// Filled in by the caller: how long the backend took, if it was timed, and
    /// whether it refused.
    pub(crate) ticks: Option<u64>,
    pub(crate) failed: bool,
}

/// What is handed out in one go, and how much of the room that it leaves has been
/// lent to a registration that comes after it.
#[derive(Debug, Default)]
#[must_use = "the registrations are to be taken back, and buried"]
pub(crate) struct Graves {
    pub(crate) list: Vec<Grave>,
    /// Of all in the list.
    bytes: usize,
    pub(crate) lent: Room,
}

/// Who is to be called back, if anybody waits.
pub(crate) type Done = Option<Vec<Completion>>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    pub(crate) regions: usize,
    pub(crate) bytes: usize,
}

impl Graves {
    /// What can be lent to one registration of `bytes` bytes.
    pub(crate) fn room_for(&self, bytes: usize) -> Room {
        Room { regions: !self.list.is_empty() as usize, bytes: bytes.min(self.bytes) }
    }
}

impl Writer {
    /// The slot's registration is gone: takes out who waits for that.
    #[inline]
    pub(super) fn tell(&mut self, slot: SlotId, done: &mut Done) {
        if !self.waiting.is_empty() {
            self.tell_each(slot, done.get_or_insert_default());
        }
    }

    #[cold]
    fn tell_each(&mut self, slot: SlotId, done: &mut Vec<Completion>) {
        let concerned = self.waiting.extract_if(.., |(of, _)| *of == slot);
        done.extend(concerned.map(|(_, completion)| completion));
    }
}

impl<M: Deref<Target = Map>> Locked<'_, M> {
    /// Whether another thread is about to give room back: it is deregistering, or
    /// registering what may become evictable.
    pub(crate) fn makes_room(&self) -> bool {
        self.is_burying(PageRange::ALL) || !self.writer.inflight.is_empty()
    }

    /// Whether graves in `range` are handed out that the backend has not yet taken back.
    pub(crate) fn is_burying(&self, range: PageRange) -> bool {
        let slots = self.writer.burying.iter().map(|&id| self.cache.slot(id));
        slots.filter(|slot| regions::range_of(slot).overlaps(range)).any(|slot| !regions::is_gone(slot))
    }

    /// Takes out a few of the regions that were used least recently and are not
    /// in use. Whether there were any.
    ///
    /// Several, because making sure that nobody holds one interrupts all threads
    /// that use the registry; one, where that is only this thread.
    pub(crate) fn evict(&mut self) -> bool {
        let few = if is_alone() { 1 } else { (self.writer.live.len() / 32).clamp(1, 16) };
        for evicted in 0..few {
            let cache = self.cache;
            let spare = |id| cache.counts.is_held(id) || regions::take_touched(cache.slot(id));
            let Some(id) = self.writer.live.victim(spare) else { return evicted > 0 };
            self.kill(id, Reason::Evicted);
        }
        true
    }

    /// Makes room: retires a few regions that nobody finds any more, or else some
    /// that were used least recently. `false` if there are none.
    #[inline(always)] // as `graves`
    pub(crate) fn make_room(&mut self) -> bool {
        let live = self.writer.live.len();
        let unfinished = self.writer.marks != 0 || self.writer.sweep != SlotId::MAX;
        if self.cache.map.has_changed() || unfinished {
            self.tidy();
        }
        self.writer.live.len() < live || self.evict()
    }

    /// Makes room, and hands out what can be taken back for it. Whether there is any.
    #[inline(never)] // small answers: what is begun next stays in the caller's registers
    pub(crate) fn take_graves(&mut self, graves: &mut Graves) -> bool {
        self.make_room();
        *graves = self.graves();
        !graves.list.is_empty()
    }

    /// At most a slice of the retired regions that nobody holds. Each is handed
    /// out once; the caller asks the backend, then calls [`buried`](Locked::buried).
    #[inline(always)] // its answer is large, and would be copied from frame to frame
    pub(crate) fn graves(&mut self) -> Graves {
        let cache = self.cache;
        let writer = &mut *self.writer;
        // If the kernel refuses to order the counts, nothing retired since can be
        // taken for unused, and stays.
        if !writer.dead.is_empty() && order_all_counts() {
            while let Some(id) = writer.dead.pop() {
                writer.ready.push(id);
            }
        }
        let mut list = std::mem::take(&mut writer.graves);
        let mut bytes = 0;
        while list.len() < SLICE
            && let Some(id) = writer.ready.pop()
        {
            if cache.counts.is_held(id) {
                writer.in_use.push(id);
            } else {
                let slot = cache.slot(id);
                let (key, range) = (regions::key_of(slot), regions::range_of(slot));
                let watched = regions::is_watched(slot);
                let is_timed = writer.deregistering.times_next();
                list.push(Grave { slot: id, key, range, watched, is_timed, ticks: None, failed: false });
                bytes += range.len();
                writer.burying.push(id);
            }
        }
        if list.is_empty() {
            writer.graves = list;
            return Graves::default();
        }
        Graves { list, bytes, lent: Room::default() }
    }

    /// Regions that were held may not be any more: `graves` looks again.
    pub(crate) fn look_again(&mut self) {
        let writer = &mut *self.writer;
        writer.ready.append(&mut writer.in_use);
    }

    /// No other thread can hold anything: the registry is going.
    pub(crate) fn nobody_is_left(&mut self) {
        let writer = &mut *self.writer;
        writer.ready.append(&mut writer.dead);
        self.look_again();
    }

    /// The backend has taken the registrations back. Who waits for one of them is
    /// to be dropped without the lock.
    #[must_use = "dropping it calls somebody back, which is not for under the lock"]
    #[inline]
    pub(crate) fn buried(&mut self, graves: Graves) -> Done {
        if graves.list.is_empty() { None } else { self.bury(graves) }
    }

    #[inline(never)]
    fn bury(&mut self, graves: Graves) -> Done {
        let mut done = None;
        let Graves { mut list, bytes, lent } = graves;
        let left = bytes - lent.bytes;
        let writer = &mut *self.writer;
        writer.regions -= list.len() - lent.regions;
        writer.pinned -= left;
        if left != 0 {
            self.cache.geometry.budget.give(left);
        }
        // Latest first: where one thread buries at a time, each is the last.
        while let Some(grave) = list.pop() {
            writer.tell(grave.slot, &mut done);
            if let Some(at) = writer.burying.iter().rposition(|&slot| slot == grave.slot) {
                writer.burying.swap_remove(at);
            }
            self.cache.slot(grave.slot).free();
            writer.free_slots.push(grave.slot);
            writer.counters.deregistrations += 1;
            writer.counters.failed_deregistrations += grave.failed as u64;
            writer.deregistering.add(grave.ticks);
        }
        writer.graves = list;
        done
    }
}
