//! The monitor itself: hooks push, libfabric's lookups pull.
//!
//! ```text
//! munmap, madvise … -> pinyard_hooks -> Sink (no lock, no allocation)
//! fi_mr_reg -> mm_lock -> valid()     -> drain the sink -> Table -> yes | no
//!                      -> subscribe() -> watch, drain   -> Table -> cache it | do not
//! helper thread        -> deliver()   -> drain -> Table -> import_ops->notify -> mm_lock
//! ```
//!
//! [`Monitor::valid`] and [`Monitor::subscribe`] run under libfabric's `mm_lock`.
//! They allocate nothing, log nothing and wait for nobody: the table is only ever
//! *tried*, a few hundred times at most, and where the helper has it all that time the
//! answer is "no", which costs one registration.
//!
//! What a "yes" means: the entry was subscribed, and no event that overlaps it
//! was published between its subscription and this call. An event older than
//! the subscription leaves it alone, however late it is drained.
//!
//! **The race that remains** is libfabric's own: it pins the pages first and
//! subscribes afterwards, and does not say when it began. A change of the same
//! pages by another thread in that window is taken for an older one, or is not
//! seen at all where nothing near was watched before. Only a program that
//! unmaps a buffer while it hands it to libfabric can get there. A change that
//! was announced in the window and happens after the subscription is caught
//! (`begin_registration`).

use super::table::{Answer, Subscribed, Table};
use pinyard_hooks::{PAGE_SIZE, Subscription, begin_registration, fork_generation};
use std::collections::TryReserveError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard};

/// Keys that the table holds: sixteen times the entries that libfabric caches in
/// a domain unless told otherwise (`FI_MR_CACHE_MAX_COUNT` 1024).
pub(super) const KEYS: usize = 16_384;
/// One past the highest address of a 47-bit user space.
const TOP: usize = 1 << 47;

/// What the monitor has done so far. Counts since the import, but for `keys`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lookups that found an entry and asked whether it is still good.
    pub valid_calls: u64,
    /// Those that were told "no".
    pub stale_answers: u64,
    /// Entries that libfabric was allowed to cache.
    pub subscriptions: u64,
    /// Entries that it was told not to cache.
    pub refusals: u64,
    /// Changes of mappings drained from the hooks.
    pub events: u64,
    /// Stale ranges that the helper took out of libfabric's caches.
    pub deliveries: u64,
    /// Ranges known at the moment.
    pub keys: u64,
}

impl std::ops::Add for Stats {
    type Output = Stats;

    /// What two monitors have done together.
    fn add(self, other: Stats) -> Stats {
        Stats {
            valid_calls: self.valid_calls + other.valid_calls,
            stale_answers: self.stale_answers + other.stale_answers,
            subscriptions: self.subscriptions + other.subscriptions,
            refusals: self.refusals + other.refusals,
            events: self.events + other.events,
            deliveries: self.deliveries + other.deliveries,
            keys: self.keys + other.keys,
        }
    }
}

#[derive(Default)]
struct Counts {
    valid_calls: AtomicU64,
    stale_answers: AtomicU64,
    subscriptions: AtomicU64,
    refusals: AtomicU64,
    events: AtomicU64,
    deliveries: AtomicU64,
    keys: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// The caller must not let libfabric cache the entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// One imported monitor.
pub(super) struct Monitor {
    sink: Subscription,
    /// Tried in callbacks, waited for by the helper and by `stop`, neither of
    /// which holds it while it waits for libfabric.
    table: Mutex<Table>,
    /// Every change of a mapping reaches the sink, as far as is known.
    trusted: AtomicBool,
    /// A subscription found no room.
    full: AtomicBool,
    /// Something may be stale that was not delivered yet. Written under `table`.
    unsettled: AtomicBool,
    /// A cache has been attached.
    attached: AtomicBool,
    /// The process that made the monitor; a forked child is another.
    generation: u32,
    counts: Counts,
}

impl Monitor {
    /// A monitor of `sink`'s events. `keys` entries are reserved now.
    pub(super) fn new(sink: Subscription, keys: usize) -> Result<Monitor, TryReserveError> {
        Ok(Monitor {
            sink,
            table: Mutex::new(Table::with_capacity(keys)?),
            trusted: AtomicBool::new(true),
            full: AtomicBool::new(false),
            unsettled: AtomicBool::new(false),
            attached: AtomicBool::new(false),
            generation: fork_generation(),
            counts: Counts::default(),
        })
    }

