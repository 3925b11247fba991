//! Collectives of a few bytes as messages. MPI's own come in two kinds that do not match each
//! other: those that block, and those that do not. A rank that has operations under way takes
//! these further while it waits, so it cannot take the first kind; the others know nothing of
//! that. Messages are the same whichever way a rank waits.
//!
//! A rank whose message fails goes on to the end, as others wait for what it sends.
#![allow(unsafe_code)]

use super::{Answer, Comm, Request};
use mpi::topology::Rank;

impl Comm {
    /// The bytes of `root` to all ranks, along a binomial tree. Collective, all with as many. A rank
    /// that did not get them tells zeros to those behind it.
    pub(crate) fn broadcast(&self, bytes: &mut [u8], root: Rank) -> Answer<()> {
        let (size, count, tag) = (self.size(), bytes.len(), self.tag_of_small());
        let place = (self.rank() + size - root) % size;
        let rank = |place: Rank| (place + root) % size;
        let mut first = Ok(());
        if let Some(parent) = parent(place) {
            let at = bytes.as_mut_ptr();
            // SAFETY: the slice is borrowed mutably until the wait is over.
            let comes = unsafe { self.start_small_receive(at, count, rank(parent), tag) };
            first = comes.and_then(Request::wait);
            if first.is_err() {
                bytes.fill(0);
            }
        }
        let at = bytes.as_ptr();
        // SAFETY: as above, and written no more.
        let send = |child| unsafe { self.start_small_send(at, count, rank(child), tag) };
        let sends: Vec<Answer<Request>> = children(place, size).map(send).collect();
        sends.into_iter().map(|send| send.and_then(Request::wait)).fold(first, Answer::and)
    }

    /// The largest of each word of all ranks, known to all: each learns what those twice as many
    /// ranks before it have as in the round before (dissemination). Collective.
    pub(crate) fn largest<const N: usize>(&self, mine: [u64; N]) -> Answer<[u64; N]> {
        let (rank, size, tag) = (self.rank(), self.size(), self.tag_of_small());
        let (mut largest, mut first) = (mine, Ok(()));
        for distance in distances(size) {
            let (known, mut told) = (largest, [0; N]);
            let (from, to) = ((rank + size - distance) % size, (rank + distance) % size);
            let (bytes, at) = (size_of_val(&known), told.as_mut_ptr().cast());
            // SAFETY: both arrays stand until the waits are over.
            let comes = unsafe { self.start_small_receive(at, bytes, from, tag) };
            // SAFETY: as above.
            let goes = unsafe { self.start_small_send(known.as_ptr().cast(), bytes, to, tag) };
            let (came, gone) = (comes.and_then(Request::wait), goes.and_then(Request::wait));
            first = first.and(came).and(gone);
            largest = std::array::from_fn(|number| known[number].max(told[number]));
        }
        first.map(|()| largest)
    }
}

/// How far ranks tell each other in each round.
fn distances(size: Rank) -> impl Iterator<Item = Rank> {
    std::iter::successors(Some(1), |&distance: &Rank| distance.checked_mul(2))
        .take_while(move |&distance| distance < size)
}

/// Who tells the rank at a place, counted from the root: the place without its highest bit.
fn parent(place: Rank) -> Option<Rank> {
    (place > 0).then(|| place - (1 << place.ilog2()))
}

/// Whom it tells: the places of which it is the parent, nearest first.
fn children(place: Rank, size: Rank) -> impl Iterator<Item = Rank> {
    distances(size)
        .filter(move |&bit| bit > place)
        .map(move |bit| place + bit)
        .take_while(move |&child| child < size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_but_the_roots_is_told_by_its_parent_alone() {
        for size in 1..70 {
            let mut told = vec![0; size as usize];
            for place in 0..size {
                for child in children(place, size) {
                    assert_eq!(parent(child), Some(place));
                    told[child as usize] += 1;
                }
            }
            assert!(told[0] == 0 && told[1..].iter().all(|&times| times == 1), "{size} places: {told:?}");
        }
    }

    #[test]
    fn every_rank_learns_of_all_others() {
        for size in 1..70 {
            let all = || (0..size as usize).map(|rank| 1u128 << rank);
            let mut known: Vec<u128> = all().collect();
            for distance in distances(size) {
                let before = known.clone();
                for (rank, known) in known.iter_mut().enumerate() {
                    *known |= before[(rank + (size - distance) as usize) % size as usize];
                }
            }
            assert!(known.iter().all(|&known| known == all().sum()), "{size} ranks");
        }
    }
}
