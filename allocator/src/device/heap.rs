//! Ranges of the pool's slabs: split, merged with free neighbours of the same
//! owner, found in constant time. Under the pool's lock.
#![allow(unsafe_code)]

use super::block::{ANYBODY, Arena, BlockRef, Owner, Stack, State};
use super::classes::{GRAIN, Kind};
use super::index::Index;
use super::slab::Slab;
use std::collections::BTreeMap;

/// Memory without a gap: one slab, or several that follow one another.
struct Area {
    /// Descriptors of no bytes at both ends.
    first: BlockRef,
    last: BlockRef,
}

#[derive(Default)]
pub(super) struct Heap {
    arena: Arena,
    /// By owner; kinds by number.
    indexes: Vec<[Option<Box<Index>>; 2]>,
    areas: Vec<Area>,
    /// By address.
    slabs: BTreeMap<u64, Box<Slab>>,
    /// Bytes of these, kinds by number.
    bytes: [usize; 2],
    /// Counts `detach_idle`.
    tick: u32,
}

impl Heap {
    fn index(&mut self, owner: Owner, kind: Kind) -> &mut Index {
        let at = owner as usize;
        if self.indexes.len() <= at {
            self.indexes.resize_with(at + 1, || [None, None]);
        }
        self.indexes[at][kind as usize].get_or_insert_with(Index::new)
    }

    /// A descriptor without a range.
    pub(super) fn make(&mut self) -> BlockRef {
        self.arena.make()
    }

    pub(super) fn recycle(&mut self, block: BlockRef) {
        self.arena.recycle(block);
    }

