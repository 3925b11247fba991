//! References to regions: taken and given back without a lock, and without an
//! atomic read-modify-write where the thread has a shard of its own.
//!
//! A shard's count of a slot is what its threads took less what they gave back;
//! a lease that is dropped on another thread is subtracted there. Nobody holds a
//! region if the sum over the shards is 0. The proof that a retirer who reads 0
//! is right is Dekker's: a reader counts itself, then loads the slot's state; the
//! retirer sets the state, then adds the counts up. Between the two steps stands
//! a fence on either side, which for a shard of one's own is the compiler's on
//! the reader's side and membarrier(2) on the retirer's (`shards.rs`), so that
//! after it every reference that was ever granted is in the sum.

use crate::access::Access;
use crate::backend::MemoryKey;
use crate::range::{ByteRange, PageRange};
use crate::sync::{AtomicI64, SHARED, ever_used, light_fence, store_load_barrier};
use pinyard_hooks::Array;
use pinyard_hooks::map::{Map, Slot, SlotId, State};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// A counted reference: given back with [`Regions::release`], once. While it is
/// held the slot's fields stand still.
#[derive(Debug)]
#[must_use = "the region stays in use until this is released"]
pub(crate) struct Held(pub(crate) SlotId);

/// What a slot's own words say.
#[inline]
pub(crate) fn range_of(slot: &Slot) -> PageRange {
    let (start, end) = slot.bounds();
    PageRange { start, end }
}

#[inline]
pub(crate) fn key_of(slot: &Slot) -> MemoryKey {
    let [lkey, rkey, handle] = &slot.key;
    MemoryKey { lkey: lkey.load(Acquire), rkey: rkey.load(Acquire), handle: handle.load(Acquire) }
}

/// Before the slot goes live.
pub(crate) fn set_key(slot: &Slot, key: MemoryKey) {
    for (word, value) in slot.key.iter().zip([key.lkey, key.rkey, key.handle]) {
        word.store(value, Release);
    }
}

/// In `access`, above the flags: userfaultfd watches the range for this registration.
const WATCHED: u32 = 1 << 31;

#[inline]
pub(crate) fn access_of(slot: &Slot) -> Access {
    Access::from_bits_truncate(slot.access.load(Acquire))
}

/// Before the slot goes live.
pub(crate) fn set_access(slot: &Slot, access: Access, watched: bool) {
    slot.access.store(access.bits() | if watched { WATCHED } else { 0 }, Release);
}

pub(crate) fn is_watched(slot: &Slot) -> bool {
    slot.access.load(Acquire) & WATCHED != 0
}

/// Reads and clears the mark that hits leave.
pub(crate) fn take_touched(slot: &Slot) -> bool {
    slot.touched.load(Relaxed) != 0 && slot.touched.swap(0, AcqRel) != 0
}

/// In `touched` of a slot that nobody holds: the backend has taken it back.
const GONE: u32 = 2;

/// The backend has taken the retired slot's registration back.
pub(crate) fn set_gone(slot: &Slot) {
    // Release: pairs with `is_gone`; the backend's call is over.
    slot.touched.store(GONE, Release);
}

pub(crate) fn is_gone(slot: &Slot) -> bool {
    slot.touched.load(Acquire) == GONE
}

#[inline(always)]
fn serves(slot: &Slot, start: usize, len: usize, access: Access) -> bool {
    let (first, end) = slot.bounds();
    // Also refuses what lies below (it wraps), a length of 0 and one that wraps.
    let (offset, size) = (start.wrapping_sub(first), end.wrapping_sub(first));
    let lacks = access.bits() & !slot.access.load(Acquire) != 0;
    offset < size && len.wrapping_sub(1) < size - offset && !lacks
}

/// The counts of each shard. Slot 0, which is no region, counts the shard's hits.
pub(crate) struct Counts {
    /// Shard-major, so that two shards share no cache line.
    counts: Array<AtomicI64>,
    stride: usize,
}

impl Counts {
    /// Counts for slots below `slots`, on `shards` shards.
    pub(crate) fn new(slots: usize, shards: usize) -> Result<Counts, i32> {
        // A shard starts on a line pair of its own.
        let stride = slots.next_multiple_of(16);
        Ok(Counts { counts: Array::new(stride * shards)?, stride })
    }

    /// Makes the counts of `slots` resident for every thread that counts.
    #[cfg(not(loom))]
    pub(crate) fn make_resident(&self, slots: std::ops::Range<usize>) {
        for shard in ever_used() {
            let first = shard as usize * self.stride;
            self.counts.make_resident(first + slots.start..first + slots.end);
        }
    }

    #[inline]
    fn count(&self, id: SlotId, shard: u32) -> &AtomicI64 {
        &self.counts[shard as usize * self.stride + id as usize]
    }

    #[inline]
    fn add<const OWN: bool>(count: &AtomicI64, by: i64) {
        if OWN {
            // The thread's own: nobody else writes. Release: a holder's use of
            // the region is over before it is given back; pairs with `is_held`.
            count.store(count.load(Relaxed).wrapping_add(by), Release);
        } else {
            // SeqCst: before the state that is loaded next in the total order.
            count.fetch_add(by, SeqCst);
        }
    }

