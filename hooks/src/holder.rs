//! A lock of the installer's kind: rarely taken, never in a hook, without an allocator, and
//! worth nothing in a forked child, whose parent's threads are not there to release it.
//!
//! Who waits sleeps in the kernel (futex(2)). Nobody calls the loader inside: a thread that
//! is in the loader already may be the one that waits.

use crate::sync::{AtomicU32, const_unless_loom, sleep_while, wake_one};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FREE: u32 = 0;

/// What a thread finds that may go inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nobody was inside.
    Free,
    /// A thread of the parent's was, when this process was forked off: what it wrote may be
    /// half done.
    Abandoned,
}

/// The lock.
#[derive(Debug)]
pub struct Holder {
    /// [`FREE`], or the process whose thread is inside: its fork generation, and a bit that
    /// makes it none of [`FREE`].
    word: AtomicU32,
}

impl Holder {
    const_unless_loom! {
        /// Nobody is inside.
        pub fn new() -> Self {
            Holder { word: AtomicU32::new(FREE) }
        }
    }

    /// Goes inside, if no other thread of this process is. `generation` counts the forks
    /// before this process.
    pub fn try_enter(&self, generation: u32) -> Option<Found> {
        self.enter_or_find(generation).ok()
    }

    /// The error is the word of the thread that is inside.
    fn enter_or_find(&self, generation: u32) -> Result<Found, u32> {
        let us = generation << 1 | 1;
        // Acquire: pairs with `leave`.
        match self.word.compare_exchange(FREE, us, Acquire, Relaxed) {
            Ok(_) => Ok(Found::Free),
            Err(holder) if holder == us => Err(holder),
            // Acquire: of two threads of a child, one takes over.
            Err(holder) => self.word.compare_exchange(holder, us, Acquire, Relaxed).map(|_| Found::Abandoned),
        }
    }

    /// Goes inside, and sleeps until it may.
    pub fn enter(&self, generation: u32) -> Found {
        loop {
            match self.enter_or_find(generation) {
                Ok(found) => return found,
                Err(holder) => sleep_while(&self.word, holder),
            }
        }
    }

    /// Ends what [`enter`](Holder::enter) began.
    pub fn leave(&self) {
        // Release: who enters next sees what was done inside.
        self.word.store(FREE, Release);
        // One of those that sleep: each wakes the next when it leaves.
        wake_one(&self.word);
    }
}

impl Default for Holder {
    fn default() -> Self {
        Self::new()
    }
}