    /// libfabric has asked the monitor to start: before the first registration.
    pub(super) fn attach(&self) {
        // Relaxed: says nothing about anything else.
        self.attached.store(true, Relaxed);
    }

    pub(super) fn is_attached(&self) -> bool {
        self.attached.load(Relaxed)
    }

    /// False where an event may have been missed, and in a forked child, whose
    /// registrations are its parent's.
    fn usable(&self) -> bool {
        // Acquire: pairs with the Release in `trust`.
        self.trusted.load(Acquire) && pinyard_hooks::untouched() && !self.in_child()
    }

    pub(super) fn in_child(&self) -> bool {
        self.generation != fork_generation()
    }

    /// libfabric pinned `base..base + len` and is about to cache it.
    ///
    /// Called under `mm_lock`.
    pub(super) fn subscribe(&self, base: usize, len: usize) -> Result<(), Refused> {
        let outcome = self.try_subscribe(base, len);
        count(if outcome.is_ok() { &self.counts.subscriptions } else { &self.counts.refusals });
        outcome
    }

    fn try_subscribe(&self, base: usize, len: usize) -> Result<(), Refused> {
        let Some(end) = base.checked_add(len).filter(|&end| end > base) else {
            return Err(Refused);
        };
        if !self.usable() {
            return Err(Refused);
        }
        let mut table = self.try_table().ok_or(Refused)?;
        let known = table.contains(base, len);
        if !known {
            self.sink.watch(base..end);
        }
        // A hook that stands between its event and its change publishes again.
        begin_registration();
        // Older events first: they are about older entries.
        self.drain(&mut table);
        match table.subscribe(base, len) {
            Subscribed::First => {
                self.counts.keys.fetch_add(1, Relaxed);
                Ok(())
            }
            Subscribed::Again => Ok(()),
            Subscribed::RefusedStale => Err(Refused),
            Subscribed::RefusedFull => {
                self.full.store(true, Release);
                self.sink.unwatch(base..end);
                Err(Refused)
            }
        }
    }

    /// Whether the entry that libfabric found for `base..base + len` is still
    /// good. On "no" libfabric drops the entry and registers anew.
    ///
    /// Called under `mm_lock`.
    pub(super) fn valid(&self, base: usize, len: usize) -> bool {
        count(&self.counts.valid_calls);
        let valid = self.usable() && self.try_valid(base, len);
        if !valid {
            count(&self.counts.stale_answers);
        }
        valid
    }

    fn try_valid(&self, base: usize, len: usize) -> bool {
        let Some(mut table) = self.try_table() else { return false };
        self.drain(&mut table);
        match table.valid(base, len) {
            Answer::Valid => true,
            Answer::Stale | Answer::Unknown => false,
            Answer::StaleForgotten => {
                self.forgotten(base, len);
                false
            }
        }
    }

    /// Applies what the hooks have pushed. Holding the table makes this the only
    /// drainer.
    fn drain(&self, table: &mut Table) {
        if !self.sink.has_news() {
            return;
        }
        let mark = self.sink.begin();
        let everything = self.sink.take(|event| {
            table.mark(event.start(), event.end());
            count(&self.counts.events);
        });
        if everything {
            table.mark_everything();
            count(&self.counts.events);
        }
        self.sink.finish(mark);
        self.unsettled.store(true, Release);
    }

