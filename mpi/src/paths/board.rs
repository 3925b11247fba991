//! What the ranks of one node tell each other without MPI: the root of an operation posts
//! a message, all answer.
//!
//! ```text
//! root     begun, message -> posted + 1 ...            answer ... all answers are there
//! others   begun             posted + 1 -> message -> (copy) -> answer ... all answers are there
//! ```
//!
//! What a rank has begun the others see: whoever waits for a message that the root, being in
//! something else, will not post, sees that.
//!
//! Nobody posts before all have answered what was posted last, so it has been read by then.
//! A rank may have answered the next operation while another still looks at the answers to
//! this one; none is two ahead, so two words for a rank's answers are enough.

use super::shared::{POSTED, Shared, TOLD, WORDS};
use crate::called::{Part, odd};
use crate::words::words;
use mpi::topology::Rank;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of a message.
pub(crate) const NOTE: usize = 2 * 8 * WORDS;

/// One rank's view of the board of its node.
pub(crate) struct Board {
    memory: Arc<Shared>,
    place: usize,
    /// Operations so far. Between two of them the same at every rank.
    operations: u64,
}

impl Board {
    pub(crate) fn new(memory: Arc<Shared>, place: usize) -> Board {
        Board { memory, place, operations: 0 }
    }

    /// Tells the others of the next operation.
    pub(crate) fn post(&self, note: &[u8; NOTE]) {
        for (number, word) in words(note).enumerate() {
            self.memory.word(TOLD + number / WORDS, number % WORDS).store(word, Relaxed);
        }
        // Release: whoever sees the count sees the words.
        self.memory.word(POSTED, 0).store(self.operations + 1, Release);
    }

    /// What is told of the next operation, if it is told already.
    pub(crate) fn read(&self) -> Option<[u8; NOTE]> {
        if self.memory.word(POSTED, 0).load(Acquire) != self.operations + 1 {
            return None;
        }
        let mut note = [0; NOTE];
        for (number, bytes) in note.chunks_exact_mut(8).enumerate() {
            let word = self.memory.word(TOLD + number / WORDS, number % WORDS).load(Relaxed);
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Some(note)
    }

    /// This rank is in the next operation, which is `part`. Before it posts, reads or answers.
    pub(crate) fn begin(&self, part: Part) {
        let number = self.operations + 1;
        let [begun, _, called, bytes] = self.memory.told(self.place, number);
        called.store(part.called, Relaxed);
        bytes.store(part.bytes, Relaxed);
        // Release: whoever sees the number sees what it is.
        begun.store(number, Release);
    }

    /// What the rank at `place` is in, once it has begun the next operation.
    pub(crate) fn begun(&self, place: usize) -> Option<Part> {
        let number = self.operations + 1;
        let [begun, _, called, bytes] = self.memory.told(place, number);
        let has_begun = begun.load(Acquire) == number;
        has_begun.then(|| Part { called: called.load(Relaxed), bytes: bytes.load(Relaxed) })
    }

    /// Whether this rank alone is to post what the next operation is: where ranks differ about
    /// the root, one that takes itself for it may come too late.
    pub(crate) fn claim(&self) -> bool {
        let (claimed, next) = (self.memory.word(POSTED, 1), self.operations + 1);
        let last = claimed.load(Relaxed);
        // Relaxed: what is posted is ordered by its count.
        last < next && claimed.compare_exchange(last, next, Relaxed, Relaxed).is_ok()
    }

    /// This rank's answer: what it read, or wrote, is as the others will find it. And whether
    /// it wants all to close what they have open.
    pub(crate) fn answer(&self, answer: u64, closing: bool) {
        let number = self.operations + 1;
        let [_, told, ..] = self.memory.told(self.place, number);
        told.store(answer, Relaxed);
        // Release: and the copies that came before.
        self.memory.answer(self.place, number).store(number << 1 | u64::from(closing), Release);
    }

    /// Ends the operation if all have answered it.
    pub(crate) fn answers(&mut self) -> Option<Answers> {
        let number = self.operations + 1;
        let (memory, ranks) = (&self.memory, self.memory.shape.ranks);
        let (mut worst, mut closing) = (0, false);
        for place in 0..ranks {
            let answer = memory.answer(place, number).load(Acquire);
            if answer >> 1 != number {
                return None;
            }
            closing |= answer & 1 != 0;
            let [_, told, ..] = memory.told(place, number);
            worst = told.load(Relaxed).max(worst);
        }
        let odd = odd((0..ranks).map(|place| {
            let [_, _, called, bytes] = memory.told(place, number);
            Part { called: called.load(Relaxed), bytes: bytes.load(Relaxed) }
        }));
        self.operations = number;
        Some(Answers { worst, odd, closing })
    }
}

/// What all ranks have answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answers {
    /// The greatest answer.
    pub(crate) worst: u64,
    /// The first place whose part is not as that of place 0, and both.
    pub(crate) odd: Option<(Rank, Part, Part)>,
    /// One wants all to close what they have open.
    pub(crate) closing: bool,
}

