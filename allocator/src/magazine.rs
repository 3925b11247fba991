//! What a thread keeps of a pool: two magazines per class, and counters.
//!
//! One magazine is used; the other is full or empty, so that a thread which
//! allocates and frees around the edge of one does not go to the bin each time
//! (Bonwick and Adams, "Magazines and Vmem", 2001). A full third one goes to the
//! class's bin in one exchange, however many blocks it holds.

use crate::biased::Biased;
use crate::bin::Bin;
use crate::block::{Arena, BlockRef, Magazine};
use crate::classes::{CLASSES, Class};
use crate::counters::Counters;
use crossbeam_utils::CachePadded;

/// Shared by all threads of a pool: bins by class, and the blocks they name.
pub(crate) struct Bins {
    /// The last one is for blocks outside every class.
    bins: Box<[CachePadded<Bin>]>,
    pub(crate) arena: Arena,
}

impl Bins {
    pub(crate) fn new() -> Bins {
        Bins { bins: (0..=CLASSES).map(|_| CachePadded::new(Bin::new())).collect(), arena: Arena::new() }
    }

    #[inline]
    pub(crate) fn push(&self, class: Class, magazine: Magazine) {
        self.bins[class as usize].push(magazine);
    }

    pub(crate) fn push_one(&self, class: Class, block: BlockRef) {
        let mut magazine = Magazine::EMPTY;
        magazine.push(block);
        self.push(class, magazine);
    }

    #[inline]
    pub(crate) fn pop(&self, class: Class) -> Magazine {
        self.bins[class as usize].pop(&self.arena)
    }

    pub(crate) fn is_empty(&self, class: Class) -> bool {
        self.bins[class as usize].is_empty()
    }
}

/// The two magazines of one class.
struct Rounds {
    loaded: Magazine,
    spare: Magazine,
}

/// A thread's magazines.
pub(crate) struct Magazines {
    classes: [Rounds; CLASSES],
}

impl Magazines {
    pub(crate) fn new() -> Magazines {
        Magazines {
            classes: std::array::from_fn(|_| Rounds { loaded: Magazine::EMPTY, spare: Magazine::EMPTY }),
        }
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self, class: Class, bins: &Bins) -> Option<BlockRef> {
        let rounds = &mut self.classes[class as usize];
        match rounds.loaded.pop() {
            Some(block) => Some(block),
            None => rounds.reload(class, bins),
        }
    }

    /// `most`: blocks in a full magazine of the class.
    #[inline(always)]
    pub(crate) fn push(&mut self, class: Class, most: u32, block: BlockRef, bins: &Bins) {
        let Some(rounds) = self.classes.get_mut(class as usize).filter(|_| most > 0) else {
            return bins.push_one(class, block);
        };
        if rounds.loaded.count() >= most {
            rounds.unload(class, bins);
        }
        rounds.loaded.push(block);
    }

    /// Gives everything to the bins.
    pub(crate) fn empty_into(&mut self, bins: &Bins) {
        for (class, rounds) in self.classes.iter_mut().enumerate() {
            bins.push(class as Class, rounds.loaded.take());
            bins.push(class as Class, rounds.spare.take());
        }
    }
}

impl Rounds {
    #[cold]
    fn reload(&mut self, class: Class, bins: &Bins) -> Option<BlockRef> {
        std::mem::swap(&mut self.loaded, &mut self.spare);
        if self.loaded.count() == 0 {
            self.loaded = bins.pop(class);
        }
        self.loaded.pop()
    }

    #[cold]
    fn unload(&mut self, class: Class, bins: &Bins) {
        std::mem::swap(&mut self.loaded, &mut self.spare);
        bins.push(class, self.loaded.take());
    }
}

/// What one thread keeps of one pool.
pub(crate) struct Cache {
    magazines: Biased<Magazines>,
    pub(crate) counters: Counters,
}

impl Cache {
    pub(crate) fn new() -> Cache {
        Cache { magazines: Biased::new(Magazines::new()), counters: Counters::default() }
    }

    pub(crate) fn biased(&self) -> &Biased<Magazines> {
        &self.magazines
    }
}
