//! Counters.

use crate::times::Times;

/// What the writer counts under its lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) misses: u64,
    /// Hits that took the lock; the others are counted per shard.
    pub(crate) hits: u64,
    pub(crate) registrations: u64,
    pub(crate) deregistrations: u64,
    pub(crate) failed_deregistrations: u64,
    pub(crate) invalidations: u64,
    pub(crate) merges: u64,
    pub(crate) evictions: u64,
    pub(crate) flushes: u64,
    pub(crate) overflows: u64,
    pub(crate) retries: u64,
    pub(crate) uncached: u64,
}

/// A registry's counters at one moment. All but the last group only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// `get`s served by a region that was there.
    pub hits: u64,
    /// `get`s that had to register, or failed to.
    pub misses: u64,
    /// Registrations made by the backend.
    pub registrations: u64,
    /// Registrations taken back by the backend.
    pub deregistrations: u64,
    /// Registrations that the backend refused to take back.
    pub failed_deregistrations: u64,
    /// Regions taken out because their mapping changed or on request.
    pub invalidations: u64,
    /// Regions that a larger or more permissive one replaced.
    pub merges: u64,
    /// Regions taken out to stay within the limits.
    pub evictions: u64,
    /// Times that every region was taken out: overflow, lost hooks, `flush`.
    pub flushes: u64,
    /// Events that touched too much to be marked by the hook (more than 4096 entries
    /// of the directory) and were left to be applied in slices. Where more than
    /// 256 of those wait at a time, some become one that covers what lies between them.
    pub overflows: u64,
    /// Registrations made again because the mapping changed meanwhile.
    pub retries: u64,
    /// Registrations that served their caller alone and were not cached.
    pub uncached: u64,
    /// Regions that a `get` can find now.
    pub regions: u64,
    /// Regions retired but still held, or not yet deregistered.
    pub graveyard: u64,
    /// Bytes pinned now, those being registered or retired included.
    pub pinned_bytes: u64,
    /// How long the backend took to register.
    pub registering: Times,
    /// How long the backend took to deregister.
    pub deregistering: Times,
}
