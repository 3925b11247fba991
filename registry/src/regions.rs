//! The region table: a fixed slot per registration, read without a lock.
//!
//! A slot's state word carries a generation, so a reader that arrives with an
//! old slot number finds a tag that differs instead of memory that was freed.
//!
//! References are counted per shard, each thread on its own: no line that a
//! second thread writes is written on a hit. The proof that nobody keeps a
//! region that is being retired is Dekker's: a reader counts itself, then loads
//! the state; the retirer sets the state, then adds the counts up. In the total
//! order of those SeqCst accesses one of the two sees the other.

use crate::access::Access;
use crate::array::Array;
use crate::backend::MemoryKey;
use crate::range::{ByteRange, PageRange};
use crate::sync::{AtomicU32, AtomicU64, Zero, store_load_barrier};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Number of a slot; 0 is none.
pub(crate) type SlotId = u32;

const PHASE_BITS: u32 = 2;
const PHASE: u64 = (1 << PHASE_BITS) - 1;
const FREE: u64 = 0;
const LIVE: u64 = 1;
const DEAD: u64 = 2;

/// A shard's word for a slot: references now, and those given back so far.
const REFERENCE: u64 = 1;
const REFERENCES: u64 = (1 << 24) - 1;
const GIVEN_BACK: u64 = 1 << 24;
/// Where a further reference is refused, far below the overflow.
const MOST_REFERENCES: u64 = 1 << 23;

#[repr(align(64))]
struct Slot {
    /// generation << 2 | phase
    state: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    lkey: AtomicU64,
    rkey: AtomicU64,
    handle: AtomicU64,
    access: AtomicU32,
    /// Set by a hit, cleared by the eviction hand.
    touched: AtomicU32,
}

impl Zero for Slot {
    fn zero() -> Self {
        Slot {
            state: Zero::zero(),
            start: Zero::zero(),
            end: Zero::zero(),
            lkey: Zero::zero(),
            rkey: Zero::zero(),
            handle: Zero::zero(),
            access: Zero::zero(),
            touched: Zero::zero(),
        }
    }
}

impl Slot {
    // A field is stored (Release) only after the state has left LIVE, and read
    // (Acquire) before the state is read again: whoever reads a newer field sees
    // a newer state.
    #[inline]
    fn key(&self) -> MemoryKey {
        MemoryKey {
            lkey: self.lkey.load(Acquire),
            rkey: self.rkey.load(Acquire),
            handle: self.handle.load(Acquire),
        }
    }

    #[inline]
    fn range(&self) -> PageRange {
        PageRange { start: self.start.load(Acquire) as usize, end: self.end.load(Acquire) as usize }
    }

    #[inline]
    fn serves(&self, range: ByteRange, access: Access) -> bool {
        let allowed = Access::from_bits_retain(self.access.load(Acquire));
        self.start.load(Acquire) as usize <= range.start
            && range.end <= self.end.load(Acquire) as usize
            && allowed.contains(access)
    }
}

/// A counted reference: given back with [`Regions::release`], once. While it is
/// held the slot's fields stand still.
#[derive(Debug)]
#[must_use = "the region stays in use until this is released"]
pub(crate) struct Held {
    pub(crate) slot: SlotId,
    pub(crate) shard: u32,
}

/// All slots, and the counts of each shard.
pub(crate) struct Regions {
    slots: Array<Slot>,
    /// Shard-major, so that two shards share no cache line.
    counts: Array<AtomicU64>,
    shards: usize,
}

impl Regions {
    /// `slots` regions at most, and references counted on `shards` shards.
    pub(crate) fn new(slots: usize, shards: usize) -> Result<Regions, i32> {
        let slots = slots + 1; // number 0 is none
        // A shard starts on a line pair of its own.
        let stride = slots.next_multiple_of(16);
        Ok(Regions { slots: Array::new(stride)?, counts: Array::new(stride * shards)?, shards })
    }

    fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id as usize]
    }

    #[inline]
    fn count(&self, id: SlotId, shard: u32) -> &AtomicU64 {
        &self.counts[shard as usize * self.slots.len() + id as usize]
    }

    /// Takes a reference if the slot is live and serves the bytes.
    #[inline]
    pub(crate) fn acquire(&self, id: SlotId, range: ByteRange, access: Access, shard: u32) -> Option<Held> {
        let slot = self.slots.get(id as usize)?;
        let state = slot.state.load(Acquire);
        if state & PHASE != LIVE || !slot.serves(range, access) {
            return None;
        }
        let count = self.count(id, shard);
        // SeqCst: before the state below in the total order; see the module.
        let before = count.fetch_add(REFERENCE, SeqCst);
        store_load_barrier();
        if slot.state.load(SeqCst) != state || before & REFERENCES >= MOST_REFERENCES {
            count.fetch_sub(REFERENCE, Release);
            return None;
        }
        if slot.touched.load(Relaxed) == 0 {
            slot.touched.store(1, Relaxed);
        }
        // The generation is the one whose fields were compared, and cannot
        // change while the reference is counted.
        Some(Held { slot: id, shard })
    }

    /// The key of a live slot that serves the bytes, without a reference.
    #[inline]
    pub(crate) fn peek(&self, id: SlotId, range: ByteRange, access: Access) -> Option<MemoryKey> {
        let slot = self.slots.get(id as usize)?;
        let state = slot.state.load(Acquire);
        if state & PHASE != LIVE || !slot.serves(range, access) {
            return None;
        }
        let key = slot.key();
        (slot.state.load(Acquire) == state).then_some(key)
    }

    /// Gives a reference back. Whoever retires a region that was in use looks
    /// again from time to time, so nothing is reported from here.
    #[inline]
    pub(crate) fn release(&self, held: &Held) {
        // Release: the holder's use of the region is over; pairs with the SeqCst
        // load in `is_held`. One addition takes the reference away and counts it
        // as given back.
        self.count(held.slot, held.shard).fetch_add(GIVEN_BACK - REFERENCE, Release);
    }

    /// Whether anybody holds a reference. Exact once the slot is dead: a count
    /// that reads 0 then cannot rise again but for a reader about to give up.
    pub(crate) fn is_held(&self, id: SlotId) -> bool {
        store_load_barrier();
        // SeqCst: after `kill` in the total order; see the module.
        (0..self.shards as u32).any(|shard| self.count(id, shard).load(SeqCst) & REFERENCES != 0)
    }

    /// References taken and given back on the slot since it was first used, and
    /// those held now.
    pub(crate) fn references(&self, id: SlotId) -> u64 {
        let word = |shard| self.count(id, shard).load(Relaxed);
        (0..self.shards as u32).map(|shard| word(shard) / GIVEN_BACK + (word(shard) & REFERENCES)).sum()
    }

    // What follows is called under the writer's lock.

    /// Makes a free slot a live region.
    pub(crate) fn publish(&self, id: SlotId, range: PageRange, access: Access, key: MemoryKey) {
        let slot = self.slot(id);
        let free = slot.state.load(Relaxed);
        debug_assert_eq!(free & PHASE, FREE);
        slot.start.store(range.start as u64, Release);
        slot.end.store(range.end as u64, Release);
        slot.access.store(access.bits(), Release);
        slot.lkey.store(key.lkey, Release);
        slot.rkey.store(key.rkey, Release);
        slot.handle.store(key.handle, Release);
        slot.touched.store(0, Relaxed);
        // Release: whoever reads this generation reads these fields.
        slot.state.store(((free >> PHASE_BITS) + 1) << PHASE_BITS | LIVE, Release);
    }

    /// From now on nobody finds the region. Its holders keep it.
    pub(crate) fn kill(&self, id: SlotId) {
        let state = &self.slot(id).state;
        let live = state.load(Relaxed);
        debug_assert_eq!(live & PHASE, LIVE);
        // SeqCst: before the counts of `is_held` in the total order.
        state.swap(live & !PHASE | DEAD, SeqCst);
    }

    /// Makes a dead slot that nobody holds free again.
    pub(crate) fn free(&self, id: SlotId) {
        let state = &self.slot(id).state;
        let dead = state.load(Relaxed);
        debug_assert_eq!(dead & PHASE, DEAD);
        state.store(dead & !PHASE | FREE, Release);
    }

    #[inline]
    pub(crate) fn range_of(&self, id: SlotId) -> PageRange {
        self.slot(id).range()
    }

    #[inline]
    pub(crate) fn key_of(&self, id: SlotId) -> MemoryKey {
        self.slot(id).key()
    }

    pub(crate) fn access_of(&self, id: SlotId) -> Access {
        Access::from_bits_retain(self.slot(id).access.load(Relaxed))
    }

    /// Reads and clears the mark that hits leave.
    pub(crate) fn take_touched(&self, id: SlotId) -> bool {
        self.slot(id).touched.swap(0, AcqRel) != 0
    }
}