    /// Every descriptor, of memory or not.
    pub(super) fn descriptors(&self) -> impl ExactSizeIterator<Item = BlockRef> + '_ {
        self.arena.all()
    }

    pub(super) fn slabs(&self) -> impl Iterator<Item = &Slab> {
        self.slabs.values().map(|slab| &**slab)
    }

    pub(super) fn slab_count(&self) -> usize {
        self.slabs.len()
    }

    /// Bytes of all slabs of `kind`.
    pub(super) fn slab_bytes(&self, kind: Kind) -> usize {
        self.bytes[kind as usize]
    }

    /// Bytes free for `owner`.
    pub(super) fn free_bytes(&self, owner: Owner) -> usize {
        Kind::ALL.into_iter().map(|kind| self.free_bytes_of(owner, kind)).sum()
    }

    /// The same of one kind.
    pub(super) fn free_bytes_of(&self, owner: Owner, kind: Kind) -> usize {
        self.index_of(owner, kind).map_or(0, Index::bytes)
    }

    fn index_of(&self, owner: Owner, kind: Kind) -> Option<&Index> {
        self.indexes.get(owner as usize)?[kind as usize].as_deref()
    }

    /// A length that some range of `owner`'s has at least.
    pub(super) fn longest(&self, owner: Owner, kind: Kind) -> usize {
        self.index_of(owner, kind).map_or(0, Index::longest)
    }

    /// Bytes free for anybody or for one stream.
    pub(super) fn all_free_bytes(&self) -> usize {
        (0..self.indexes.len()).map(|owner| self.free_bytes(owner as Owner)).sum()
    }

    /// Takes `bytes`, whole grains, and tells whose it was: of a range of `own` that is longer by
    /// `slack` at most, or else of the shortest that suffices, `own`'s or one of the others'.
    #[inline]
    pub(super) fn take(
        &mut self,
        (own, others): (Owner, &[Owner]),
        kind: Kind,
        bytes: usize,
        slack: usize,
    ) -> Option<(BlockRef, Owner)> {
        let found = self.index_of(own, kind).and_then(|index| index.find(bytes));
        let (block, owner) = match found {
            Some(block) if block.bytes.get() - bytes <= slack => (block, own),
            _ => self.shortest(found.map(|block| (block, own)), others, kind, bytes)?,
        };
        let index = self.indexes[owner as usize][kind as usize].as_mut()?;
        index.remove(block);
        if block.bytes.get() - bytes >= GRAIN {
            let remainder = self.split(block, bytes);
            remainder.state.set(State::Free(owner));
            self.index(owner, kind).insert(remainder);
        }
        block.state.set(State::Out);
        // SAFETY: as in `slab_of`.
        let slab = unsafe { &*block.slab.get() };
        slab.used.set(self.tick);
        if block.end() > slab.end() {
            self.slabs.range(slab.end()..block.end()).for_each(|(_, slab)| slab.used.set(self.tick));
        }
        Some((block, owner))
    }

    /// Of what was found and of these owners'.
    #[inline(never)]
    fn shortest(
        &self,
        found: Option<(BlockRef, Owner)>,
        others: &[Owner],
        kind: Kind,
        bytes: usize,
    ) -> Option<(BlockRef, Owner)> {
        let mut best = found;
        for &owner in others {
            let Some(block) = self.index_of(owner, kind).and_then(|index| index.find(bytes)) else {
                continue;
            };
            if best.is_none_or(|(best, _)| block.bytes.get() < best.bytes.get()) {
                best = Some((block, owner));
            }
        }
        best
    }

    /// Makes the shortest run of neighbours that suffices, all of these owners', one range of
    /// the first owner's; whether there was one.
    pub(super) fn unite(&mut self, owners: &[Owner], kind: Kind, bytes: usize) -> bool {
        let free: usize = owners.iter().map(|&owner| self.free_bytes_of(owner, kind)).sum();
        if free < bytes {
            return false;
        }
        let ours =
            |block: &BlockRef| matches!(block.state.get(), State::Free(owner) if owners.contains(&owner));
        let run =
            |first| std::iter::successors(Some(first), |block: &BlockRef| block.after.get().filter(ours));
        let ranges = owners.iter().filter_map(|&owner| self.index_of(owner, kind)).flat_map(Index::ranges);
        let firsts = ranges.filter(|range| !range.before.get().is_some_and(|before| ours(&before)));
        let runs = firsts.map(|first| (run(first).map(|block| block.bytes.get()).sum::<usize>(), first));
        let shortest = runs.filter(|(sum, _)| *sum >= bytes).min_by_key(|(sum, _)| *sum);
        let Some((_, first)) = shortest else { return false };
        let run: Vec<BlockRef> = run(first).collect();
        // All of them out before one is given: those that are given merge.
        for &block in &run {
            if let State::Free(owner) = block.state.get() {
                self.index(owner, kind).remove(block);
                block.state.set(State::Out);
            }
        }
        run.into_iter().for_each(|block| self.give(block, owners[0]));
        true
    }

    /// Cuts `block` after `bytes`; the rest is returned, out.
    pub(super) fn split(&mut self, block: BlockRef, bytes: usize) -> BlockRef {
        let rest = self.arena.make();
        let address = block.address.get() + bytes as u64;
        rest.address.set(address);
        rest.bytes.set(block.bytes.get() - bytes);
        rest.slab.set(self.slab_of(block, address));
        rest.state.set(State::Out);
        rest.before.set(Some(block));
        rest.after.set(block.after.get());
        if let Some(after) = block.after.get() {
            after.before.set(Some(rest));
        }
        block.after.set(Some(rest));
        block.bytes.set(bytes);
        rest
    }

    /// The slab that `address`, in `block`, lies in: `block`'s, unless slabs join.
    fn slab_of(&self, block: BlockRef, address: u64) -> *const Slab {
        // SAFETY: a slab stands while a block lies in it.
        let slab = unsafe { &*block.slab.get() };
        if address < slab.end() {
            return slab;
        }
        self.slabs.range(..=address).next_back().map_or(std::ptr::null(), |(_, slab)| &raw const **slab)
    }

    /// Gives a range back for `owner`'s later work.
    #[inline]
    pub(super) fn give(&mut self, block: BlockRef, owner: Owner) {
        // SAFETY: as in `slab_of`.
        let kind = unsafe { &*block.slab.get() }.kind;
        let free = State::Free(owner);
        let mut whole = block;
        if let Some(before) = block.before.get()
            && before.state.get() == free
        {
            self.index(owner, kind).remove(before);
            whole = self.merge(before, block);
        }
        if let Some(after) = whole.after.get()
            && after.state.get() == free
        {
            self.index(owner, kind).remove(after);
            self.merge(whole, after);
        }
        whole.state.set(free);
        self.index(owner, kind).insert(whole);
    }

    /// One range of two neighbours, neither of them in an index.
    fn merge(&mut self, low: BlockRef, high: BlockRef) -> BlockRef {
        low.bytes.set(low.bytes.get() + high.bytes.get());
        low.after.set(high.after.get());
        if let Some(after) = high.after.get() {
            after.before.set(Some(low));
        }
        self.arena.recycle(high);
        low
    }

    /// Everything that is `owner`'s, for whoever waits until its work has passed.
    pub(super) fn detach(&mut self, owner: Owner, to: &mut Stack) {
        let Some(indexes) = self.indexes.get_mut(owner as usize) else { return };
        for index in indexes.iter_mut().flatten() {
            index.drain(|block| {
                block.state.set(State::Out);
                to.push(block);
            });
        }
    }

    /// Adds a slab, free for `owner`; as part of the area before it if `joins`.
    pub(super) fn add(&mut self, slab: Slab, joins: bool, owner: Owner) {
        let slab = Box::new(slab);
        slab.used.set(self.tick);
        let (start, bytes) = (slab.start(), slab.segment.bytes);
        let block = self.arena.make();
        block.address.set(start);
        block.bytes.set(bytes);
        block.slab.set(&raw const *slab);
        block.state.set(State::Out);
        let kind = slab.kind;
        let below = self.slabs.range(..start).next_back();
        let follows = joins && below.is_some_and(|(_, below)| below.end() == start && below.kind == kind);
        self.bytes[slab.kind as usize] += slab.segment.bytes;
        self.slabs.insert(start, slab);
        let area =
            if follows { self.areas.iter().find(|area| area.last.address.get() == start) } else { None };
        let (before, last) = match area {
            Some(area) => (area.last.before.get(), area.last),
            None => {
                let (first, last) = (self.edge(start), self.edge(start));
                self.areas.push(Area { first, last });
                (Some(first), last)
            }
        };
        last.address.set(start + bytes as u64);
        block.before.set(before);
        block.after.set(Some(last));
        last.before.set(Some(block));
        if let Some(before) = before {
            before.after.set(Some(block));
        }
        self.give(block, owner);
    }

    fn edge(&mut self, address: u64) -> BlockRef {
        let edge = self.arena.make();
        edge.address.set(address);
        edge.bytes.set(0);
        edge.state.set(State::Edge);
        edge
    }

    /// Bytes at the end of the last area of `kind` that `owner` may have: what a slab
    /// that joins need not bring.
    pub(super) fn tail(&self, owner: Owner, kind: Kind) -> usize {
        let area = self.areas.iter().rev().find(|area| {
            let last = area.last.before.get();
            // SAFETY: a slab stands while a block lies in it; an edge has none.
            last.is_some_and(|last| unsafe { last.slab.get().as_ref() }.is_some_and(|slab| slab.kind == kind))
        });
        let last = area.and_then(|area| area.last.before.get());
        last.filter(|last| last.state.get() == State::Free(owner)).map_or(0, |last| last.bytes.get())
    }

    /// Takes out slabs that are free for anybody from end to end, of either kind, the
    /// shortest that suffice for `bytes` first.
    pub(super) fn detach_slabs(&mut self, bytes: usize) -> Vec<Slab> {
        let mut free = self.free_ranges();
        let mut whole: Vec<(usize, u64)> = Vec::new();
        for block in free.values() {
            let within = self.slabs.range(block.address.get()..block.end());
            whole.extend(
                within
                    .filter(|(_, slab)| slab.end() <= block.end())
                    .map(|(&start, slab)| (slab.segment.bytes, start)),
            );
        }
        whole.sort_unstable();
        // One slab that suffices, or the longest ones until they do.
        let first = whole.partition_point(|&(length, _)| length < bytes);
        let chosen: Vec<u64> = match whole.get(first) {
            Some(&(_, start)) if bytes < usize::MAX => vec![start],
            _ => {
                let mut sum = 0usize;
                let enough = |&&(length, _): &&(usize, u64)| {
                    let wanted = sum < bytes;
                    sum = sum.saturating_add(length);
                    wanted
                };
                whole.iter().rev().take_while(enough).map(|&(_, start)| start).collect()
            }
        };
        chosen.into_iter().filter_map(|start| self.detach_slab(start, &mut free)).collect()
    }

    /// Takes out slabs that are free for anybody from end to end and of which nothing was
    /// taken since the last call.
    pub(super) fn detach_idle(&mut self) -> Vec<Slab> {
        let mut idle: Vec<u64> = Vec::new();
        let mut free = self.free_ranges();
        for block in free.values() {
            let within = self.slabs.range(block.address.get()..block.end());
            let whole = within.filter(|(_, slab)| slab.end() <= block.end() && slab.used.get() != self.tick);
            idle.extend(whole.map(|(&start, _)| start));
        }
        self.tick = self.tick.wrapping_add(1);
        idle.into_iter().filter_map(|start| self.detach_slab(start, &mut free)).collect()
    }

    /// What there would be if all that is free were anybody's: the longest range, and
    /// the bytes of slabs that are free from end to end. Walks all blocks.
    pub(super) fn prospects(&self) -> (usize, usize) {
        let (mut longest, mut whole) = (0, 0);
        for area in &self.areas {
            let mut start = None;
            let mut next = area.first.after.get();
            while let Some(block) = next {
                let at = block.address.get();
                match block.state.get() {
                    State::Free(_) => {
                        start.get_or_insert(at);
                    }
                    _ => {
                        if let Some(start) = start.take() {
                            longest = longest.max((at - start) as usize);
                            let slabs = self.slabs.range(start..at).map(|(_, slab)| slab);
                            let within = slabs.take_while(|slab| slab.end() <= at);
                            whole += within.map(|slab| slab.segment.bytes).sum::<usize>();
                        }
                    }
                }
                next = block.after.get();
            }
        }
        (longest, whole)
    }

    /// What is anybody's, by address.
    fn free_ranges(&self) -> BTreeMap<u64, BlockRef> {
        let blocks = self
            .areas
            .iter()
            .flat_map(|area| std::iter::successors(area.first.after.get(), |block| block.after.get()));
        let free = blocks.filter(|block| block.state.get() == State::Free(ANYBODY));
        free.map(|block| (block.address.get(), block)).collect()
    }

    /// Takes the slab out of the range of `free` that it lies in, and leaves there what is
    /// left of it.
    fn detach_slab(&mut self, start: u64, free: &mut BTreeMap<u64, BlockRef>) -> Option<Slab> {
        let slab = self.slabs.get(&start)?;
        let (end, kind) = (slab.end(), slab.kind);
        let (&at, &block) = free.range(..=start).next_back().filter(|(_, block)| end <= block.end())?;
        free.remove(&at);
        self.index(ANYBODY, kind).remove(block);
        let mut middle = block;
        if block.address.get() < start {
            middle = self.split(block, (start - block.address.get()) as usize);
            block.state.set(State::Free(ANYBODY));
            self.index(ANYBODY, kind).insert(block);
            free.insert(at, block);
        }
        if end < middle.end() {
            let rest = self.split(middle, (end - start) as usize);
            rest.state.set(State::Free(ANYBODY));
            self.index(ANYBODY, kind).insert(rest);
            free.insert(end, rest);
        }
        middle.state.set(State::Gone);
        self.unlink_gone(middle);
        let slab = self.slabs.remove(&start)?;
        self.bytes[kind as usize] -= slab.segment.bytes;
        Some(*slab)
    }

    /// Takes a range that is gone out of its area: the area ends there, or goes, or
    /// becomes two.
    fn unlink_gone(&mut self, gone: BlockRef) {
        let (Some(before), Some(after)) = (gone.before.get(), gone.after.get()) else { return };
        match (before.state.get(), after.state.get()) {
            (State::Edge, State::Edge) => {
                self.areas.retain(|area| area.last != after);
                self.arena.recycle(before);
                self.arena.recycle(after);
            }
            (State::Edge, _) => {
                before.address.set(gone.end());
                before.after.set(Some(after));
                after.before.set(Some(before));
            }
            (_, State::Edge) => {
                after.address.set(gone.address.get());
                before.after.set(Some(after));
                after.before.set(Some(before));
            }
            _ => {
                let (last, first) = (self.edge(gone.address.get()), self.edge(gone.end()));
                before.after.set(Some(last));
                last.before.set(Some(before));
                first.after.set(Some(after));
                after.before.set(Some(first));
                // The area that ended with `after`'s end now begins behind the gap.
                let ends = |area: &&mut Area| {
                    std::iter::successors(Some(after), |block| block.after.get())
                        .any(|block| block == area.last)
                };
                let old =
                    self.areas.iter_mut().find(ends).map(|area| std::mem::replace(&mut area.first, first));
                if let Some(old) = old {
                    self.areas.push(Area { first: old, last });
                }
            }
        }
        self.arena.recycle(gone);
    }

    /// Checks everything that the other functions keep up. For tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut free = 0;
        for area in &self.areas {
            let mut at = area.first;
            while let Some(after) = at.after.get() {
                assert!(after.before.get() == Some(at));
                assert_eq!(at.end(), after.address.get(), "a gap or an overlap");
                if let (State::Free(one), State::Free(two)) = (at.state.get(), after.state.get()) {
                    assert_ne!(one, two, "neighbours that should be one");
                }
                if let State::Free(_) = after.state.get() {
                    free += after.bytes.get();
                }
                at = after;
            }
            assert!(at == area.last);
        }
        assert_eq!(free, self.all_free_bytes());
        for kind in Kind::ALL {
            let slabs = self.slabs.values().filter(|slab| slab.kind == kind);
            assert_eq!(self.slab_bytes(kind), slabs.map(|slab| slab.segment.bytes).sum::<usize>());
        }
    }
}