    fn forgotten(&self, base: usize, len: usize) {
        self.sink.unwatch(base..base + len);
        self.counts.keys.fetch_sub(1, Relaxed);
    }

    /// The table, in a callback: under `mm_lock`. The helper has it for less than a
    /// microsecond at a time, unless it is not run.
    fn try_table(&self) -> Option<MutexGuard<'_, Table>> {
        const TRIES: u32 = 200;
        let mut tries = 0..TRIES;
        tries.find_map(|_| {
            std::hint::spin_loop();
            self.table.try_lock().ok()
        })
    }

    /// Waits for the table. Not under `mm_lock`, not in a hook.
    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing that runs under the guard can panic and poison it; if it did,
        // `subscribe` and `valid` would answer "no" from then on.
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The last cache is gone, and its entries with it. libfabric calls this
    /// without `mm_lock`.
    pub(super) fn stop(&self) {
        if !self.in_child() {
            self.table().clear(|base, len| self.forgotten(base, len));
        }
    }

    /// What the hooks' last verification said. Not under `mm_lock`.
    pub(super) fn trust(&self, complete: bool) {
        if complete && !self.trusted.load(Acquire) {
            let mut table = self.table();
            table.mark_everything();
            self.unsettled.store(true, Release);
        }
        // Release: whoever reads true sees the marks.
        self.trusted.store(complete, Release);
    }

    /// Takes stale entries out of libfabric's caches, also those that nobody
    /// looks up again. `notify(base, len)` takes `mm_lock`: this is for a thread
    /// that is in no hook, no allocator and no libfabric call. One at a time.
    pub(super) fn deliver(&self, notify: impl Fn(usize, usize)) {
        if self.full.swap(false, AcqRel) {
            self.table().begin_delivery_of_everything();
            notify(PAGE_SIZE, TOP - PAGE_SIZE);
            self.table().delivered_everything(|base, len| self.forgotten(base, len));
            count(&self.counts.deliveries);
        }
        if !self.sink.has_news() && !self.unsettled.load(Acquire) {
            return;
        }
        let mut from = (0, 0);
        loop {
            let key = {
                let mut table = self.table();
                self.drain(&mut table);
                table.begin_delivery(from)
            };
            let Some((base, len)) = key else {
                break;
            };
            notify(base, len);
            if self.table().delivered(base, len) {
                self.forgotten(base, len);
            }
            count(&self.counts.deliveries);
            from = (base, len);
        }
        // Under the guard, as every store of `true`: none is lost.
        let mut table = self.table();
        table.wait();
        self.unsettled.store(table.has_stale(), Release);
    }

    /// What has been done so far.
    pub(super) fn stats(&self) -> Stats {
        let Counts { valid_calls, stale_answers, subscriptions, refusals, events, deliveries, keys } =
            &self.counts;
        Stats {
            valid_calls: valid_calls.load(Relaxed),
            stale_answers: stale_answers.load(Relaxed),
            subscriptions: subscriptions.load(Relaxed),
            refusals: refusals.load(Relaxed),
            events: events.load(Relaxed),
            deliveries: deliveries.load(Relaxed),
            keys: keys.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A callback never waits: where the helper has the table, the answer is "no".
    #[test]
    fn a_table_in_use_means_no() {
        let monitor = Monitor::new(pinyard_hooks::subscribe().unwrap(), 4).unwrap();
        assert_eq!(monitor.subscribe(0x6100_0000_0000, PAGE_SIZE), Ok(()));
        let helper = monitor.table();
        assert!(!monitor.valid(0x6100_0000_0000, PAGE_SIZE));
        assert_eq!(monitor.subscribe(0x6100_0000_0000, PAGE_SIZE), Err(Refused));
        drop(helper);
        assert!(monitor.valid(0x6100_0000_0000, PAGE_SIZE));
    }
}
