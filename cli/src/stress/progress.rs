//! A rank's progress words: a small file of its own that it writes several times a second.
//! Whatever happens to the rank, they say how far it came and what it was in.

use crate::stress::operation::{Operation, Phase};
use std::fs;
use std::path::{Path, PathBuf};

/// A word of the progress file, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// The process's id.
    Pid,
    /// Anything that moves: what the watchdog looks at.
    Beat,
    /// Steps completed.
    Steps,
    /// [`Phase`] of the step under way.
    Phase,
    /// [`Operation`] of the step under way.
    Operation,
    /// Bytes of its message.
    Bytes,
    /// Milliseconds since the ranks began together, at the last step or sample.
    Milliseconds,
    /// Messages whose bytes were checked.
    Messages,
    /// Bytes of those.
    Checked,
    /// Messages that were not what was sent.
    Corrupt,
    /// Times that the device did not see the program's bytes.
    Stale,
    /// `get`s that were refused.
    Refused,
    /// The registry's counters as of the last sample.
    Hits,
    /// Likewise.
    Misses,
    /// Likewise.
    Pinned,
    /// Milliseconds at which the rank injected its fault, plus one; 0 before.
    Fault,
}

/// Words in the file.
pub const WORDS: usize = Word::Fault as usize + 1;
/// Bytes of the file.
pub const LEN: usize = WORDS * size_of::<u64>();

/// Where the progress words of `rank` are.
pub fn path(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("rank-{rank}.progress"))
}

/// The words of a rank as they are at this moment; all zero before it has begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress([u64; WORDS]);

impl Progress {
    /// Of `rank`.
    pub fn read(folder: &Path, rank: u32) -> Progress {
        let bytes = fs::read(path(folder, rank)).unwrap_or_default();
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Progress(words)
    }

    /// One word.
    pub fn get(&self, word: Word) -> u64 {
        self.0[word as usize]
    }

    /// Whether the rank came as far as to have one.
    pub fn begun(&self) -> bool {
        self.get(Word::Pid) != 0
    }

    /// Seconds since the ranks began together.
    pub fn seconds(&self) -> f64 {
        self.get(Word::Milliseconds) as f64 / 1e3
    }

    /// When the rank injected its fault, if it did.
    pub fn fault_seconds(&self) -> Option<f64> {
        self.get(Word::Fault).checked_sub(1).map(|milliseconds| milliseconds as f64 / 1e3)
    }

    /// What the rank is in, as part of a sentence.
    pub fn doing(&self) -> String {
        let operation = Operation::of(self.get(Word::Operation)).unwrap_or(Operation::Bcast);
        let phase = Phase::of(self.get(Word::Phase)).unwrap_or(Phase::Init);
        doing(phase, operation, self.get(Word::Steps), self.get(Word::Bytes))
    }
}

/// `MPI_Bcast of 812 bytes, step 17` and the like.
pub fn doing(phase: Phase, operation: Operation, step: u64, bytes: u64) -> String {
    let what = phase.describe(operation);
    match phase {
        Phase::Init | Phase::Prepare | Phase::Gather | Phase::Finalize => what.to_owned(),
        Phase::Agree => format!("{what} before step {step}"),
        Phase::Operation => format!("{what} of {bytes} bytes, step {step}"),
        _ => format!("{what}, for {} of {bytes} bytes, step {step}", operation.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_a_short_file_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!Progress::read(folder.path(), 3).begun());
        let mut words = [0u64; WORDS];
        words[Word::Pid as usize] = 12;
        words[Word::Steps as usize] = 17;
        words[Word::Phase as usize] = Phase::Operation.code();
        words[Word::Operation as usize] = Operation::Put.code();
        words[Word::Bytes as usize] = 812;
        words[Word::Fault as usize] = 1501;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        fs::write(path(folder.path(), 3), &bytes).unwrap();
        let progress = Progress::read(folder.path(), 3);
        assert_eq!(progress.doing(), "MPI_Put of 812 bytes, step 17");
        assert_eq!((progress.get(Word::Pid), progress.fault_seconds()), (12, Some(1.5)));
        fs::write(path(folder.path(), 3), &bytes[..20]).unwrap();
        assert_eq!(Progress::read(folder.path(), 3).get(Word::Pid), 12);
    }
}
