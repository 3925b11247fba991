//! A registered region's slot, and the word on which hooks, readers and the
//! registry agree.
//!
//! ```text
//! FREE --begin--> COMING --publish--> LIVE --retire--> DEAD --free--> FREE
//!                    \______ mark: + STALE ______/
//! ```
//!
//! Only the registry moves a slot from phase to phase, under its lock. A hook
//! adds STALE, in any phase, with one fetch_or: whoever does not find it in the
//! word was first, and its change of phase then fails or comes before the mark.
//! The word carries a generation, so that a reader with an old slot number finds
//! a word that differs instead of memory that was freed.

use crate::array::Zero;
use crate::sync::{AtomicU32, AtomicU64};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Number of a slot; 0 is none.
pub type SlotId = u32;

const PHASE: u64 = 0b11;
const FREE: u64 = 0;
const COMING: u64 = 1;
const LIVE: u64 = 2;
const DEAD: u64 = 3;
const STALE: u64 = 0b100;
const GENERATION_SHIFT: u32 = 3;

/// Set in a map's count of changes of files, and in no epoch.
pub(super) const OF_FILES: u64 = 1 << 63;

/// A slot's word at some moment: generation, phase and mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State(u64);

impl State {
    /// The region can be found, and no event has touched it.
    #[inline]
    pub fn is_live(self) -> bool {
        self.0 & (PHASE | STALE) == LIVE
    }
    /// An event has touched the region since it began.
    #[inline]
    pub fn is_stale(self) -> bool {
        self.0 & STALE != 0
    }
    /// In the directory or about to be, marked or not.
    pub fn is_listed(self) -> bool {
        self.0 & PHASE == LIVE
    }
}

/// One region. Hooks read the first three words and write the first.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Slot {
    state: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    epoch: AtomicU64,
    /// The registry's own words: the keys.
    pub key: [AtomicU64; 3],
    /// The registry's own: what the registration allows.
    pub access: AtomicU32,
    /// The registry's own: set by a hit, cleared by the eviction hand.
    pub touched: AtomicU32,
}

// SAFETY: a struct of atomics, each of which zero bytes represent.
#[allow(unsafe_code)]
unsafe impl Zero for Slot {
    fn zero() -> Self {
        Slot {
            state: Zero::zero(),
            start: Zero::zero(),
            end: Zero::zero(),
            epoch: Zero::zero(),
            key: [Zero::zero(), Zero::zero(), Zero::zero()],
            access: Zero::zero(),
            touched: Zero::zero(),
        }
    }
}

impl Slot {
    /// The word. Acquire: fields read afterwards belong to this generation or a
    /// later one.
    #[inline]
    pub fn state(&self) -> State {
        State(self.state.load(Acquire))
    }

    /// The word again, in the total order with a counted reference: see the
    /// registry's `regions.rs`.
    #[inline]
    pub fn state_again(&self) -> State {
        State(self.state.load(SeqCst))
    }

    // A field is stored (Release) only after the word has left LIVE, and read
    // (Acquire) before the word is read again: whoever reads a newer field sees
    // a newer word.

    /// First byte and one past the last.
    #[inline]
    pub fn bounds(&self) -> (usize, usize) {
        (self.start.load(Acquire) as usize, self.end.load(Acquire) as usize)
    }

    /// The epoch in which the registration began; see [`Map::is_current`](super::Map::is_current).
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// The region has pages of a file: `files` is what [`Map::files`](super::Map::files) was when its
    /// registration began. Before it goes live.
    pub fn depends_on_files(&self, files: u64) {
        self.epoch.store(files, Release);
    }

    /// Whether the region has pages of a file.
    pub fn has_file_pages(&self) -> bool {
        self.epoch() & OF_FILES != 0
    }

    /// One past the last byte, if the slot is of a region in the directory that
    /// holds `at`. The entry that led here may be old: its leaf in use for another
    /// chunk, or the slot for a registration under way, over regions that are
    /// still served.
    #[inline]
    pub(crate) fn end_from(&self, at: usize) -> Option<usize> {
        let before = self.state();
        let (start, end) = self.bounds();
        // The same word but for a mark: the bounds are those of one region.
        let stands = before.is_listed() && (before.0 ^ self.state().0) & !STALE == 0;
        (stands && start <= at && at < end).then_some(end)
    }

    #[inline]
    pub(crate) fn overlaps(&self, first: usize, last: usize) -> bool {
        let (start, end) = self.bounds();
        start <= last && first < end
    }

    /// An event touched the region. `false` if one had already.
    #[inline]
    pub(crate) fn mark(&self) -> bool {
        // A mark stands until the registry has retired the region, so a second
        // one has nothing to add.
        if self.state.load(Acquire) & STALE != 0 {
            return false;
        }
        // AcqRel: pairs with the compare-and-swap of `go_live` and with readers'
        // loads: a `get` after the change reads the mark.
        self.state.fetch_or(STALE, AcqRel) & STALE == 0
    }

    // What follows is called by the registry, under its lock.

    /// Marks a registration under way, on behalf of an event that a hook left
    /// for later.
    pub fn spoil(&self) {
        self.mark();
    }

    /// FREE to COMING: fields first, for a hook that finds the slot.
    #[inline]
    pub fn begin(&self, start: usize, end: usize, epoch: u64) {
        let free = self.state.load(Relaxed);
        debug_assert_eq!(free & PHASE, FREE);
        self.start.store(start as u64, Release);
        self.end.store(end as u64, Release);
        self.epoch.store(epoch, Release);
        // Release: whoever reads this generation reads these fields. A mark that
        // was meant for the last generation goes, or comes late and costs a retry.
        self.state.store(((free >> GENERATION_SHIFT) + 1) << GENERATION_SHIFT | COMING, Release);
    }

    /// COMING to LIVE. `false`, and nothing done, if an event has marked it.
    #[must_use = "a marked region must not be found"]
    #[inline]
    pub fn go_live(&self) -> bool {
        let coming = self.state.load(Relaxed) & !STALE;
        debug_assert_eq!(coming & PHASE, COMING);
        // AcqRel: the keys are visible to whoever reads LIVE; in the word's order
        // it is before or after every mark.
        self.state.compare_exchange(coming, coming & !PHASE | LIVE, AcqRel, Acquire).is_ok()
    }

    /// To DEAD: from now on nobody finds the region. Its holders keep it.
    #[inline]
    pub fn retire(&self) {
        // Loses a mark that comes at the same time, which says no more than DEAD.
        let state = self.state.load(Relaxed);
        debug_assert!(matches!(state & PHASE, COMING | LIVE));
        // SeqCst: before the counts that the retirer reads. A swap, which costs what
        // such a store costs, so that the models know it to come after every mark.
        self.state.swap(state & !(PHASE | STALE) | DEAD, SeqCst);
    }

    /// DEAD to FREE: nobody holds the region any more.
    #[inline]
    pub fn free(&self) {
        let state = self.state.load(Relaxed);
        debug_assert_eq!(state & PHASE, DEAD);
        self.state.store(state & !(PHASE | STALE) | FREE, Release);
    }
}