// SAFETY: descriptors and slabs belong to the heap, which is used under a lock.
unsafe impl Send for Heap {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Segment;
    use pinyard_registry::MemoryKey;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    fn slab(start: usize, bytes: usize) -> Slab {
        Slab {
            segment: Segment { start, bytes },
            key: MemoryKey::default(),
            kind: Kind::Large,
            used: Default::default(),
        }
    }

    #[test]
    fn of_several_owners_the_shortest_range_that_suffices_is_taken() {
        let mut heap = Heap::default();
        for (owner, grains) in [(1, 300), (2, 200), (3, 100), (2, 120)] {
            heap.add(slab(grains * MIB, grains * GRAIN), false, owner);
        }
        let mut take = |owners: &[Owner], grains: usize| {
            let found = heap.take((owners[0], &owners[1..]), Kind::Large, grains * GRAIN, 10 * GRAIN);
            found.map(|(block, owner)| (block.bytes.get() / GRAIN, owner))
        };
        assert_eq!(take(&[1, 3, 2], 90), Some((90, 3)), "the shortest");
        assert_eq!(take(&[1, 2, 3], 170), Some((170, 2)));
        assert_eq!(take(&[1, 2, 3], 110), Some((110, 2)));
        assert_eq!(take(&[1, 2], 240), Some((240, 1)), "the only one");
        // Left are 60 of the first's, 30 and 10 of the second's, 10 of the third's.
        assert_eq!(take(&[1, 2], 50), Some((50, 1)), "little longer");
        assert_eq!(take(&[3], 11), None);
        assert_eq!(take(&[2, 1, 3], 10), Some((10, 2)), "of several alike the first owner's");
    }

