//! Which region goes first when the budget is used up.
//!
//! A list in order of registration with a second chance: a region that was hit
//! since the hand last passed goes to the back. Hits only set a mark in the
//! region's slot, and only where it is not set, so they share no written line;
//! the price is that the order among regions hit since then is that of
//! registration, not of use.

use pinyard_hooks::map::SlotId;

const END: SlotId = 0;

#[derive(Clone, Copy, Default)]
struct Links {
    before: SlotId,
    after: SlotId,
}

/// A doubly linked list of slots; slot 0 is both ends.
#[derive(Default)]
pub(crate) struct EvictionList {
    links: Vec<Links>,
    len: usize,
}

impl EvictionList {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push_back(&mut self, slot: SlotId) {
        let needed = slot as usize + 1;
        if self.links.len() < needed {
            self.links.resize(needed, Links::default());
        }
        let last = self.links[END as usize].before;
        self.links[slot as usize] = Links { before: last, after: END };
        self.links[last as usize].after = slot;
        self.links[END as usize].before = slot;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, slot: SlotId) {
        let Links { before, after } = self.links[slot as usize];
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
        self.len -= 1;
    }

    pub(crate) fn front(&self) -> Option<SlotId> {
        self.links.first().map(|end| end.after).filter(|&slot| slot != END)
    }

    /// The first region, in order, that `spare` does not ask to spare. Spared
    /// ones go to the back; each is asked at most twice.
    pub(crate) fn victim(&mut self, mut spare: impl FnMut(SlotId) -> bool) -> Option<SlotId> {
        for _ in 0..2 * self.len {
            let slot = self.front()?;
            if !spare(slot) {
                return Some(slot);
            }
            self.remove(slot);
            self.push_back(slot);
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn order(list: &EvictionList) -> Vec<SlotId> {
        let next = |&slot: &SlotId| Some(list.links[slot as usize].after).filter(|&s| s != END);
        std::iter::successors(list.front(), next).collect()
    }

    #[test]
    fn oldest_first_with_a_second_chance() {
        let mut list = EvictionList::default();
        assert_eq!(list.victim(|_| false), None);
        for slot in [3, 1, 2] {
            list.push_back(slot);
        }
        let mut touched = vec![3];
        let mut spare = |slot| touched.iter().position(|&t| t == slot).map(|at| touched.remove(at)).is_some();
        assert_eq!(list.victim(&mut spare), Some(1));
        assert_eq!(order(&list), [1, 2, 3]);
        list.remove(1);
        assert_eq!((order(&list), list.len()), (vec![2, 3], 2));
        assert_eq!(list.victim(|_| true), None, "all in use");
        list.remove(2);
        list.remove(3);
        assert_eq!((order(&list), list.len()), (vec![], 0));
    }
}
