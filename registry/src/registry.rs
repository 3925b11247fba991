//! The registry: what callers see, and the threads' shards.

use crate::access::Access;
use crate::backend::{Backend, BackendError, MemoryKey, Unlocked};
use crate::budget::{Budget, GivenWay, Holding, Member};
use crate::builder::{Builder, Events};
use crate::cache::{Cache, Graves, Locked};
use crate::clock;
use crate::coarsen::Coarsen;
use crate::completion::Completion;
use crate::error::GetError;
use crate::explain::Explanation;
use crate::lease::Lease;
use crate::miss;
use crate::owner::{Owner, Owners};
use crate::range::{AsRange, ByteRange, PageRange};
use crate::reaper::Reaper;
use crate::regions::{Held, Wanted};
use crate::room;
use crate::shards;
use crate::stats::Stats;
use crate::traced::Traced;
use crate::trust::{self, Serving, Trust, Uncached};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pinyard_hooks::MapPlace;
use pinyard_trace::Kind;
use pinyard_trace::counters::{Counters, Publisher};
use pinyard_worker::{caught, log};
use std::sync::atomic::AtomicBool;

/// A registration cache. A handle: clones share one cache.
///
/// Any thread may call any method at any time, but for hooks, signal handlers
/// and backends' own callbacks on the range that is being registered. When the
/// last handle and the last owned lease are gone, everything has been deregistered
/// when that drop returns, unless it happens inside a backend's call.
#[derive(Clone)]
pub struct Registry {
    pub(crate) inner: Owner,
}

