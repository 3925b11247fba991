//! How many bytes may be pinned, by one registry or by several together.

use crate::sync::fork_generation;
use once_cell::race::OnceBox;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A number of bytes that may be pinned at a time. Clones are the same budget:
/// give one to several registries and they share it. A registry that finds it
/// used up gives back what it only caches, then asks the others to; what is in
/// use stays, and a `get` for which nothing is left fails with the list of who
/// holds what.
#[derive(Clone)]
pub struct Budget(Arc<Shared>);

struct Shared {
    bytes: usize,
    /// The bytes are RLIMIT_MEMLOCK's.
    is_memlock: bool,
    book: Book,
}

/// What one process has pinned. A forked child has pinned nothing, must not ask
/// its parent's registries, and may find their locks taken for ever: it opens a
/// book of its own.
struct Book {
    /// The fork generation of its process.
    forks: u32,
    pinned: AtomicUsize,
    members: Mutex<Vec<Weak<dyn Member>>>,
    childs: OnceBox<Book>,
}

impl Book {
    fn new() -> Book {
        Book {
            forks: fork_generation(),
            pinned: AtomicUsize::new(0),
            members: Mutex::new(Vec::new()),
            childs: OnceBox::new(),
        }
    }
}

/// A registry, as the others of its budget see it.
pub(crate) trait Member: Send + Sync {
    fn holding(&self) -> Holding;
    /// Deregisters some of what it only caches.
    fn give_way(&self) -> GivenWay;
}

/// What a registry did when another one asked it for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GivenWay {
    /// All that it has is in use.
    Nothing,
    /// Another thread of it is about to give something back.
    Soon,
    /// Bytes have been given back.
    Now,
}

/// What one registry of a budget has pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Its backend's name.
    pub backend: &'static str,
    /// Bytes pinned, those being registered or retired included.
    pub pinned: usize,
    /// Registrations that a `get` can find, and retired ones still held.
    pub regions: usize,
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} bytes in {} regions", self.backend, self.pinned, self.regions)
    }
}

impl From<usize> for Budget {
    /// A budget of its own for a number of bytes.
    fn from(bytes: usize) -> Budget {
        Budget::new(bytes)
    }
}

impl Budget {
    /// A budget of `bytes` bytes.
    pub fn new(bytes: usize) -> Budget {
        Budget::with(bytes, false)
    }

    /// A budget of what RLIMIT_MEMLOCK allows.
    pub(crate) fn of_memlock(bytes: usize) -> Budget {
        Budget::with(bytes, true)
    }

    fn with(bytes: usize, is_memlock: bool) -> Budget {
        Budget(Arc::new(Shared { bytes, is_memlock, book: Book::new() }))
    }

    /// This process's book.
    fn book(&self) -> &Book {
        let (mut book, forks) = (&self.0.book, fork_generation());
        while book.forks != forks {
            book = book.childs.get_or_init(|| Box::new(Book::new()));
        }
        book
    }

    /// What somebody can do who finds it used up.
    pub(crate) fn remedy(&self) -> &'static str {
        match self.0.is_memlock {
            true => {
                "give leases back, or raise `ulimit -l` (on a cluster: LimitMEMLOCK, PropagateResourceLimits)"
            }
            false => "give leases back, or raise the budget",
        }
    }

    /// Bytes that may be pinned at a time.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Bytes pinned now, by all registries of the budget.
    pub fn pinned(&self) -> usize {
        self.book().pinned.load(Relaxed)
    }

    /// What each registry holds.
    pub fn holdings(&self) -> Vec<Holding> {
        self.members().iter().map(|member| member.holding()).collect()
    }

    /// Takes `bytes` if that many are left.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        // Relaxed: the number stands for itself.
        let more = |pinned: usize| pinned.checked_add(bytes).filter(|&sum| sum <= self.0.bytes);
        self.book().pinned.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Gives back what `take` took.
    pub(crate) fn give(&self, bytes: usize) {
        self.book().pinned.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn join(&self, member: Weak<dyn Member>) {
        let mut members = self.book().members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|member| member.strong_count() > 0);
        members.push(member);
    }

    /// Asks every registry but the one at `asking` for room. The caller holds no
    /// registry's lock.
    pub(crate) fn ask_others(&self, asking: *const ()) -> GivenWay {
        let others = self.members().into_iter().filter(|member| Arc::as_ptr(member).cast() != asking);
        others.map(|member| member.give_way()).max().unwrap_or(GivenWay::Nothing)
    }

    fn members(&self) -> Vec<Arc<dyn Member>> {
        let members = self.book().members.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().filter_map(Weak::upgrade).collect()
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("bytes", &self.bytes()).field("pinned", &self.pinned()).finish()
    }
}
