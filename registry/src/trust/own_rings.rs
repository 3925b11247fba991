//! The io_urings that are the backend's own: they change no mapping.
//!
//! A descriptor's number may be another ring's by now, where the program has closed what it does not know.
//! The mappings of the backend's ring stay, so whoever counts them as well finds the other ring.
//!
//! Atomics alone, so that a forked child cannot find a lock taken; what it inherits is
//! still the backend's.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// Own rings that can be told from others at a time; one more counts as another's, which
/// costs time and nothing else.
const MOST: usize = 256;
const NONE: u64 = u64::MAX;
/// What the kernel maps for a ring.
const MAPPINGS: usize = 2;
/// How often what is read while rings were made is read anew.
const TRIES: u32 = 10;

/// Descriptors, and above each the fork generation of the process that made the ring.
static OWN: [AtomicU64; MOST] = [const { AtomicU64::new(NONE) }; MOST];
/// Which file each is: the number of its inode.
static FILES: [AtomicU64; MOST] = [const { AtomicU64::new(NONE) }; MOST];
/// Rings that are being made or closed.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// Counts those that have been.
static CHANGED: AtomicU32 = AtomicU32::new(0);

/// Lives while a ring of the backend's is made or closed.
pub(crate) struct Changing(());

impl Changing {
    pub(crate) fn begin() -> Changing {
        CHANGING.fetch_add(1, SeqCst);
        Changing(())
    }

    /// It is made. `file` is the number of its inode.
    pub(crate) fn add(&self, fd: i32, file: u64) {
        let own = u64::from(pinyard_hooks::fork_generation()) << 32 | u64::from(fd as u32);
        for (place, of) in OWN.iter().zip(&FILES) {
            if place.compare_exchange(NONE, own, SeqCst, Relaxed).is_ok() {
                return of.store(file, SeqCst);
            }
        }
    }

    /// It is about to be closed: its number may be another's next.
    pub(crate) fn remove(&self, fd: i32, file: u64) {
        if let Some((place, of)) = place_of(fd, file) {
            of.store(NONE, SeqCst);
            place.store(NONE, SeqCst);
        }
    }
}

/// Where the ring stands.
fn place_of(fd: i32, file: u64) -> Option<(&'static AtomicU64, &'static AtomicU64)> {
    let is_it = |(place, of): &(&AtomicU64, &AtomicU64)| {
        let own = place.load(SeqCst);
        own != NONE && own as u32 == fd as u32 && of.load(SeqCst) == file
    };
    OWN.iter().zip(&FILES).find(is_it)
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGED.fetch_add(1, SeqCst);
        CHANGING.fetch_sub(1, SeqCst);
    }
}

/// Waits a little for those that are being made or closed at this moment. A forked child may wait for
/// a thread that it has not: not for ever.
fn until(done: impl Fn() -> bool) {
    const PATIENCE: u32 = 1000;
    for _ in 0..PATIENCE {
        if done() || CHANGING.load(SeqCst) == 0 {
            return;
        }
        std::thread::yield_now();
    }
}

/// Whether the descriptor, of this inode, is a ring of the backend's. Before Linux 5.16 all rings have one
/// inode, and the number alone tells: there is a mapping for each of them.
pub(super) fn is_own(fd: i32, file: u64) -> bool {
    let is_known = || place_of(fd, file).is_some();
    until(is_known);
    is_known()
}

/// What `read` answers while no ring of the backend's is made or closed, and how many mappings its rings
/// have. Those that a forked child inherits are not mapped there.
pub(super) fn unchanged<R>(read: impl Fn() -> R) -> (usize, R) {
    let count = || {
        let mine = pinyard_hooks::fork_generation();
        OWN.iter().filter(|own| own.load(SeqCst) != NONE && own.load(SeqCst) >> 32 == u64::from(mine)).count()
    };
    let mut tries = 0;
    loop {
        until(|| false);
        let (changed, before) = (CHANGED.load(SeqCst), count());
        let answer = read();
        tries += 1;
        let is_unchanged = CHANGING.load(SeqCst) == 0 && CHANGED.load(SeqCst) == changed;
        if is_unchanged || tries == TRIES {
            // Rather too few than too many: then one is taken for another's.
            return (before.min(count()) * MAPPINGS, answer);
        }
    }
}