    /// Takes a reference if the slot is live, of the epoch, and serves the bytes;
    /// counts it as a hit.
    #[inline(always)]
    pub(crate) fn hit(
        &self,
        map: &Map,
        epoch: u64,
        start: usize,
        len: usize,
        access: Access,
        shard: u32,
    ) -> Option<Held> {
        if shard == SHARED {
            return self.hit_on_shared(map, epoch, start, len, access);
        }
        let held = self.acquire::<true>(map, epoch, start, len, access, shard)?;
        Self::add::<true>(self.count(0, shard), 1);
        Some(held)
    }

    #[cold]
    #[inline(never)]
    fn hit_on_shared(&self, map: &Map, epoch: u64, start: usize, len: usize, access: Access) -> Option<Held> {
        let held = self.acquire::<false>(map, epoch, start, len, access, SHARED)?;
        Self::add::<false>(self.count(0, SHARED), 1);
        Some(held)
    }

    /// As `hit`, but it is not counted as one.
    pub(crate) fn find(&self, map: &Map, epoch: u64, wanted: Wanted) -> Option<Held> {
        let Wanted { bytes: ByteRange { start, len }, access, shard } = wanted;
        match shard {
            SHARED => self.acquire::<false>(map, epoch, start, len, access, shard),
            _ => self.acquire::<true>(map, epoch, start, len, access, shard),
        }
    }

    #[inline(always)]
    fn acquire<const OWN: bool>(
        &self,
        map: &Map,
        epoch: u64,
        start: usize,
        len: usize,
        access: Access,
        shard: u32,
    ) -> Option<Held> {
        let id = map.directory().find(start);
        let slot = map.slots().get(id as usize)?;
        let state = slot.state();
        if !state.is_live() || !serves(slot, start, len, access) {
            return None;
        }
        if slot.epoch() != epoch {
            // At the end, so that a hit of private memory saves no registers for it.
            return self.acquire_of_files::<OWN>(map, id, state, epoch, shard);
        }
        self.refer::<OWN>(slot, id, state, shard)
    }

    #[cold]
    #[inline(never)]
    fn acquire_of_files<const OWN: bool>(
        &self,
        map: &Map,
        id: SlotId,
        state: State,
        epoch: u64,
        shard: u32,
    ) -> Option<Held> {
        let slot = map.slots().get(id as usize).filter(|slot| map.is_current(slot, epoch))?;
        self.refer::<OWN>(slot, id, state, shard)
    }

    /// Counts a reference, which is one if the slot's state is still this.
    #[inline(always)]
    fn refer<const OWN: bool>(&self, slot: &Slot, id: SlotId, state: State, shard: u32) -> Option<Held> {
        let count = self.count(id, shard);
        Self::add::<OWN>(count, 1);
        if OWN {
            light_fence()
        } else {
            store_load_barrier()
        }
        if slot.state_again() != state {
            Self::add::<OWN>(count, -1);
            return None;
        }
        if slot.touched.load(Relaxed) == 0 {
            slot.touched.store(1, Relaxed);
        }
        // The generation is the one whose fields were compared, and cannot
        // change while the reference is counted.
        Some(Held(id))
    }

    /// The key of a live slot that serves the bytes, without a reference.
    #[inline(always)]
    pub(crate) fn peek(map: &Map, epoch: u64, start: usize, len: usize, access: Access) -> Option<MemoryKey> {
        let slot = map.slots().get(map.directory().find(start) as usize)?;
        let state = slot.state();
        if !state.is_live() || !serves(slot, start, len, access) {
            return None;
        }
        if slot.epoch() != epoch {
            // At the end, so that a lookup of private memory saves no registers for it.
            return Self::peek_of_files(map, slot, state, epoch);
        }
        let key = key_of(slot);
        (slot.state() == state).then_some(key)
    }

    #[cold]
    #[inline(never)]
    fn peek_of_files(map: &Map, slot: &Slot, state: State, epoch: u64) -> Option<MemoryKey> {
        let key = key_of(slot);
        (map.is_current(slot, epoch) && slot.state() == state).then_some(key)
    }

    /// A reference to a slot that cannot be retired meanwhile, because the caller
    /// has the writer's lock and no fence has followed the slot's retirement.
    pub(crate) fn hold(&self, id: SlotId, shard: u32) -> Held {
        self.add_on(id, shard, 1);
        Held(id)
    }

    #[inline]
    fn add_on(&self, id: SlotId, shard: u32, by: i64) {
        let count = self.count(id, shard);
        if shard == SHARED { Self::add::<false>(count, by) } else { Self::add::<true>(count, by) }
    }

    /// Gives a reference back. Whoever retires a region that was in use looks
    /// again from time to time, so nothing is reported from here.
    #[inline]
    pub(crate) fn release(&self, Held(id): &Held, shard: u32) {
        self.add_on(*id, shard, -1);
    }

    /// Whether anybody holds a reference. Exact once the slot is retired and
    /// `order_all_counts` has followed: a sum that reads 0 then cannot rise again
    /// but for a reader about to give up. Before that, a guess.
    pub(crate) fn is_held(&self, id: SlotId) -> bool {
        let count = |shard| self.count(id, shard).load(SeqCst);
        ever_used().map(count).fold(0, i64::wrapping_add) != 0
    }

    /// Hits counted so far.
    pub(crate) fn hits(&self) -> u64 {
        ever_used().map(|shard| self.count(0, shard).load(Relaxed) as u64).sum()
    }
}

/// What a `get` asks for, and the shard that counts its reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) bytes: ByteRange,
    pub(crate) access: Access,
    pub(crate) shard: u32,
}
