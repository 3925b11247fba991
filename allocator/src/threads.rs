//! Which magazines a thread has: one cache per pool that it uses, found by the
//! pool's core.
//!
//! The cache used last is found with one comparison. A thread's end gives all its
//! magazines back. A cache of a pool that is gone is forgotten when the thread
//! makes its next one.
#![allow(unsafe_code)]

use crate::magazine::Cache;
use crate::shared::{Cold, Core};
use crate::source::DriverToken;
use parking_lot::MutexGuard;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

struct Entry {
    core: Arc<Core>,
    cache: Arc<Cache>,
}

/// All caches of a thread.
struct Entries(RefCell<Vec<Entry>>);

thread_local! {
    /// The core and cache of the entry used last; null pointers if there is none.
    /// Apart from the entries, because it needs no destructor: it costs a load.
    static LAST: Cell<(*const Core, *const Cache)> = const { Cell::new((ptr::null(), ptr::null())) };
    static ENTRIES: Entries = const { Entries(RefCell::new(Vec::new())) };
}

/// Runs `work` on the thread's cache for `core`, made if need be. `None` in a
/// thread that is ending, or for a pool that is closed.
#[inline(always)]
pub(crate) fn with<R>(core: &Arc<Core>, work: impl FnOnce(&Cache) -> R) -> Option<R> {
    let cache = find(Arc::as_ptr(core)).or_else(|| add_waiting(core))?;
    // SAFETY: the entry lives until the thread ends or `add` drops it; `work` reaches
    // neither: it does not call into the pool.
    Some(work(unsafe { &*cache }))
}

/// The same, if the thread has one. `core` need not stand.
#[inline(always)]
pub(crate) fn with_existing<R>(core: *const Core, work: impl FnOnce(&Core, &Cache) -> R) -> Option<R> {
    let cache = find(core)?;
    // SAFETY: the entry that was found keeps both; see `with`.
    Some(work(unsafe { &*core }, unsafe { &*cache }))
}

/// Makes the thread a cache for `core`, if that needs no waiting.
pub(crate) fn adopt(core: &Arc<Core>) {
    if find(Arc::as_ptr(core)).is_none()
        && let Some(cold) = core.try_lock()
    {
        add(core, cold);
    }
}

/// In a forked child: the next use of any pool finds that it is the parent's.
pub(crate) fn forget_last() {
    LAST.set((ptr::null(), ptr::null()));
}

#[inline(always)]
fn find(core: *const Core) -> Option<*const Cache> {
    let (last, cache) = LAST.get();
    if last == core { Some(cache) } else { search(core) }
}

#[cold]
#[inline(never)]
fn search(core: *const Core) -> Option<*const Cache> {
    let found = ENTRIES.try_with(|entries| {
        let entries = entries.0.borrow();
        let entry = entries.iter().find(|entry| Arc::as_ptr(&entry.core) == core)?;
        if entry.core.is_forked() {
            return None;
        }
        Some(Arc::as_ptr(&entry.cache))
    });
    let cache = found.ok().flatten()?;
    LAST.set((core, cache));
    Some(cache)
}

#[cold]
#[inline(never)]
fn add_waiting(core: &Arc<Core>) -> Option<*const Cache> {
    if core.is_forked() {
        return None;
    }
    add(core, core.lock(&mut DriverToken::at_entry()))
}

fn add(core: &Arc<Core>, mut cold: MutexGuard<'_, Cold>) -> Option<*const Cache> {
    // Under the lock: a closed pool hears of no new cache.
    if core.closed.load(Relaxed) {
        return None;
    }
    let cache = Arc::new(Cache::new());
    let pointer = Arc::as_ptr(&cache);
    let forgotten = ENTRIES.try_with(|entries| {
        cold.caches.push(cache.clone());
        drop(cold);
        let mut entries = entries.0.borrow_mut();
        let (forgotten, kept): (Vec<_>, Vec<_>) =
            entries.drain(..).partition(|entry| entry.core.closed.load(Relaxed));
        *entries = kept;
        entries.push(Entry { core: core.clone(), cache });
        forgotten
    });
    let forgotten = forgotten.ok()?;
    LAST.set((Arc::as_ptr(core), pointer));
    // Cores may go with it: after the borrow, and after `LAST` has left them.
    drop(forgotten);
    Some(pointer)
}

impl Drop for Entries {
    fn drop(&mut self) {
        // Other thread-locals' destructors may still free blocks.
        forget_last();
        self.0.borrow_mut().clear();
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.core.retire(&self.cache);
    }
}