    #[test]
    fn a_slab_joins_the_one_before_it_of_its_own_kind_alone() {
        let mut heap = Heap::default();
        heap.add(slab(MIB, 10 * GRAIN), false, 1);
        heap.add(slab(MIB + 10 * GRAIN, 10 * GRAIN), true, 1);
        assert_eq!(heap.areas.len(), 1);
        heap.add(Slab { kind: Kind::Small, ..slab(MIB + 20 * GRAIN, 10 * GRAIN) }, true, 1);
        assert_eq!(heap.areas.len(), 2, "another kind");
        heap.add(slab(MIB + 30 * GRAIN, 10 * GRAIN), false, 1);
        assert_eq!(heap.areas.len(), 3, "not asked to");
        let found = heap.take((1, &[]), Kind::Large, 20 * GRAIN, 20 * GRAIN);
        assert_eq!(found.map(|(block, _)| block.bytes.get()), Some(20 * GRAIN));
        assert!(heap.take((1, &[]), Kind::Large, 11 * GRAIN, 11 * GRAIN).is_none());
    }

    #[test]
    fn no_more_slabs_are_given_back_than_suffice() {
        let three = || {
            let mut heap = Heap::default();
            for grains in [100, 200, 300] {
                heap.add(slab(grains * MIB, grains * GRAIN), false, 0);
            }
            heap
        };
        let lengths = |grains: usize| -> Vec<usize> {
            let slabs = three().detach_slabs(grains * GRAIN);
            slabs.iter().map(|slab| slab.segment.bytes / GRAIN).collect()
        };
        assert_eq!(lengths(150), [200], "one that suffices");
        assert_eq!(lengths(500), [300, 200], "just enough");
        assert_eq!(lengths(501), [300, 200, 100]);
    }