pub(crate) struct Inner {
    pub(crate) owners: Owners,
    pub(crate) cache: Cache<MapPlace>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) events: Events,
    pub(crate) coarsen: Coarsen,
    pub(crate) trust: Trust,
    pub(crate) traced: Traced,
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
    /// holder still has it, but nobody else finds it. Where other threads change the
    /// mapping again and again while it is being registered, the registration is for
    /// this caller alone and ends with the lease; of pages that changed meanwhile the
    /// device may have the old ones.
    ///
    /// A hit takes no lock and tens of nanoseconds; a miss takes as long as the
    /// backend. Not for signal handlers.
    #[inline(always)] // the hit; a miss is out of line
    pub fn get(&self, buffer: impl AsRange, access: Access) -> Result<Lease<'_>, GetError> {
        let ((start, len), shard) = (buffer.as_range(), shards::mine());
        match self.hit(start, len, access, shard) {
            Some(lease) => Ok(lease),
            None => self.miss(start, len, access, shard),
        }
    }

    /// A registration from the cache, held as [`get`](Registry::get) holds it; `None` where there is none
    /// that serves, or where events wait to be applied (then `get` answers). Takes no lock, and makes no
    /// system call, so it is no cancellation point.
    ///
    /// ```
    /// # use pinyard_registry::backend::Custom;
    /// # use pinyard_registry::{Access, Events, MemoryKey, Registry};
    /// let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    /// let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build()?;
    /// let buffer = [0u8; 100];
    /// assert!(registry.get_cached(&buffer, Access::LOCAL_READ).is_none());
    /// drop(registry.get(&buffer, Access::LOCAL_READ)?);
    /// assert!(registry.get_cached(&buffer, Access::LOCAL_READ).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn get_cached(&self, buffer: impl AsRange, access: Access) -> Option<Lease<'_>> {
        let (start, len) = buffer.as_range();
        self.hit(start, len, access, shards::mine())
    }

    #[inline(always)]
    fn hit(&self, start: usize, len: usize, access: Access, shard: u32) -> Option<Lease<'_>> {
        if pinyard_hooks::unsettled() {
            return None;
        }
        let held = self.inner.cache.hit(start, len, access, shard)?;
        Some(Lease { registry: self, held })
    }

    // Words, not a struct: it would be spilled on every hit.
    #[cold]
    #[inline(never)]
    fn miss(&self, start: usize, len: usize, access: Access, shard: u32) -> Result<Lease<'_>, GetError> {
        // First, and without a box: in a child whose malloc may be locked for ever.
        self.inner.check_fork()?;
        let wanted = Wanted { bytes: ByteRange { start, len }, access, shard };
        match miss::get(&self.inner, wanted) {
            Ok(held) => Ok(Lease { registry: self, held }),
            Err(error) => Err(*error),
        }
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
        let (start, len) = buffer.as_range();
        if pinyard_hooks::unsettled() {
            return None;
        }
        self.inner.cache.peek(start, len, access)
    }

    /// Takes out every registration that shares a page with `buffer`, now.
    /// Leases keep theirs; the rest is deregistered before this returns. A `get` of
    /// these pages that is registering meanwhile registers anew, after this.
    pub fn invalidate(&self, buffer: impl AsRange) -> Result<(), GetError> {
        let range = ByteRange::from(buffer.as_range()).pages()?;
        self.retire(range, |locked| locked.invalidate(range, None))
    }

    /// As [`invalidate`](Registry::invalidate), without waiting: `done` is called
    /// when the device has no registration of these pages left that was made
    /// or begun before, however long leases are held; at once if there is none.
    /// Exactly once, on whichever thread deregisters the last one (the reaper's, a
    /// thread inside `get`, or this one), with no lock held. It may call the
    /// registry; a panic of it is caught.
    pub fn invalidate_then(
        &self,
        buffer: impl AsRange,
        done: impl FnOnce() + Send + 'static,
    ) -> Result<(), GetError> {
        let range = ByteRange::from(buffer.as_range()).pages()?;
        self.inner.check_fork()?;
        let done = Completion::new(done);
        let mut unlocked = Unlocked::at_entry();
        let mut locked = self.inner.cache.lock(&mut unlocked);
        locked.drain();
        locked.invalidate(range, Some(done.clone()));
        drop(locked);
        self.inner.bury(&mut unlocked);
        drop(done);
        Ok(())
    }

    /// Why `buffer` is, or is not, served from the cache at this moment. Takes the
    /// lock: for diagnosis.
    pub fn explain(&self, buffer: impl AsRange, access: Access) -> Explanation {
        if self.inner.is_forked() {
            return Explanation::Forked;
        }
        match ByteRange::from(buffer.as_range()).pages() {
            Ok(pages) => {
                let mut unlocked = Unlocked::at_entry();
                self.inner.cache.lock(&mut unlocked).explain(pages, access, clock::tick())
            }
            Err(error) => Explanation::Range(error),
        }
    }

    /// Takes out every registration, likewise.
    pub fn flush(&self) -> Result<(), GetError> {
        self.retire(PageRange::ALL, |locked| locked.flush())
    }

    /// What is in `range`.
    fn retire(
        &self,
        range: PageRange,
        take_out: impl FnOnce(&mut Locked<'_, MapPlace>),
    ) -> Result<(), GetError> {
        self.inner.check_fork()?;
        let mut unlocked = Unlocked::at_entry();
        let mut locked = self.inner.cache.lock(&mut unlocked);
        locked.drain();
        take_out(&mut locked);
        let buried = locked.writer.counters.deregistrations;
        drop(locked);
        self.inner.tidy(&mut unlocked);
        room::bury_and_wait(&self.inner, &mut unlocked, range, buried);
        Ok(())
    }

    /// Why registrations of `buffer` are not kept for the next `get`, as it is mapped
    /// now; `None` where they are.
    pub fn why_uncached(&self, buffer: impl AsRange) -> Result<Option<Uncached>, GetError> {
        let range = ByteRange::from(buffer.as_range()).pages()?;
        self.inner.check_fork()?;
        trust::settle();
        Ok(self.inner.trust.judge(range))
    }

    /// Which mechanisms tell this registry of changes, and why those. For reports: it
    /// looks at every loaded object that nobody has looked at.
    pub fn serving(&self) -> Serving {
        self.inner.trust.serving()
    }

    /// Counters, exact when no other thread is at work. Takes the lock, and first
    /// retires what events have touched, so it looks at a bit of every region: 4,500
    /// instructions with 10,000 of them (`benches/instructions.txt`). All zero in a forked
    /// child, where another thread may have held the lock.
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Regions that somebody holds a lease of. Exact when no other thread is at work.
    /// Takes the lock and looks at every region: for whoever is about to take the
    /// device away. 0 in a forked child.
    pub fn regions_in_use(&self) -> usize {
        if self.inner.is_forked() {
            return 0;
        }
        let mut unlocked = Unlocked::at_entry();
        self.inner.cache.lock(&mut unlocked).in_use()
    }

    /// What may be pinned, and what is.
    pub fn budget(&self) -> &Budget {
        &self.inner.cache.geometry.budget
    }

    /// The backend's name.
    pub fn backend_name(&self) -> &'static str {
        self.inner.backend.name()
    }
}

impl Publisher for Inner {
    fn publish(&self, to: &mut Counters) {
        let stats = self.stats();
        to.hits += stats.hits;
        to.misses += stats.misses;
        to.registrations += stats.registrations;
        to.deregistrations += stats.deregistrations;
        to.invalidations += stats.invalidations;
        to.evictions += stats.evictions;
        to.pinned_bytes += stats.pinned_bytes;
    }
}

