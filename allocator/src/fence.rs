//! Fences: when the last user outside this program's control has passed.
//!
//! A block that a NIC, a GPU or an MPI request still uses is given up with its
//! fence ([`PoolBuf::defer_until`](crate::PoolBuf::defer_until)), and reused only
//! after the fence has passed. Fences are polled on the pool's slow paths, off
//! the hot one, and by a thread of the pool's, without a lock held, and never by a
//! thread that merely drops or defers a block. One that has not passed holds up no
//! other.

use crate::requests::guarded;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

/// Something that passes once, and has then passed for good.
#[non_exhaustive]
pub enum Fence {
    /// A word that grows to a value: see [`AtomicFence`]. Asking is one load.
    Word {
        /// The word.
        word: AtomicFence,
        /// Passed when the word is at least this.
        value: u64,
    },
    /// Anything that can be asked: a CUDA event, an MPI request, a queue's counter.
    Poll(Box<dyn Poll>),
}

/// What a fence said that was asked with its panics caught.
pub(crate) enum Asked {
    Passed,
    Waits(Fence),
    /// Its block is never used again.
    Panicked,
}

impl Fence {
    /// Asks it, and drops it unless it is to be asked again: the program's code, whose panics go
    /// no further.
    pub(crate) fn ask(mut self) -> Asked {
        let passed = match &mut self {
            Fence::Word { word, value } => Some(word.value() >= *value),
            Fence::Poll(poll) => guarded("a fence", || poll.passed()),
        };
        match passed {
            Some(true) => Asked::Passed,
            Some(false) => Asked::Waits(self),
            None => Asked::Panicked,
        }
    }

    /// A fence that asks `poll`.
    pub fn poll(poll: impl Poll) -> Fence {
        Fence::Poll(Box::new(poll))
    }

    /// Whether it has passed.
    #[inline]
    pub fn passed(&mut self) -> bool {
        match self {
            Fence::Word { word, value } => word.value() >= *value,
            Fence::Poll(poll) => poll.passed(),
        }
    }

    /// Whether any thread may ask it: [`Poll::any_thread`]. None may where that panics.
    pub(crate) fn any_thread(&self) -> bool {
        match self {
            Fence::Word { .. } => true,
            Fence::Poll(poll) => guarded("a fence", || poll.any_thread()).unwrap_or(false),
        }
    }
}

/// A drop that panics goes no further, wherever the fence is dropped: it takes nothing back of what
/// the fence has said, and of a list of fences each is dropped.
impl Drop for Fence {
    fn drop(&mut self) {
        if let Fence::Poll(poll) = self {
            let poll = std::mem::replace(poll, Box::new(Dropped));
            guarded("the drop of a fence", || drop(poll));
        }
    }
}

/// What is left in a fence that is being dropped. Takes no memory.
struct Dropped;

impl Poll for Dropped {
    fn passed(&mut self) -> bool {
        true
    }
}

impl std::fmt::Debug for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fence::Word { word, value } => {
                f.debug_struct("Word").field("now", &word.value()).field("value", value).finish()
            }
            Fence::Poll(_) => f.write_str("Poll"),
        }
    }
}

/// A fence of the caller's own.
///
/// Asked by one thread at a time, but by whichever thread uses the pool, by the
/// pool's own, or by the one that outlives it. So a fence on an MPI request asks MPI on any
/// thread with `MPI_THREAD_MULTIPLE` alone, and below that on one, as pinyard-mpi's
/// `RequestFence` does; or the progress thread leaves the answer in a word.
///
/// A panic of a method or of the drop is caught on every thread, and logged. The block of a fence that panicked when it was asked is in use for good; one whose fence has passed,
/// and panicked when it was dropped, is free. A fence whose `any_thread` panics is one that returns
/// `false`.
pub trait Poll: Send + 'static {
    /// Whether it has passed. Does not wait. Not asked again after `true`.
    fn passed(&mut self) -> bool;

    /// Whether a host pool's own thread may ask it. If not, its block comes back only when
    /// a thread of the program uses the pool, or the pool has ended. Default: it may. A device
    /// pool's own thread asks whatever this says.
    fn any_thread(&self) -> bool {
        true
    }
}

/// Passed when all have: a block that several streams use. Where one panics, none is asked again.
impl Poll for Vec<Fence> {
    fn passed(&mut self) -> bool {
        self.retain_mut(|fence| !fence.passed());
        self.is_empty()
    }

    fn any_thread(&self) -> bool {
        self.iter().all(Fence::any_thread)
    }
}

/// A timeline: a word that only grows, written when work has completed, by this
/// program or by a device. A handle: clones share the word.
///
/// ```
/// use pinyard_allocator::AtomicFence;
///
/// let stream = AtomicFence::new();
/// let mut copied = stream.at(7); // the seventh operation
/// stream.signal(6);
/// assert!(!copied.passed());
/// stream.signal(7);
/// assert!(copied.passed());
/// ```
#[derive(Debug, Clone, Default)]
pub struct AtomicFence {
    word: Arc<CachePadded<AtomicU64>>,
}

impl AtomicFence {
    /// A word that is 0.
    pub fn new() -> AtomicFence {
        AtomicFence::default()
    }

    /// Passes when the word is at least `value`.
    pub fn at(&self, value: u64) -> Fence {
        Fence::Word { word: self.clone(), value }
    }

    /// Lets everything up to `value` pass. A lower value changes nothing.
    pub fn signal(&self, value: u64) {
        // Release: pairs with `value`; what was done before is seen by the block's
        // next user.
        self.word.fetch_max(value, Release);
    }

    /// The word.
    #[inline]
    pub fn value(&self) -> u64 {
        // Acquire: pairs with `signal`.
        self.word.load(Acquire)
    }

    /// The word's address, for a device that writes it. It stays valid while any
    /// clone, or any fence at it, lives.
    pub fn as_ptr(&self) -> *mut u64 {
        self.word.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_only_grows() {
        let word = AtomicFence::new();
        assert!(word.at(0).passed() && !word.at(1).passed());
        word.signal(5);
        word.signal(3);
        assert_eq!(word.value(), 5);
        assert!(word.at(5).passed() && !word.at(6).passed());
    }

    #[test]
    fn several_fences_pass_when_all_have() {
        let (one, two) = (AtomicFence::new(), AtomicFence::new());
        let mut both = Fence::poll(vec![one.at(1), two.at(2)]);
        two.signal(2);
        assert!(!both.passed());
        one.signal(1);
        assert!(both.passed());
    }
}
