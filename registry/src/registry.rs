//! The registry: what callers see, and the threads' shards.

use crate::access::Access;
use crate::backend::{Backend, BackendError, MemoryKey, Unlocked};
use crate::builder::{Builder, Events};
use crate::cache::{Cache, Locked, Wanted};
use crate::error::GetError;
use crate::lease::Lease;
use crate::miss;
use crate::range::{AsRange, ByteRange};
use crate::reaper::Reaper;
use crate::regions::Held;
use crate::stats::Stats;
use crate::trust::{self, Trust, Uncached};
use parking_lot::{Condvar, Mutex};
use pinyard_hooks::Subscription;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// A registration cache. A handle: clones share one cache.
///
/// Any thread may call any method at any time, but for hooks, signal handlers
/// and backends' own callbacks on the range that is being registered. When the
/// last handle and the last owned lease are gone, everything is deregistered.
#[derive(Clone)]
pub struct Registry {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) cache: Cache<Subscription>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) events: Events,
    pub(crate) trust: Trust,
    /// The fork generation of the process that made the registry.
    pub(crate) forks: u32,
    /// Signalled when a registration has landed or graves have been buried.
    pub(crate) changed: Condvar,
    /// The reaper waits without a timeout.
    pub(crate) reaper_sleeps: AtomicBool,
    pub(crate) reaper: Mutex<Option<Reaper>>,
}

impl Registry {
    /// Starts making a registry.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// A registration that covers `buffer` and allows `access`, from the cache
    /// or newly made, held until the lease is dropped.
    ///
    /// `buffer` is a slice or an address with a length in bytes. Registrations
    /// are whole pages of 4096 bytes; one that overlaps others takes their place
    /// and covers all of them. The memory is neither read nor written.
    ///
    /// While the lease lives the device may use the pages that are mapped *now*.
    /// Unmapping them meanwhile does not end the registration: the lease's
    /// holder still has it, but nobody else finds it.
    ///
    /// A hit takes no lock and tens of nanoseconds; a miss takes as long as the
    /// backend. Not for signal handlers.
    #[inline]
    pub fn get(&self, buffer: impl AsRange, access: Access) -> Result<Lease<'_>, GetError> {
        let bytes = ByteRange::new(buffer.as_range())?;
        let wanted = Wanted { bytes, access, shard: shard() };
        let hit = if pinyard_hooks::unsettled() { None } else { self.inner.cache.hit(wanted) };
        let held = match hit {
            Some(held) => held,
            None => miss::get(&self.inner, wanted)?,
        };
        Ok(Lease { registry: self, held })
    }

    /// The key of a cached registration that covers `buffer`, without holding
    /// it; `None` where there is none, or where events wait to be applied (then
    /// [`get`](Registry::get) answers).
    ///
    /// The caller keeps the buffer mapped while it uses the key, and a limit of
    /// the registry may deregister it at any time: for registries whose budget
    /// is not exceeded. Cheaper than `get`: nothing is written.
    #[inline]
    pub fn lookup(&self, buffer: impl AsRange, access: Access) -> Option<MemoryKey> {
        let bytes = ByteRange::new(buffer.as_range()).ok()?;
        if pinyard_hooks::unsettled() {
            return None;
        }
        self.inner.cache.peek(bytes, access)
    }

    /// Takes out every registration that shares a page with `buffer`, now.
    /// Leases keep theirs; the rest is deregistered before this returns.
    pub fn invalidate(&self, buffer: impl AsRange) -> Result<(), GetError> {
        let range = ByteRange::new(buffer.as_range())?.pages();
        self.retire(|locked| locked.invalidate(range))
    }

    /// Takes out every registration, likewise.
    pub fn flush(&self) -> Result<(), GetError> {
        self.retire(|locked| locked.flush())
    }

    fn retire(&self, take_out: impl FnOnce(&mut Locked<'_, Subscription>)) -> Result<(), GetError> {
        self.inner.check_fork()?;
        let mut unlocked = Unlocked::at_entry();
        let mut locked = self.inner.cache.lock(&mut unlocked);
        locked.drain();
        take_out(&mut locked);
        let buried = locked.writer.counters.deregistrations;
        drop(locked);
        miss::bury_and_wait(&self.inner, &mut unlocked, buried);
        Ok(())
    }

    /// Why registrations of `buffer` are not kept for the next `get`, as it is mapped
    /// now; `None` where they are.
    pub fn why_uncached(&self, buffer: impl AsRange) -> Result<Option<Uncached>, GetError> {
        let range = ByteRange::new(buffer.as_range())?.pages();
        self.inner.check_fork()?;
        trust::settle();
        Ok(self.inner.trust.judge(range))
    }

    /// Counters. Takes the lock and reads every region's count: not for hot paths.
    /// All zero in a forked child, where another thread may have held the lock.
    pub fn stats(&self) -> Stats {
        if self.inner.is_forked() {
            return Stats::default();
        }
        let mut unlocked = Unlocked::at_entry();
        let locked = self.inner.cache.lock(&mut unlocked);
        let (regions, graveyard) = locked.population();
        let counters = locked.writer.counters;
        Stats {
            hits: locked.references().saturating_sub(counters.granted),
            misses: counters.misses,
            registrations: counters.registrations,
            deregistrations: counters.deregistrations,
            failed_deregistrations: counters.failed_deregistrations,
            invalidations: counters.invalidations,
            merges: counters.merges,
            evictions: counters.evictions,
            flushes: counters.flushes,
            retries: counters.retries,
            uncached: counters.uncached,
            events: self.inner.cache.source.pushed(),
            regions: regions as u64,
            graveyard: graveyard as u64,
            pinned_bytes: locked.writer.pinned as u64,
        }
    }

    /// The backend's name.
    pub fn backend_name(&self) -> &'static str {
        self.inner.backend.name()
    }
}