    #[test]
    fn neighbours_of_several_owners_become_one_range_where_they_suffice() {
        let mut heap = Heap::default();
        heap.add(slab(MIB, 100 * GRAIN), false, 1);
        let lengths = [10, 20, 5, 30, 20];
        let mut parts: Vec<BlockRef> =
            lengths.map(|grains| heap.take((1, &[]), Kind::Large, grains * GRAIN, 0).unwrap().0).into();
        let last = heap.take((1, &[]), Kind::Large, 15 * GRAIN, 0).unwrap().0;
        // 10 of 2, 20 of 1, 5 in use, 30 of 1, 20 of 3, 15 of 2.
        for (at, owner) in [(4, 3), (3, 1), (1, 1), (0, 2)] {
            heap.give(parts.remove(at), owner);
        }
        heap.give(last, 2);
        assert!(!heap.unite(&[1, 2], Kind::Large, 31 * GRAIN), "3's is between");
        assert!(!heap.unite(&[1, 2, 3], Kind::Large, 66 * GRAIN));
        assert!(!heap.unite(&[1, 2, 3], Kind::Small, 25 * GRAIN));
        assert!(heap.unite(&[1, 2, 3], Kind::Large, 25 * GRAIN), "the shorter one");
        heap.check();
        assert_eq!((heap.longest(1, Kind::Large), heap.longest(2, Kind::Large)), (30 * GRAIN, 15 * GRAIN));
        assert!(heap.unite(&[1, 2, 3], Kind::Large, 65 * GRAIN));
        heap.check();
        assert_eq!(heap.free_bytes(1), 95 * GRAIN);
        let found = heap.take((1, &[]), Kind::Large, 65 * GRAIN, 0).unwrap().0;
        heap.give(parts.remove(0), 1);
        heap.give(found, 1);
        assert_eq!(heap.longest(1, Kind::Large), 100 * GRAIN);
        heap.check();
    }

