//! The map: where every registered region lies, and what an event does to it.
//!
//! A hook does not queue what it sees. It walks the directory and marks the
//! regions that it meets, in place: a constant number of atomic operations for
//! each, whatever other events are pending, and nothing that could overflow. A
//! reader sees the mark in the word that it reads anyway, so a hit elsewhere is
//! as fast as ever while the registry has yet to retire what was marked.
//!
//! ```text
//! event   Map::publish -> registrations under way: mark
//!                      -> Directory::next … Slot::mark, and a bit in `changed`
//!                      -> too wide to walk: `later`, and every reader asks the registry
//! file    Map::publish_file -> a count, which regions with pages of a file compare
//! hit     Map::news, Directory::find, Slot::state
//! retire  registry: Map::take_changed, Map::begin_drain
//! ```
//!
//! Written by one registry under its lock, but for marks.

mod directory;
mod slot;

pub use directory::{CHUNK_SHIFT, Directory, FANOUT, IS_SLOT, Next, SECTION_SHIFT, next_boundary};
pub use slot::{Slot, SlotId, State};

use crate::array::Array;
use crate::event::Event;
use crate::inbox::Inbox;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, COMING, LATER, LOADS};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use crossbeam_utils::CachePadded;
use slot::OF_FILES;

/// Events wait in `later`.
const PENDING: u64 = 0b01;
/// The registry is applying events that it took from `later`.
const DRAINING: u64 = 0b10;
const FLAGS: u64 = PENDING | DRAINING;
/// One epoch.
const EPOCH: u64 = 0b100;
/// What a mark costs a hook, in entries read.
const MARK_LOADS: u32 = 16;

/// How large a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSize {
    /// Slots, number 0 not counted.
    pub slots: usize,
    /// Leaves of the directory, number 0 not counted.
    pub leaves: usize,
    /// Addresses below this can be entered.
    pub address_limit: usize,
}

/// See the module.
pub struct Map {
    /// Epoch and flags. A region is found only by who reads the epoch in which
    /// it began, without a flag.
    news: CachePadded<AtomicU64>,
    /// [`OF_FILES`], and how often a file has changed.
    files: CachePadded<AtomicU64>,
    coming: CachePadded<ComingSet>,
    directory: Directory,
    slots: Array<Slot>,
    /// A bit for each slot that was marked and not yet retired.
    changed: Array<AtomicU64>,
    /// Some bit of `changed` is likely to be set.
    any_changed: CachePadded<AtomicBool>,
    /// One, which costs nothing until a wide event comes.
    later: Array<Inbox<LATER>>,
    size: MapSize,
}

/// The registrations under way, which are not in the directory yet: `mask` has a
/// bit for each entry of `slots` in use.
struct ComingSet {
    mask: AtomicU64,
    slots: [AtomicU32; COMING],
}

impl Map {
    /// An empty map. The error is mmap's errno.
    pub fn new(size: MapSize) -> Result<Map, i32> {
        Ok(Map {
            news: CachePadded::new(AtomicU64::new(0)),
            files: CachePadded::new(AtomicU64::new(OF_FILES)),
            coming: CachePadded::new(ComingSet {
                mask: AtomicU64::new(0),
                slots: core::array::from_fn(|_| AtomicU32::new(0)),
            }),
            directory: Directory::new(size.leaves + 1, size.address_limit)?,
            slots: Array::new(size.slots + 1)?,
            changed: Array::new((size.slots + 1).div_ceil(64))?,
            any_changed: CachePadded::new(AtomicBool::new(false)),
            later: Array::new(1)?,
            size,
        })
    }

    /// How large it is.
    pub fn size(&self) -> MapSize {
        self.size
    }

    /// The directory.
    #[inline]
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// All slots.
    #[inline]
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Makes the pages of these slots and leaves resident; see
    /// [`Array::make_resident`].
    #[cfg(not(loom))]
    pub fn make_resident(&self, slots: core::ops::Range<usize>, leaves: core::ops::Range<usize>) {
        self.slots.make_resident(slots);
        self.directory.leaves.make_resident(leaves.start * FANOUT..leaves.end * FANOUT);
    }

    /// What a region's [`epoch`](Slot::epoch) must equal for it to be served:
    /// an epoch, or a word that equals none while events wait.
    #[inline]
    pub fn news(&self) -> u64 {
        // Acquire: pairs with `finish_drain`; the reader sees all that it retired.
        self.news.load(Acquire)
    }