impl Inner {
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != pinyard_hooks::fork_generation()
    }

    pub(crate) fn check_fork(&self) -> Result<(), GetError> {
        if self.is_forked() { Err(GetError::Forked) } else { Ok(()) }
    }

    /// Gives a lease's reference back.
    #[inline]
    pub(crate) fn release(&self, held: &Held) {
        self.cache.regions.release(held);
    }

    /// Deregisters what nobody holds any more.
    pub(crate) fn bury(&self, unlocked: &mut Unlocked) {
        let graves = self.cache.lock(unlocked).graves();
        for grave in &graves {
            let deregister = || self.backend.deregister(grave.key, grave.range, unlocked);
            // A custom backend's panic must not take the reaper, or the budget, with it.
            let answer = catch_unwind(AssertUnwindSafe(|| miss::in_backend(deregister)))
                .unwrap_or_else(|_| Err(BackendError::new("deregister: the backend panicked", 0)));
            self.trust.end(grave.range);
            let mut locked = self.cache.lock(unlocked);
            locked.buried(grave);
            if let Err(error) = answer {
                locked.writer.counters.failed_deregistrations += 1;
                drop(locked);
                tracing::warn!(backend = self.backend.name(), %error, "deregistration failed");
            }
        }
        if !graves.is_empty() {
            self.changed.notify_all();
        }
    }
}

impl Drop for Inner {
    /// No handle and no lease is left. In a forked child nothing is done: the
    /// registrations and the reaper are the parent's.
    fn drop(&mut self) {
        if self.is_forked() {
            if let Some(reaper) = self.reaper.get_mut().take() {
                reaper.forget();
            }
            return;
        }
        if let Some(reaper) = self.reaper.get_mut().take() {
            reaper.stop();
        }
        let mut unlocked = Unlocked::at_entry();
        self.cache.lock(&mut unlocked).flush();
        self.bury(&mut unlocked);
    }
}

const MOST_SHARDS: usize = 64;

/// Shards of a registry: enough that as many threads as there are cores rarely
/// share one, a power of two.
pub(crate) fn shard_count() -> usize {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the number stands for itself, and every thread computes the same.
    if COUNT.load(Relaxed) == 0 {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        COUNT.store((2 * cores).next_power_of_two().clamp(8, MOST_SHARDS) as u32, Relaxed);
    }
    COUNT.load(Relaxed) as usize
}

/// The calling thread's shard: threads take turns.
#[inline]
pub(crate) fn shard() -> u32 {
    const UNSET: u32 = u32::MAX;
    thread_local! { static SHARD: Cell<u32> = const { Cell::new(UNSET) }; }
    #[cold]
    fn assign() -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let shard = NEXT.fetch_add(1, Relaxed) & (shard_count() as u32 - 1);
        SHARD.set(shard);
        shard
    }
    match SHARD.get() {
        UNSET => assign(),
        shard => shard,
    }
}
