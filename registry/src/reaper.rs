//! The reaper: a thread that applies events and deregisters when nobody calls
//! `get`, so that memory which the program has given up does not stay pinned.
//!
//! A hook cannot wake anybody (that would be a system call), so the reaper looks
//! every 25 ms while anything is registered, and sleeps for good while nothing
//! is. It also looks whether the hooks are still in place: a library that is
//! loaded late may have patched over them.

use crate::ahead::Ahead;
use crate::backend::Unlocked;
use crate::builder::Events;
use crate::clock;
use crate::registry::Inner;
use crate::told::Told;
use pinyard_hooks::{THREAD_STACK, stack_size};
use pinyard_worker::{ThreadId, log};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

/// A quarter of the time within which pinned memory of unmapped regions must go.
const PERIOD: Duration = Duration::from_millis(25);

pub(crate) struct Reaper {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reaper {
    /// Ends the thread and waits for it, unless this is the thread.
    pub(crate) fn stop(self) {
        self.stop.store(true, SeqCst);
        self.thread.thread().unpark();
        if ThreadId::of(&self.thread) != ThreadId::current() {
            // It ends in no other way than by its return.
            pinyard_worker::join(self.thread);
        }
    }

    /// In a forked child: there is no such thread to wait for.
    pub(crate) fn forget(self) {
        std::mem::forget(self.thread);
    }

    fn thread(&self) -> &Thread {
        self.thread.thread()
    }
}

pub(crate) fn start(inner: &Arc<Inner>) -> std::io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let (kept, mut told) = ((Arc::downgrade(inner), stop.clone()), Told::default());
    let work = move |(registry, stopped): &(Weak<Inner>, Arc<AtomicBool>)| run(registry, stopped, &mut told);
    let thread = pinyard_worker::spawn("pinyard-reaper", stack_size(THREAD_STACK), kept, work, |panicked| {
        log!(error, "a registry's reaper panicked, and goes on: {panicked}");
    })?;
    *inner.reaper.lock() = Some(Reaper { stop, thread });
    Ok(())
}

fn run(registry: &Weak<Inner>, stopped: &AtomicBool, told: &mut Told) {
    while !stopped.load(SeqCst) {
        let Some(inner) = registry.upgrade() else { return };
        if inner.reap(told) {
            // SeqCst, with the swap in `wake_reaper`: either that sees the flag, or the
            // second look sees the region.
            inner.reaper_sleeps.store(true, SeqCst);
            let still_idle = inner.reap(told);
            drop(inner);
            if still_idle {
                thread::park();
            }
        } else {
            drop(inner);
            thread::park_timeout(PERIOD);
        }
    }
}

impl Inner {
    /// Applies events and buries. `true` if nothing is registered any more.
    fn reap(&self, told: &mut Told) -> bool {
        let unseen = self.events == Events::Hooks && !pinyard_hooks::verify();
        let mut unlocked = Unlocked::at_entry();
        if unseen {
            // Nobody may have told us: what is cached cannot be trusted.
            self.cache.lock(&mut unlocked).flush();
        }
        self.tidy(&mut unlocked);
        let mut locked = self.cache.lock(&mut unlocked);
        locked.writer.now = clock::ticks();
        let (idle, counters) = (locked.is_idle(), locked.writer.counters);
        drop(locked);
        told.tell(self.backend.name(), counters, unseen);
        self.go_ahead(&mut unlocked);
        self.bury(&mut unlocked);
        idle
    }

    /// Makes resident what the next misses will write. Without the lock: it takes the
    /// kernel a while.
    fn go_ahead(&self, unlocked: &mut Unlocked) {
        let ahead = self.cache.lock(unlocked).plan_ahead();
        if let Some(Ahead { slots, leaves }) = ahead {
            self.cache.counts.make_resident(slots.clone());
            self.cache.map.make_resident(slots, leaves);
        }
    }

    /// Called after a registration. `early`: not only if it sleeps for good.
    pub(crate) fn wake_reaper(&self, early: bool) {
        if (self.reaper_sleeps.load(SeqCst) && self.reaper_sleeps.swap(false, SeqCst) || early)
            && let Some(reaper) = &*self.reaper.lock()
        {
            reaper.thread().unpark();
        }
    }
}
