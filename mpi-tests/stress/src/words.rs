//! The rank's progress words: written by its threads, and several times a second to a
//! file, where the launcher reads them and where they stay whatever happens.
//!
//! The file is written, not mapped: shared mappings are late or refused on the network
//! file systems that several machines share.

use pinyard_cli::place;
use pinyard_cli::stress::progress::{self, LEN, WORDS, Word};
use pinyard_cli::stress::{Operation, Phase};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The words. Every one stands for itself, so all accesses are relaxed.
pub(crate) struct Words {
    words: [AtomicU64; WORDS],
    file: File,
}

impl Words {
    /// All zero, with the file of `rank` in `folder`.
    pub(crate) fn create(folder: &Path, rank: u32) -> Result<&'static Words, String> {
        let path = progress::path(folder, rank);
        let file = place::new_file(&path).map_err(|error| format!("open({}): {error}", path.display()))?;
        Ok(Box::leak(Box::new(Words { words: [const { AtomicU64::new(0) }; WORDS], file })))
    }

    /// Writes them to the file. Allocates nothing and takes no lock. An error is not
    /// reported: nothing but the display of the progress depends on it.
    pub(crate) fn save(&self) {
        let mut bytes = [0; LEN];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&self.words) {
            *bytes = word.load(Relaxed).to_ne_bytes();
        }
        let _ = self.file.write_all_at(&bytes, 0);
    }

    /// One word.
    pub(crate) fn get(&self, word: Word) -> u64 {
        self.words[word as usize].load(Relaxed)
    }

    /// Sets it.
    pub(crate) fn set(&self, word: Word, value: u64) {
        self.words[word as usize].store(value, Relaxed);
    }

    /// Adds to it.
    pub(crate) fn add(&self, word: Word, more: u64) {
        self.words[word as usize].fetch_add(more, Relaxed);
    }

    /// The rank goes on to another phase: it moves.
    pub(crate) fn enter(&self, phase: Phase) {
        self.set(Word::Phase, phase.code());
        self.add(Word::Beat, 1);
    }

    /// What the rank is in, as part of a sentence.
    pub(crate) fn doing(&self) -> String {
        let operation = Operation::of(self.get(Word::Operation)).unwrap_or(Operation::Bcast);
        let phase = Phase::of(self.get(Word::Phase)).unwrap_or(Phase::Init);
        progress::doing(phase, operation, self.get(Word::Steps), self.get(Word::Bytes))
    }
}