#[cfg(test)]
mod tests {
    use super::super::shared::Shape;
    use super::*;

    const RANKS: usize = 4;

    fn note(number: u64) -> [u8; NOTE] {
        let mut note = [0; NOTE];
        note.chunks_exact_mut(8).enumerate().for_each(|(at, bytes)| {
            bytes.copy_from_slice(&(number * 1000 + at as u64).to_le_bytes());
        });
        note
    }

    /// Mixed, but the same for all.
    fn answer(number: u64, place: usize) -> u64 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 * place)) % 5
    }

    #[test]
    fn all_read_what_was_posted_and_find_the_same_worst_answer() {
        let views = Shared::of_one_process(Shape { ranks: RANKS, slots: 2, slot_bytes: 4096 });
        std::thread::scope(|scope| {
            for (place, memory) in views.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut board = Board::new(memory, place);
                    for number in 0..2000u64 {
                        // Every seventh is not posted; in every fifth two want to post.
                        let part = Part { called: number, bytes: 0 };
                        let odd = Part { called: number, bytes: u64::from(number % 11 == 3 && place == 2) };
                        board.begin(odd);
                        let root = number as usize % RANKS;
                        let posts = place == root || (number % 5 == 0 && place == (root + 1) % RANKS);
                        if number % 7 > 0 {
                            if posts && board.claim() {
                                board.post(&note(number));
                            }
                            let read = std::iter::repeat_with(|| {
                                std::thread::yield_now();
                                board.read()
                            });
                            assert_eq!(read.flatten().next(), Some(note(number)));
                        }
                        board.answer(answer(number, place), number % 13 == 4 && place == 3);
                        let answers = loop {
                            std::thread::yield_now();
                            if let Some(answers) = board.answers() {
                                break answers;
                            }
                        };
                        let worst = (0..RANKS).map(|place| answer(number, place)).max().unwrap();
                        let two = (2, Part { bytes: 1, ..part }, part);
                        let odd = (number % 11 == 3).then_some(two);
                        assert_eq!(answers, Answers { worst, odd, closing: number % 13 == 4 });
                    }
                });
            }
        });
    }

    #[test]
    fn nothing_is_read_before_it_is_posted_and_nothing_ends_before_all_have_answered() {
        let views = Shared::of_one_process(Shape { ranks: 2, slots: 2, slot_bytes: 4096 });
        let mut boards: Vec<Board> =
            views.into_iter().enumerate().map(|(place, memory)| Board::new(memory, place)).collect();
        let (mine, theirs) = (Part { called: 1, bytes: 2 }, Part { called: 3, bytes: 4 });
        assert_eq!((boards[1].read(), boards[1].begun(0)), (None, None));
        boards[0].begin(mine);
        boards[1].begin(theirs);
        assert_eq!(boards[1].begun(0), Some(mine));
        assert!(boards[0].claim() && !boards[1].claim());
        boards[0].post(&note(7));
        assert_eq!(boards[1].read(), Some(note(7)));
        boards[0].answer(0, false);
        assert_eq!(boards[0].answers(), None);
        boards[1].answer(3, true);
        let both = Answers { worst: 3, odd: Some((1, theirs, mine)), closing: true };
        assert_eq!(boards[0].answers().as_ref(), Some(&both));
        // The first is an operation ahead, and the second still learns of this one.
        boards[0].begin(Part { called: 9, bytes: 9 });
        assert!(boards[0].claim());
        boards[0].post(&note(8));
        boards[0].answer(1, false);
        assert_eq!(boards[1].answers(), Some(both));
    }
}
