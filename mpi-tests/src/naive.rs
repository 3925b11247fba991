//! The registration cache as everybody writes it first: a map behind a mutex,
//! and hooks that take that mutex to find out what to invalidate.
//!
//! It hangs. Inserting allocates, the allocator releases pages, the hook waits
//! for the mutex that the inserting thread holds: libfabric's cache in Open MPI
//! #13149, with its registrations outside the lock and its entries marked in
//! place, so that the insertion is the only allocation under the lock.

use crate::cache::{Cache, Counts, Failure};
use crate::ring::Ring;
use crate::wire::{self, Wire};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

struct Entry {
    end: usize,
    slot: u16,
    dead: bool,
}

/// Registered ranges by their first page.
static MAP: Mutex<BTreeMap<usize, Entry>> = Mutex::new(BTreeMap::new());
static LISTENING: AtomicBool = AtomicBool::new(false);

static HITS: AtomicU64 = AtomicU64::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);
static INVALIDATIONS: AtomicU64 = AtomicU64::new(0);
static REGISTRATIONS: AtomicU64 = AtomicU64::new(0);

fn lock() -> MutexGuard<'static, BTreeMap<usize, Entry>> {
    MAP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the hooks call: the pages of `start..start + len` are about to change.
#[inline(never)]
pub fn unmapped(start: usize, len: usize) {
    if !LISTENING.load(Acquire) {
        return;
    }
    let mut map = lock();
    for (_, entry) in map.range_mut(..start.saturating_add(len)).rev() {
        if entry.end <= start {
            break; // entries do not overlap each other
        }
        if !entry.dead {
            entry.dead = true;
            INVALIDATIONS.fetch_add(1, Relaxed);
        }
    }
}

/// Makes the hooks pass everything by, for whoever must run in a hung process.
pub fn stop_listening() {
    LISTENING.store(false, Release);
}

/// The counters, without a lock: a hung process can be asked.
pub fn counts() -> Counts {
    Counts {
        hits: HITS.load(Relaxed),
        misses: MISSES.load(Relaxed),
        invalidations: INVALIDATIONS.load(Relaxed),
        registrations: REGISTRATIONS.load(Relaxed),
    }
}

/// The cache's interface; its map is static, for the hooks to find.
pub struct NaiveCache {
    ring: Ring,
}

impl NaiveCache {
    /// Starts to listen to the hooks.
    pub fn new() -> Result<NaiveCache, Failure> {
        let ring = Ring::new(64)?;
        LISTENING.store(true, Release);
        Ok(NaiveCache { ring })
    }

    /// The slot that pins the pages of `buffer`.
    #[inline(never)]
    fn get(&self, buffer: &[u8]) -> Result<u16, Failure> {
        let start = buffer.as_ptr().addr() & !(PAGE - 1);
        let end = (buffer.as_ptr().addr() + buffer.len()).next_multiple_of(PAGE);
        if let Some(entry) = lock().get(&start).filter(|entry| !entry.dead && entry.end >= end) {
            HITS.fetch_add(1, Relaxed);
            return Ok(entry.slot);
        }
        MISSES.fetch_add(1, Relaxed);
        let failed = |call: &str, error: std::io::Error| {
            Failure::new(format!("{call}({start:#x} + {} bytes): {error}", end - start))
        };
        let slot = self.ring.register(start, end - start).map_err(|error| failed("register", error))?;
        REGISTRATIONS.fetch_add(1, Relaxed);
        if let Some(old) = self.insert(start, Entry { end, slot, dead: false }) {
            self.ring.deregister(old.slot).map_err(|error| failed("deregister", error))?;
        }
        Ok(slot)
    }

    /// Publishes a registration. Here the cycle closes.
    #[inline(never)]
    fn insert(&self, start: usize, entry: Entry) -> Option<Entry> {
        let mut map = lock();
        map.insert(start, entry)
    }
}

impl Cache for NaiveCache {
    type Buffer = Vec<u8>;

    fn allocate(&self, len: usize) -> Result<Vec<u8>, Failure> {
        Ok(vec![0; len])
    }

    fn send(&self, buffer: &Vec<u8>, wire: &Wire) -> Result<(), Failure> {
        let slot = self.get(buffer)?;
        wire::all_written(self.ring.write(wire.rewind()?, slot, buffer), buffer.len())
    }

    fn hit(&self, buffer: &Vec<u8>) -> Result<(), Failure> {
        std::hint::black_box(self.get(buffer)?);
        Ok(())
    }

    fn counts(&self) -> Counts {
        counts()
    }
}