impl Inner {
    pub(crate) fn stats(&self) -> Stats {
        if self.is_forked() {
            return Stats::default();
        }
        let mut unlocked = Unlocked::at_entry();
        self.tidy(&mut unlocked);
        let tick = clock::tick();
        let locked = self.cache.lock(&mut unlocked);
        let (regions, graveyard) = locked.population();
        let counters = locked.writer.counters;
        Stats {
            hits: self.cache.counts.hits() + counters.hits,
            misses: counters.misses,
            registrations: counters.registrations,
            deregistrations: counters.deregistrations,
            failed_deregistrations: counters.failed_deregistrations,
            invalidations: counters.invalidations,
            merges: counters.merges,
            evictions: counters.evictions,
            flushes: counters.flushes,
            overflows: counters.overflows,
            retries: counters.retries,
            uncached: counters.uncached,
            regions: regions as u64,
            graveyard: graveyard as u64,
            pinned_bytes: locked.writer.pinned as u64,
            registering: locked.writer.registering.in_time(tick),
            deregistering: locked.writer.deregistering.in_time(tick),
        }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.forks != pinyard_hooks::fork_generation()
    }

    pub(crate) fn check_fork(&self) -> Result<(), GetError> {
        if self.is_forked() { Err(GetError::Forked) } else { Ok(()) }
    }

    /// Gives a lease's reference back.
    #[inline]
    pub(crate) fn release(&self, held: &Held) {
        self.cache.counts.release(held, shards::mine());
    }

    /// Retires what nobody finds any more, a slice at a time so that a `get` that
    /// waits for the lock gets its turn.
    pub(crate) fn tidy(&self, unlocked: &mut Unlocked) {
        while self.cache.lock(unlocked).tidy() {}
    }

    /// Deregisters what nobody holds any more.
    pub(crate) fn bury(&self, unlocked: &mut Unlocked) {
        let mut locked = self.cache.lock(unlocked);
        locked.look_again();
        loop {
            let graves = locked.graves();
            if graves.list.is_empty() {
                return;
            }
            drop(locked);
            locked = self.take_back(graves, unlocked);
        }
    }

    /// Buries what `graves` handed out. The backend, and who waits for it, are called
    /// without the lock.
    pub(crate) fn take_back<'a>(
        &'a self,
        mut graves: Graves,
        unlocked: &'a mut Unlocked,
    ) -> Locked<'a, MapPlace> {
        self.deregister(&mut graves, unlocked);
        let mut locked = self.cache.lock(unlocked);
        let done = locked.buried(graves);
        self.changed.notify_all();
        if done.is_some() {
            MutexGuard::unlocked(&mut locked.writer, || drop(done));
        }
        locked
    }

    /// Without the lock: the backend lets go.
    pub(crate) fn deregister(&self, graves: &mut Graves, unlocked: &Unlocked) {
        for grave in &mut graves.list {
            let began = grave.is_timed.then(clock::ticks);
            let call = self.traced.begin();
            let deregister = || self.backend.deregister(grave.key, grave.range, unlocked);
            // A custom backend's panic must not take the reaper, or the budget, with it.
            let answer = caught(|| miss::in_backend(deregister))
                .unwrap_or_else(|_| Err(BackendError::new("deregister: the backend panicked", 0)));
            grave.failed = answer.is_err();
            if let Some(call) = call {
                call.end(self.traced, Kind::Deregister, grave.range);
            }
            if grave.watched {
                self.trust.end(grave.range);
            }
            if let Err(error) = answer {
                log!(warn, backend = self.backend.name(), %error, "deregistration failed");
            }
            grave.ticks = began.map(|began| clock::ticks().wrapping_sub(began));
        }
    }
}

impl Member for Inner {
    fn holding(&self) -> Holding {
        // The program's code may say it: not for under the lock.
        let backend = self.backend.name();
        let mut unlocked = Unlocked::at_entry();
        let locked = self.cache.lock(&mut unlocked);
        let (live, retired) = locked.population();
        Holding { backend, pinned: locked.writer.pinned, regions: live + retired }
    }

    fn give_way(&self) -> GivenWay {
        let mut unlocked = Unlocked::at_entry();
        let mut locked = self.cache.lock(&mut unlocked);
        let before = locked.writer.counters.deregistrations;
        // What it retires, the reaper may be quicker to take back than this thread.
        let soon = locked.make_room() || locked.makes_room();
        drop(locked);
        self.bury(&mut unlocked);
        let given = self.cache.lock(&mut unlocked).writer.counters.deregistrations != before;
        match given {
            true => GivenWay::Now,
            false if soon => GivenWay::Soon,
            false => GivenWay::Nothing,
        }
    }
}