    /// The epoch that a registration begins in.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.news() & !FLAGS
    }

    /// What the [`epoch`](Slot::epoch) of a region that has pages of a file must equal for it to be
    /// served: it changes with each change of any file, and with the epoch.
    #[inline]
    pub fn files(&self) -> u64 {
        // Acquire: as `news`.
        self.files.load(Acquire)
    }

    /// Whether the slot is of the epoch that `news` says; for a region that has pages of a file,
    /// whether no file has changed since its registration began either.
    #[inline(always)]
    pub fn is_current(&self, slot: &Slot, news: u64) -> bool {
        let epoch = slot.epoch();
        epoch == news || epoch & OF_FILES != 0 && self.is_current_of_files(epoch, news)
    }

    #[inline(never)] // off the path of private memory
    fn is_current_of_files(&self, epoch: u64, news: u64) -> bool {
        news & FLAGS == 0 && epoch == self.files()
    }

    /// Whether [`publish`](Map::publish) has anything to look at: most events lie in
    /// one chunk where nothing is registered.
    #[inline]
    pub(crate) fn may_touch(&self, start: usize, last: usize) -> bool {
        // Registrations under way first: see `publish`.
        let chunk = start >> CHUNK_SHIFT;
        self.coming.mask.load(Acquire) != 0
            || chunk != last >> CHUNK_SHIFT
            || self.directory.chunks.get(chunk).is_some_and(|entry| entry.load(Acquire) != 0)
    }

    /// The bytes `start..=last` are about to change. What a hook does.
    ///
    /// Wait-free; safe in a signal handler and inside malloc.
    #[inline]
    pub fn publish(&self, start: usize, last: usize) {
        // Registrations under way first: one that lands meanwhile is either still
        // listed here, or in the directory by the time it is not (Acquire: pairs
        // with `coming_landed`).
        let mask = self.coming.mask.load(Acquire);
        if mask != 0 {
            self.mark_coming(mask, start, last);
        }
        self.mark_listed(start, last);
    }

    /// Anything may have changed.
    #[inline]
    pub fn publish_everything(&self) {
        // No region that began in an earlier epoch is found from now on. AcqRel, both:
        // pairs with `files` and `news`.
        self.files.fetch_add(1, AcqRel);
        self.news.fetch_add(EPOCH, AcqRel);
    }

    /// Some file is about to change: any region that has pages of a file may lose them.
    pub fn publish_file(&self) {
        // AcqRel: pairs with `files`.
        self.files.fetch_add(1, AcqRel);
        // The registry retires them when it looks next.
        self.any_changed.store(true, Release);
    }

    #[inline(never)]
    fn mark_coming(&self, mut mask: u64, start: usize, last: usize) {
        while mask != 0 {
            let at = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            let id = self.coming.slots.get(at).map_or(0, |slot| slot.load(Acquire));
            if self.slots.get(id as usize).is_some_and(|slot| slot.overlaps(start, last)) {
                self.mark(id);
            }
        }
    }

    #[inline(never)]
    fn mark_listed(&self, start: usize, last: usize) {
        let (mut at, mut loads) = (start, LOADS);
        while at <= last {
            match self.directory.next(&mut at, last, &mut loads) {
                Next::Slot(id) => {
                    self.mark(id);
                    loads = loads.saturating_sub(MARK_LOADS);
                    let end = self.slots.get(id as usize).and_then(|slot| slot.end_from(at));
                    at = end.unwrap_or_else(|| next_boundary(at, crate::event::PAGE_SHIFT));
                }
                Next::End => return,
                Next::Tired => return self.leave_for_later(at, last),
            }
        }
    }

    fn mark(&self, id: SlotId) {
        if self.slots.get(id as usize).is_some_and(Slot::mark)
            && let Some(word) = self.changed.get(id as usize / 64)
        {
            // Release: pairs with `take_changed`, which then sees the mark.
            word.fetch_or(1 << (id % 64), Release);
            self.any_changed.store(true, Release);
        }
    }

    #[cold]
    fn leave_for_later(&self, start: usize, last: usize) {
        // Above the directory nothing is listed: a change up to the end of all addresses
        // may still fit into an event.
        let last = last.min((self.directory.chunks.len() << CHUNK_SHIFT) - 1);
        match (Event::new(start, (last - start).saturating_add(1)), self.later.first()) {
            (Some(event), Some(later)) => {
                later.push(event);
                // AcqRel: pairs with `begin_drain`, which then finds the event.
                self.news.fetch_or(PENDING, AcqRel);
            }
            _ => self.publish_everything(),
        }
    }

    // What follows is called by the registry, under its lock.

    /// Enters a slot that has [begun](Slot::begin): hooks mark it from now on.
    /// `None` if too many are under way.
    #[inline]
    pub fn coming(&self, id: SlotId) -> Option<usize> {
        let mask = self.coming.mask.load(Relaxed);
        let at = mask.trailing_ones() as usize;
        self.coming.slots.get(at)?.store(id, Release);
        // Release: whoever sees the bit sees the slot's number and its fields.
        self.coming.mask.store(mask | 1 << at, Release);
        Some(at)
    }

    /// The registration is in the directory, or has been given up.
    #[inline]
    pub fn landed(&self, at: usize) {
        // Release: whoever no longer sees the bit sees the directory's entries.
        self.coming.mask.store(self.coming.mask.load(Relaxed) & !(1 << at), Release);
    }

    /// Whether slots were marked since the last answer. A hint: `take_changed`
    /// may find marks all the same.
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.any_changed.load(Relaxed) && self.any_changed.swap(false, AcqRel)
    }

    /// Takes the marks of the slots below `below`, at most a word's worth of
    /// slots more than `limit`, from word `from` on. Where to go on, or `None`
    /// when all have been seen.
    pub fn take_changed(
        &self,
        from: usize,
        below: SlotId,
        mut limit: usize,
        mut each: impl FnMut(SlotId),
    ) -> Option<usize> {
        let words = (below as usize).div_ceil(64).min(self.changed.len());
        for (index, word) in self.changed.iter().enumerate().take(words).skip(from) {
            if limit == 0 {
                return Some(index);
            }
            // AcqRel: pairs with `mark`.
            let mut bits = if word.load(Relaxed) == 0 { 0 } else { word.swap(0, AcqRel) };
            limit = limit.saturating_sub(bits.count_ones() as usize);
            while bits != 0 {
                each(index as SlotId * 64 + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
        None
    }

    /// Takes the events that hooks left. No reader is served until
    /// [`finish_drain`](Map::finish_drain).
    pub fn begin_drain(&self, each: impl FnMut(Event)) {
        let news = self.news();
        if news & PENDING == 0 {
            return;
        }
        // Two steps, so that no moment is without a flag. AcqRel: pairs with
        // `leave_for_later`.
        self.news.fetch_or(DRAINING, AcqRel);
        self.news.fetch_and(!PENDING, AcqRel);
        let Some(later) = self.later.first() else { return };
        let mark = later.begin();
        if later.take(each) {
            self.publish_everything();
        }
        later.finish(mark);
    }

    /// What was taken has been applied. Readers are served again unless more has
    /// come.
    pub fn finish_drain(&self) {
        // Release: pairs with `news`.
        self.news.fetch_and(!DRAINING, AcqRel);
    }

    /// Forgets everything, for the next registry. The caller's was the last
    /// reader; a hook that is late finds nothing, or leaves a needless mark.
    #[cfg(not(loom))]
    pub(crate) fn clear(&self) {
        self.publish_everything();
        self.begin_drain(|_| ());
        self.finish_drain();
        self.coming.mask.store(0, Release);
        self.directory.clear();
        self.slots.clear();
        self.changed.clear();
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    extern crate std;
    use core::sync::atomic::Ordering::SeqCst;
    use std::vec::Vec;

    const PAGE: usize = 1 << crate::event::PAGE_SHIFT;
    const CHUNK: usize = 1 << CHUNK_SHIFT;
    const AT: usize = 1 << 40;

    /// A map with one-page regions at `pages`, counted from `AT`, in one leaf a chunk.
    fn with(pages: impl IntoIterator<Item = usize>) -> (Map, usize) {
        let map = Map::new(MapSize { slots: 100_000, leaves: 100_000, address_limit: 1 << 47 }).unwrap();
        let mut count = 0;
        for page in pages {
            count += 1;
            let at = AT + page * PAGE;
            let leaf = (page / FANOUT + 1) as u32;
            map.slots[count].begin(at, at + PAGE, map.epoch());
            assert!(map.slots[count].go_live());
            map.directory.sections[at >> SECTION_SHIFT].fetch_add(1, SeqCst);
            map.directory.chunks[at >> CHUNK_SHIFT].store(leaf, SeqCst);
            map.directory.leaves[leaf as usize * FANOUT + page % FANOUT].store(count as u32, SeqCst);
        }
        (map, count)
    }

    fn stale(map: &Map, count: usize) -> Vec<usize> {
        (1..=count).filter(|&id| map.slots[id].state().is_stale()).collect()
    }

    #[test]
    fn an_event_marks_what_it_touches_and_nothing_else() {
        let (map, count) = with([0, 1, 2, 511, 512, 2000]);
        map.publish(AT + PAGE + 17, AT + 2 * PAGE);
        assert_eq!(stale(&map, count), [2, 3]);
        map.publish(AT + 511 * PAGE, AT + 512 * PAGE);
        assert_eq!(stale(&map, count), [2, 3, 4, 5]);
        map.publish(AT + 513 * PAGE, AT + 2000 * PAGE - 1);
        assert_eq!(stale(&map, count), [2, 3, 4, 5], "between two regions");
        let mut taken = Vec::new();
        assert!(map.has_changed() && !map.has_changed());
        assert_eq!(map.take_changed(0, 100, 100, |id| taken.push(id)), None);
        assert_eq!(taken, [2, 3, 4, 5]);
        assert_eq!(map.news(), map.epoch(), "nothing was left for later");
    }

    /// From where an event meets it, a region is passed over in one step.
    #[test]
    fn an_event_over_a_large_region_leaves_nothing_for_later() {
        const PAGES: usize = 8 * FANOUT;
        let (map, _) = with([]);
        map.slots[1].begin(AT, AT + PAGES * PAGE, map.epoch());
        assert!(map.slots[1].go_live());
        map.directory.sections[AT >> SECTION_SHIFT].fetch_add(8, SeqCst);
        for chunk in 0..8 {
            map.directory.chunks[(AT >> CHUNK_SHIFT) + chunk].store(chunk as u32 + 1, SeqCst);
        }
        (FANOUT..9 * FANOUT).for_each(|at| map.directory.leaves[at].store(1, SeqCst));
        map.publish(AT, AT + PAGES * PAGE - 1);
        assert_eq!((stale(&map, 1), map.news()), (std::vec![1], map.epoch()));
    }

    /// Pages of these values that are in memory.
    #[allow(unsafe_code)]
    fn resident<T>(values: &[T]) -> usize {
        let (at, bytes) = (values.as_ptr().addr() & !(PAGE - 1), size_of_val(values));
        let mut pages = [0_u8; 1024];
        assert!(bytes <= (pages.len() - 1) * PAGE);
        // SAFETY: writes a byte for each page, of which there are no more than in `pages`.
        assert_eq!(unsafe { libc::mincore(at as *mut _, bytes, pages.as_mut_ptr()) }, 0);
        pages.iter().filter(|&&page| page & 1 != 0).count()
    }

    #[test]
    #[allow(unsafe_code, clippy::disallowed_macros)] // says why it is skipped
    fn slots_and_leaves_are_made_resident_before_they_are_written() {
        let (map, _) = with([]);
        let one = &map.slots[..1];
        let at = one.as_ptr().addr() & !(PAGE - 1);
        // SAFETY: the map's own page; the advice changes no contents.
        let done = unsafe { crate::sys::madvise(at, PAGE, libc::MADV_POPULATE_WRITE) };
        if done.is_err() || resident(one) == 0 {
            // Before Linux 5.14; an emulator ignores the advice.
            return std::eprintln!("skipped: MADV_POPULATE_WRITE makes nothing resident here: {done:?}");
        }
        let slots = &map.slots[1000..2000];
        let leaves = &map.directory.leaves[10 * FANOUT..20 * FANOUT];
        assert_eq!((resident(slots), resident(leaves)), (0, 0));
        map.make_resident(1000..2000, 10..20);
        assert!(
            resident(slots) * PAGE >= size_of_val(slots) && resident(leaves) * PAGE >= size_of_val(leaves)
        );
    }

    #[test]
    fn an_event_over_empty_terabytes_is_walked_to_its_end() {
        let (map, count) = with([0]);
        map.publish(AT - (3 << 40) / 4, AT + 1);
        assert_eq!((stale(&map, count), map.news()), ([1].to_vec(), map.epoch()));
    }

    #[test]
    fn an_event_that_holds_too_much_is_left_for_later() {
        let (map, count) = with((0..4000).map(|index| index * 2));
        map.publish(AT, AT + 8000 * PAGE);
        let marked = stale(&map, count).len();
        assert!((200..4000).contains(&marked), "{marked}");
        assert_ne!(map.news(), map.epoch(), "no reader is served");
        let mut left = Vec::new();
        map.begin_drain(|event| left.push((event.start(), event.end())));
        assert_ne!(map.news(), map.epoch(), "until it has been applied");
        let [(start, end)] = left[..] else { panic!("{left:?}") };
        let first_left = AT + marked * 2 * PAGE;
        assert!((first_left - PAGE..=first_left).contains(&start) && end == AT + 8001 * PAGE);
        map.finish_drain();
        assert_eq!(map.news(), map.epoch());
    }

    /// Invariant 4: more than fit become wider, and what fits into none takes everything out.
    #[test]
    fn more_wide_events_than_fit_are_widened_and_wider_than_any_begin_an_epoch() {
        let (map, _) = with((0..4000).map(|index| index * 2));
        let before = map.epoch();
        for event in 0..100 * LATER {
            map.publish(AT, AT + (8000 + event) * PAGE);
        }
        assert_ne!(map.news(), before, "no reader is served");
        let mut last = 0;
        map.begin_drain(|event| last = last.max(event.end()));
        map.finish_drain();
        assert_eq!((map.epoch(), last), (before, AT + (8000 + 100 * LATER) * PAGE));
        map.publish(0, usize::MAX);
        assert_ne!(map.epoch(), before, "wider than any event");
    }

    /// A storm of wide events from four threads over a twentieth of all regions, in
    /// some areas, that nobody drains: what they touched, and what is taken out for it.
    fn storm(regions: usize, stride: usize, areas: usize, at_least: usize) -> (usize, usize) {
        const THREADS: usize = 4;
        let (map, _) = with((0..regions).map(|index| index * stride));
        let (size, apart) = (regions / 20 / areas, regions / areas);
        let publish = |seed: usize| {
            let mut touched = std::vec![false; regions];
            let mut random = seed as u64 + 1;
            let mut below = |limit: usize| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as usize % limit
            };
            for event in 0..6_000 / THREADS {
                let first = below(size - at_least);
                let count = at_least + below(size - at_least - first + 1);
                let first = event % areas * apart + first;
                touched[first..first + count].fill(true);
                map.publish(AT + first * stride * PAGE, AT + (first + count - 1) * stride * PAGE);
            }
            touched
        };
        let mut touched = std::vec![false; regions];
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|seed| scope.spawn(move || publish(seed))).collect();
            for thread in threads {
                touched.iter_mut().zip(thread.join().unwrap()).for_each(|(all, its)| *all |= its);
            }
        });
        let mut out: Vec<bool> = map.slots[1..=regions].iter().map(|slot| slot.state().is_stale()).collect();
        let epoch = map.epoch();
        map.begin_drain(|event| {
            let first = event.start().saturating_sub(AT).div_ceil(stride * PAGE).min(regions);
            let end = event.end().saturating_sub(AT).div_ceil(stride * PAGE).min(regions);
            out[first..end].fill(true);
        });
        map.finish_drain();
        assert_eq!(map.epoch(), epoch, "everything was taken out");
        assert!(touched.iter().zip(&out).all(|(touched, out)| out >= touched), "an event was lost");
        let count = |of: &[bool]| of.iter().filter(|&&is| is).count();
        (count(&touched), count(&out))
    }

    /// Invariant 4: what finds no place takes out what is near by, and not everything.
    #[test]
    fn a_storm_of_wide_events_takes_out_at_most_twice_what_it_touched() {
        let dense = [(1, 500), (10, 300)].map(|(areas, at_least)| (100_000, 2, areas, at_least));
        let sparse =
            [(10, 20), (50, 10), (100, 9)].map(|(areas, at_least)| (20_000, FANOUT, areas, at_least));
        for (regions, stride, areas, at_least) in dense.into_iter().chain(sparse) {
            let (touched, out) = storm(regions, stride, areas, at_least);
            assert!(out <= 2 * touched, "{areas} areas: {out} taken out, {touched} touched");
        }
    }

    /// What the hook of shmdt says: everything above an address.
    #[test]
    fn an_event_to_the_end_of_all_addresses_spares_what_lies_below() {
        let map = Map::new(MapSize { slots: 1, leaves: 1, address_limit: 1 << 40 }).unwrap();
        map.leave_for_later(1 << 39, usize::MAX);
        let mut left = Vec::new();
        map.begin_drain(|event| left.push((event.start(), event.end())));
        map.finish_drain();
        assert_eq!((left, map.epoch()), ([(1 << 39, 1 << 40)].to_vec(), map.news()));
    }

    #[test]
    fn a_registration_under_way_is_marked_wherever_it_lies() {
        let (map, _) = with([]);
        map.slots[7].begin(AT, AT + CHUNK, map.epoch());
        let at = map.coming(7).unwrap();
        map.publish(AT + CHUNK, AT + 2 * CHUNK);
        assert!(!map.slots[7].state().is_stale());
        map.publish(0, AT);
        assert!(!map.slots[7].go_live());
        map.landed(at);
        for id in 0..COMING {
            assert_eq!(map.coming(id as u32 + 1), Some(id));
        }
        assert_eq!(map.coming(100), None);
    }
}
