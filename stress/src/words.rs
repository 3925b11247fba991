//! The rank's progress words, mapped: written by its threads, read by the launcher,
//! and left behind whatever happens.
#![allow(unsafe_code)]

use pinyard_stress_report::progress::{self, LEN, WORDS, Word};
use pinyard_stress_report::{Operation, Phase};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The words. Every one stands for itself, so all accesses are relaxed.
#[repr(transparent)]
pub(crate) struct Words([AtomicU64; WORDS]);

impl Words {
    /// Makes the file of `rank` in `folder` and maps it for the life of the process.
    pub(crate) fn map(folder: &Path, rank: u32) -> Result<&'static Words, String> {
        let path = progress::path(folder, rank);
        let failed = |call: &str, error: io::Error| format!("{call}({}): {error}", path.display());
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.map_err(|error| failed("open", error))?;
        file.set_len(LEN as u64).map_err(|error| failed("ftruncate", error))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        #[allow(clippy::disallowed_methods)] // a new mapping: hooks have nothing to see
        // SAFETY: a fresh shared mapping of the file just made long enough.
        let words = unsafe {
            libc::mmap(std::ptr::null_mut(), LEN, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if words == libc::MAP_FAILED {
            return Err(failed("mmap", io::Error::last_os_error()));
        }
        // SAFETY: page-aligned, zeroed, long enough, never unmapped; the process that reads
        // the file takes any value.
        Ok(unsafe { &*words.cast::<Words>() })
    }

    /// One word.
    pub(crate) fn get(&self, word: Word) -> u64 {
        self.0[word as usize].load(Relaxed)
    }

    /// Sets it.
    pub(crate) fn set(&self, word: Word, value: u64) {
        self.0[word as usize].store(value, Relaxed);
    }

    /// Adds to it.
    pub(crate) fn add(&self, word: Word, more: u64) {
        self.0[word as usize].fetch_add(more, Relaxed);
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
