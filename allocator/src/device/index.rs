//! Free ranges of one owner by length: two levels of lists and bitmaps (Masmano et
//! al., "TLSF: a new dynamic memory allocator for real-time systems", 2004), so
//! that a search is a few instructions however many ranges there are.
//!
//! A list holds lengths that differ by less than a thirty-second; of its first few
//! ranges the shortest that fits is taken. So the fit is best to within 3 %.

use super::block::BlockRef;
use super::classes::GRAIN;

const LISTS: usize = 32;
const LEVELS: usize = 36;
/// Ranges of a list that are looked at.
const LOOKS: usize = 16;

/// In this order: of an index that has nothing for a search one cache line is read.
#[repr(C)]
pub(super) struct Index {
    levels: u64,
    bytes: usize,
    lists: [u32; LEVELS],
    first: [[Option<BlockRef>; LISTS]; LEVELS],
}

/// Level and list of a length. Lengths below 32 grains have a list each.
#[inline(always)]
fn place(bytes: usize) -> (usize, usize) {
    let grains = bytes / GRAIN;
    if grains < LISTS {
        return (0, grains);
    }
    let doubling = grains.ilog2();
    ((doubling - 4) as usize, (grains >> (doubling - 5)) & (LISTS - 1))
}

impl Index {
    pub(super) fn new() -> Box<Index> {
        Box::new(Index { levels: 0, lists: [0; LEVELS], first: [[None; LISTS]; LEVELS], bytes: 0 })
    }

    /// Bytes of all ranges.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(super) fn insert(&mut self, block: BlockRef) {
        let (level, list) = place(block.bytes.get());
        let first = &mut self.first[level][list];
        block.previous.set(None);
        block.next.set(*first);
        if let Some(second) = *first {
            second.previous.set(Some(block));
        }
        *first = Some(block);
        self.levels |= 1 << level;
        self.lists[level] |= 1 << list;
        self.bytes += block.bytes.get();
    }

    #[inline]
    pub(super) fn remove(&mut self, block: BlockRef) {
        self.bytes -= block.bytes.get();
        let (previous, next) = (block.previous.get(), block.next.get());
        if let Some(next) = next {
            next.previous.set(previous);
        }
        if let Some(previous) = previous {
            return previous.next.set(next);
        }
        let (level, list) = place(block.bytes.get());
        self.first[level][list] = next;
        if next.is_none() {
            self.lists[level] &= !(1 << list);
            if self.lists[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }

    /// A range of at least `bytes`, left where it is.
    #[inline]
    pub(super) fn find(&self, bytes: usize) -> Option<BlockRef> {
        let (level, list) = place(bytes);
        if self.levels >> level == 0 {
            return None;
        }
        if let Some(block) = shortest(self.first[level][list], bytes) {
            return Some(block);
        }
        let longer = self.lists[level] & (u32::MAX << list) & !(1 << list);
        if longer != 0 {
            return shortest(self.first[level][longer.trailing_zeros() as usize], bytes);
        }
        let levels = self.levels & (u64::MAX << level) & !(1 << level);
        if levels == 0 {
            // Ranges of the length's own list that were not looked at.
            return self.last_resort(level, list, bytes);
        }
        let level = levels.trailing_zeros() as usize;
        shortest(self.first[level][self.lists[level].trailing_zeros() as usize], bytes)
    }

    #[cold]
    fn last_resort(&self, level: usize, list: usize, bytes: usize) -> Option<BlockRef> {
        all(self.first[level][list]).find(|block| block.bytes.get() >= bytes)
    }

    /// All ranges.
    pub(super) fn ranges(&self) -> impl Iterator<Item = BlockRef> + '_ {
        bits(self.levels).flat_map(move |level| {
            bits(self.lists[level].into()).flat_map(move |list| all(self.first[level][list]))
        })
    }

    /// The length of a range of the longest list.
    pub(super) fn longest(&self) -> usize {
        let Some(level) = self.levels.checked_ilog2() else { return 0 };
        let Some(list) = self.lists[level as usize].checked_ilog2() else { return 0 };
        self.first[level as usize][list as usize].map_or(0, |block| block.bytes.get())
    }

    /// Takes everything out.
    pub(super) fn drain(&mut self, mut to: impl FnMut(BlockRef)) {
        while self.levels != 0 {
            let level = self.levels.trailing_zeros() as usize;
            let list = self.lists[level].trailing_zeros() as usize;
            while let Some(block) = self.first[level][list] {
                self.remove(block);
                to(block);
            }
        }
    }
}

/// The numbers of the bits that are set.
#[inline(always)]
pub(super) fn bits(mut of: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (of != 0).then(|| of.trailing_zeros() as usize);
        of &= of.wrapping_sub(1);
        bit
    })
}

fn all(first: Option<BlockRef>) -> impl Iterator<Item = BlockRef> {
    std::iter::successors(first, |block| block.next.get())
}

#[inline(always)]
fn shortest(first: Option<BlockRef>, bytes: usize) -> Option<BlockRef> {
    all(first).take(LOOKS).filter(|block| block.bytes.get() >= bytes).min_by_key(|block| block.bytes.get())
}