    proptest! {
        /// Against a list of ranges: no overlap, nothing lost, everything merges.
        #[test]
        fn as_a_list_of_ranges(
            joins: bool,
            ops in prop::collection::vec((0u8..9, 1usize..80, 0u32..3, any::<prop::sample::Index>()), 1..300),
        ) {
            let mut heap = Heap::default();
            let mut next = MIB;
            let mut live: Vec<BlockRef> = Vec::new();
            let mut total = 0;
            for (op, grains, owner, which) in ops {
                match op {
                    0 => {
                        heap.add(slab(next, MIB), joins, owner);
                        next += MIB;
                        total += MIB;
                    }
                    1..=4 => if let Some((block, _)) = heap.take((owner, &[]), Kind::Large, grains * GRAIN, usize::MAX) {
                        prop_assert_eq!(block.bytes.get(), grains * GRAIN);
                        for other in &live {
                            prop_assert!(block.end() <= other.address.get() || other.end() <= block.address.get());
                        }
                        live.push(block);
                    },
                    5 | 6 => if !live.is_empty() {
                        heap.give(live.swap_remove(which.index(live.len())), owner);
                    },
                    7 => {
                        let owners = [owner, (owner + 1) % 3];
                        if heap.unite(&owners, Kind::Large, grains * GRAIN) {
                            let found = heap.take((owner, &[]), Kind::Large, grains * GRAIN, usize::MAX);
                            prop_assert!(found.is_some());
                            found.into_iter().for_each(|(block, _)| heap.give(block, owner));
                        }
                    }
                    _ => {
                        let mut stack = Stack::default();
                        heap.detach(owner, &mut stack);
                        while let Some(block) = stack.pop() {
                            heap.give(block, ANYBODY);
                        }
                        for slab in heap.detach_slabs(grains * GRAIN) {
                            total -= slab.segment.bytes;
                        }
                    }
                }
                heap.check();
                let used: usize = live.iter().map(|block| block.bytes.get()).sum();
                prop_assert_eq!(used + heap.all_free_bytes(), total);
            }
            for block in live {
                heap.give(block, ANYBODY);
            }
            let mut stack = Stack::default();
            for owner in 0..3 {
                heap.detach(owner, &mut stack);
            }
            while let Some(block) = stack.pop() {
                heap.give(block, ANYBODY);
            }
            heap.check();
            let freed: usize = heap.detach_slabs(usize::MAX).iter().map(|slab| slab.segment.bytes).sum();
            prop_assert_eq!(freed, total);
            prop_assert_eq!((heap.slab_count(), heap.areas.len()), (0, 0));
        }
    }
}
