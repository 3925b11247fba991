//! What the ranks of one node tell each other without MPI: the root of an operation posts
//! a message, all answer.
//!
//! ```text
//! root     message -> posted + 1 ...            answer ... all answers are there
//! others              posted + 1 -> message -> (copy) -> answer ... all answers are there
//! ```
//!
//! Nobody posts before all have answered what was posted last, so it has been read by then.
//! A rank may have answered the next operation while another still looks at the answers to
//! this one; none is two ahead, so two words for a rank's answers are enough.

use super::shared::{POSTED, Shared, TOLD, WORDS};
use crate::words::words;
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

    /// This rank's answer: what it read, or wrote, is as the others will find it.
    pub(crate) fn answer(&self, answer: u8) {
        let number = self.operations + 1;
        // Release: and the copies that came before.
        self.memory.answer(self.place, number).store(number << 8 | u64::from(answer), Release);
    }

    /// Ends the operation if all have answered it: the first place with the greatest
    /// answer, and that.
    pub(crate) fn answers(&mut self) -> Option<(usize, u8)> {
        let number = self.operations + 1;
        let mut worst = (0, 0);
        for place in 0..self.memory.shape.ranks {
            let word = self.memory.answer(place, number).load(Acquire);
            if word >> 8 != number {
                return None;
            }
            if word as u8 > worst.1 {
                worst = (place, word as u8);
            }
        }
        self.operations = number;
        Some(worst)
    }
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
    fn answer(number: u64, place: usize) -> u8 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (8 * place)) as u8 % 5
    }

    #[test]
    fn all_read_what_was_posted_and_find_the_same_worst_answer() {
        let views = Shared::of_one_process(Shape { ranks: RANKS, slots: 2, slot_bytes: 4096 });
        std::thread::scope(|scope| {
            for (place, memory) in views.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut board = Board::new(memory, place);
                    for number in 0..2000u64 {
                        if number as usize % RANKS == place {
                            board.post(&note(number));
                        }
                        let read = std::iter::repeat_with(|| {
                            std::thread::yield_now();
                            board.read()
                        });
                        assert_eq!(read.flatten().next(), Some(note(number)));
                        board.answer(answer(number, place));
                        let worst = loop {
                            std::thread::yield_now();
                            if let Some(worst) = board.answers() {
                                break worst;
                            }
                        };
                        let most = (0..RANKS).map(|place| answer(number, place)).max().unwrap();
                        let first = (0..RANKS).find(|&place| answer(number, place) == most).unwrap();
                        assert_eq!(worst, (if most == 0 { 0 } else { first }, most));
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
        assert_eq!(boards[1].read(), None);
        boards[0].post(&note(7));
        assert_eq!(boards[1].read(), Some(note(7)));
        boards[0].answer(0);
        assert_eq!(boards[0].answers(), None);
        boards[1].answer(3);
        assert_eq!(boards[0].answers(), Some((1, 3)));
        // The first is an operation ahead, and the second still learns of this one.
        boards[0].post(&note(8));
        boards[0].answer(1);
        assert_eq!(boards[1].answers(), Some((1, 3)));
    }
}
