//! What a device pool's threads share: the heap, the streams and what waits, under
//! one lock, and a list of blocks that were dropped, without one.
//!
//! The locks are held for bookkeeping only, the pool's before a stream's. The
//! driver, the source, registrars, observers and fences are called without them: a
//! [`DriverToken`] cannot be had while a guard lives.
//!
//! Who keeps the core: the pool's handles and its streams', and the worker, which
//! stays until the last block is free. So a block in use implies that it stands.
#![allow(unsafe_code)]

use super::block::{ANYBODY, BlockRef, NO_CLASS, Owner, Stack, State};
use super::classes::{CLASSES, Class};
use super::counts::Counts;
use super::error::Observer;
use super::heap::Heap;
use super::hub::{Hub, NEVER, Seen};
use super::leaks::Leaks;
use super::marks::Words;
use super::places::Departed;
use super::requests::DeviceRequests;
use super::slab::{Registrar, Slab};
use super::stream::StreamState;
use super::waiting::{Passed, Waiting};
use super::watch::Watch;
use crate::exit::{self, Heir};
use crate::fork;
use crate::growing::Growing;
use crate::inbox::Inbox;
use crate::pressure::{Told, Watermarks};
use crate::sleep::Sleep;
use crate::source::{DriverToken, Source};
use parking_lot::{Condvar, Mutex, MutexGuard};
use pinyard_driver::{Counted, Driver};
use std::hint;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

/// A thread that waits for the pool's lock looks so often before it lets the system wake it:
/// 4 microseconds. It is held for less, most of the time, and to sleep and be woken costs more,
/// also of the thread that holds it.
const LOOKS: u32 = 100;

pub(super) struct Settings {
    pub(super) slab_bytes: usize,
    /// May change at any time.
    pub(super) limit: AtomicUsize,
    pub(super) patience: Duration,
    /// A stream that is behind a mark for so long is not waited for on the device.
    pub(super) stall: Duration,
    pub(super) watermarks: Option<Watermarks>,
    pub(super) keep_idle: Option<Duration>,
}

impl Settings {
    pub(super) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }
}

pub(super) struct Core {
    pub(super) driver: Arc<dyn Driver>,
    /// For small blocks and for large ones: memory that joins must not mix them.
    pub(super) sources: [Arc<dyn Source>; 2],
    pub(super) registrar: Option<Box<dyn Registrar>>,
    pub(super) settings: Settings,
    pub(super) words: Option<Words>,
    pub(super) hub: Hub,
    /// Dropped blocks that other streams use.
    pub(super) dropped: Inbox<BlockRef>,
    /// Such blocks until they are free, and thefts that have begun: whoever is short of
    /// memory may wait for them.
    pub(super) coming: AtomicUsize,
    /// Sources of copies that have not passed.
    pub(super) copies: AtomicUsize,
    pub(super) requests: DeviceRequests,
    pub(super) observers: Mutex<Vec<Observer>>,
    pub(super) pressure: Told,
    pub(super) grown: Condvar,
    pub(super) worker: OnceLock<Thread>,
    pub(super) sleep: Sleep,
    /// No handle is left.
    pub(super) closed: AtomicBool,
    pub(super) tallies: Tallies,
    pub(super) counted: Arc<Counted>,
    pub(super) watch: Watch,
    pub(super) heirs: OnceLock<Vec<Heir<Leaks>>>,
    pub(super) trace_file: OnceLock<PathBuf>,
    /// For pointers to the core that become owners of it: those are of the whole Arc.
    pub(super) itself: Weak<Core>,
    forks: u32,
    central: Mutex<Central>,
}

/// How often what was done.
#[derive(Default)]
pub(super) struct Tallies {
    pub(super) growths: AtomicU64,
    pub(super) releases: AtomicU64,
    pub(super) steals: AtomicU64,
    pub(super) holds: AtomicU64,
    pub(super) squeezes: AtomicU64,
}

pub(super) struct Central {
    pub(super) heap: Heap,
    /// By owner less one; those that have left until others have their places. Shared, as who
    /// calls the driver for them may not hold the lock.
    pub(super) streams: Arc<Vec<Arc<StreamState>>>,
    pub(super) departed: Departed,
    pub(super) waiting: Waiting,
    /// By owner.
    pub(super) seen: Vec<Seen>,
    /// Of what `streams` has the pool's own, and how often memory was brought to it.
    pub(super) hub: Option<Arc<StreamState>>,
    pub(super) epoch: u64,
    /// Of the hub's stream: passed once all that was lent by now is anybody's.
    pub(super) epoch_mark: u64,
    /// Slabs that hold no block any more and could not be deregistered.
    pub(super) registered_still: Vec<Slab>,
    /// Small blocks for anybody.
    pub(super) bins: Box<[Stack]>,
    pub(super) bin_bytes: usize,
    /// Bytes of slabs, those coming and going included.
    pub(super) reserved: usize,
    pub(super) peak_reserved: usize,
    /// The thread that adds a slab, without the lock.
    pub(super) growing: Growing,
    /// How often the pool was looked over.
    pub(super) censuses: u32,
}

impl Core {
    pub(super) fn new(
        counted: Arc<Counted>,
        sources: [Arc<dyn Source>; 2],
        registrar: Option<Box<dyn Registrar>>,
        settings: Settings,
        words: Option<Words>,
        watch: Watch,
    ) -> Arc<Core> {
        Arc::new_cyclic(|itself| Core {
            itself: itself.clone(),
            driver: counted.clone(),
            sources,
            registrar,
            settings,
            words,
            hub: Hub::default(),
            dropped: Inbox::new(),
            coming: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
            requests: DeviceRequests::default(),
            observers: Mutex::default(),
            pressure: Told::default(),
            grown: Condvar::new(),
            worker: OnceLock::new(),
            sleep: Sleep::new(),
            closed: AtomicBool::new(false),
            tallies: Tallies::default(),
            counted,
            watch,
            heirs: OnceLock::new(),
            trace_file: OnceLock::new(),
            forks: fork::generation(),
            central: Mutex::new(Central {
                heap: Heap::default(),
                streams: Arc::default(),
                departed: Departed::default(),
                waiting: Waiting::default(),
                seen: Vec::new(),
                hub: None,
                epoch: 0,
                epoch_mark: NEVER,
                registered_still: Vec::new(),
                bins: (0..CLASSES).map(|_| Stack::default()).collect(),
                bin_bytes: 0,
                reserved: 0,
                peak_reserved: 0,
                growing: Growing::default(),
                censuses: 0,
            }),
        })
    }

    /// Whether this process is a fork of the one that made the pool.
    #[inline(always)]
    pub(super) fn is_forked(&self) -> bool {
        self.forks != fork::generation()
    }

    /// Whether the lock is to be had: not where a thread has ended that held it.
    pub(super) fn is_lockable(&self) -> bool {
        self.central.try_lock_for(exit::PATIENCE).is_some()
    }

    /// The pool's lock. The token is not to be had while it is held.
    #[inline]
    pub(super) fn lock<'a>(&'a self, _: &'a mut DriverToken) -> MutexGuard<'a, Central> {
        self.central.try_lock().unwrap_or_else(|| self.wait_for_lock())
    }

    #[cold]
    #[inline(never)]
    fn wait_for_lock(&self) -> MutexGuard<'_, Central> {
        for _ in 0..LOOKS {
            hint::spin_loop();
            if let Some(central) = self.central.try_lock() {
                return central;
            }
        }
        self.central.lock()
    }

    /// A block is dropped, by any thread, with any lock held. Calls no driver and
    /// waits for nobody.
    #[inline(always)]
    pub(super) fn free(block: BlockRef) {
        // SAFETY: the home of a block in use stands, as its core does.
        let home = unsafe { &*block.home.get() };
        // SAFETY: as above.
        let core = unsafe { &*home.core };
        if !core.watch.is_plain() {
            return Core::free_watched(home, block);
        }
        Core::free_plain(home, block);
    }

    #[inline(always)]
    fn free_plain(home: &StreamState, block: BlockRef) {
        if block.is_used_elsewhere() {
            return Core::free_used(home.core, block);
        }
        match home.try_local(&mut DriverToken::at_entry()) {
            Some(mut local) => local.freed(block),
            // Once pushed, the core may go.
            None => {
                home.inbox.push(block);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn free_watched(home: &StreamState, block: BlockRef) {
        // SAFETY: as in `free`.
        let core = unsafe { &*home.core };
        if core.is_forked() {
            return;
        }
        if core.watch.is_on() {
            core.watch.dropped(block);
        }
        // The last block of a closed pool: its thread sleeps until then, and is woken when the
        // block is free, by which time the core might be gone.
        let kept = core.closed.load(SeqCst).then(|| Core::keep(home.core));
        if core.watch.poisons() {
            Core::free_used(home.core, block)
        } else {
            Core::free_plain(home, block)
        }
        if let Some(core) = kept {
            core.wake();
        }
    }

    /// Of a block that is still in use.
    fn keep(core: *const Core) -> Arc<Core> {
        // SAFETY: the core lives in an Arc, and stands while the block is in use.
        unsafe {
            Arc::increment_strong_count(core);
            Arc::from_raw(core)
        }
    }

    /// A dropped block that others use: the worker, or the next allocation that does
    /// not find memory, marks their streams.
    #[cold]
    fn free_used(core: *const Core, block: BlockRef) {
        // Once pushed the block may be free and the core end, but for this count.
        let core = Core::keep(core);
        core.coming.fetch_add(1, SeqCst);
        core.dropped.push(block);
        core.wake();
    }

    /// Wakes the worker if it sleeps.
    pub(super) fn wake(&self) {
        self.sleep.wake(self.worker.get());
    }

    pub(super) fn count(tally: &AtomicU64) {
        tally.fetch_add(1, Relaxed);
    }
}

impl Central {
    pub(super) fn state(&self, owner: Owner) -> Option<&Arc<StreamState>> {
        self.streams.get((owner as usize).checked_sub(1)?)
    }

    /// Looks at what waits; what has passed is free.
    pub(super) fn poll(&mut self) -> bool {
        let Passed { used, stolen } = self.waiting.poll(&self.streams);
        let any = !(used.is_empty() && stolen.is_empty());
        for block in used {
            Central::go_home(block);
        }
        for mut stack in stolen {
            self.take_in(&mut stack, ANYBODY);
        }
        any
    }

    /// A block that its other users are done with.
    pub(super) fn go_home(block: BlockRef) {
        block.uses.set(None);
        // SAFETY: a block that is out keeps its home.
        let home = unsafe { &*block.home.get() };
        // SAFETY: the caller holds the core's lock.
        let core = unsafe { &*home.core };
        if core.watch.poisons() {
            // Still coming: the pattern is next.
            core.dropped.push(block);
            return core.wake();
        }
        home.inbox.push(block);
        core.coming.fetch_sub(1, SeqCst);
    }

    /// A block that was its stream's is no longer in use, and goes elsewhere.
    pub(super) fn retrieve(&mut self, block: BlockRef) {
        block.uses.set(None);
        // SAFETY: a block that is out keeps its home.
        let home = unsafe { &*block.home.get() };
        home.local_within(self).retrieved(block);
        // SAFETY: the caller holds the core's lock.
        unsafe { &*home.core }.coming.fetch_sub(1, SeqCst);
    }

    /// Free blocks, for `owner`'s later work.
    pub(super) fn take_in(&mut self, stack: &mut Stack, owner: Owner) {
        while let Some(block) = stack.pop() {
            if block.class.get() == NO_CLASS {
                self.heap.give(block, owner);
            } else if let Some(state) = self.state(owner).cloned() {
                state.local_within(self).put(block);
            } else {
                self.bin_bytes += block.bytes.get();
                self.bins[block.class.get() as usize].push(block);
            }
        }
    }

    pub(super) fn pop_bin(&mut self, class: Class) -> Option<BlockRef> {
        let block = self.bins[class as usize].pop()?;
        self.bin_bytes -= block.bytes.get();
        Some(block)
    }

    /// What a stream has freed goes to the heap, so that neighbours become one.
    pub(super) fn collect(&mut self, state: &StreamState) {
        let mut large = state.local_within(self).take_large();
        self.take_in(&mut large, state.owner);
    }

    /// Bytes that only `state`'s stream may have now.
    pub(super) fn kept_by(&mut self, state: &StreamState) -> usize {
        self.heap.free_bytes(state.owner) + state.local_within(self).cached()
    }

    /// Spans whose blocks are all for anybody become ranges again.
    pub(super) fn dissolve_spans(&mut self) {
        let mut found = Vec::new();
        for bin in &mut self.bins {
            while let Some(block) = bin.pop() {
                found.push(block);
            }
        }
        self.bin_bytes = 0;
        for block in self.dissolve(found, ANYBODY) {
            self.bin_bytes += block.bytes.get();
            self.bins[block.class.get() as usize].push(block);
        }
    }

    /// The same of the spans whose blocks are all kept by one stream: its ranges.
    pub(super) fn dissolve_kept(&mut self, state: &StreamState) {
        let small = state.local_within(self).take_spans();
        if small.is_empty() {
            return;
        }
        let left = self.dissolve(small, state.owner);
        let mut local = state.local_within(self);
        left.into_iter().for_each(|block| local.put(block));
    }

    /// Spans that are in `found` with all their blocks become `owner`'s ranges; the
    /// blocks of others are returned.
    fn dissolve(&mut self, mut found: Vec<BlockRef>, owner: Owner) -> Vec<BlockRef> {
        for block in &found {
            if let Some(span) = block.span.get() {
                // SAFETY: a span stands while a block of it does.
                let span = unsafe { span.as_ref() };
                span.gathered.set(span.gathered.get() + 1);
            }
        }
        let mut whole = Vec::new();
        found.retain(|block| {
            let Some(pointer) = block.span.get() else { return false };
            // SAFETY: spans are freed below.
            let span = unsafe { pointer.as_ref() };
            match span.gathered.get() {
                usize::MAX => false,
                count if count == span.blocks.len() => {
                    span.gathered.set(usize::MAX);
                    whole.push(pointer);
                    false
                }
                _ => true,
            }
        });
        for block in &found {
            if let Some(span) = block.span.get() {
                // SAFETY: not whole, so it stays.
                unsafe { span.as_ref() }.gathered.set(0);
            }
        }
        for span in whole {
            // SAFETY: made by `carve`; all its blocks are in our hands, once.
            let span = unsafe { Box::from_raw(span.as_ptr()) };
            for &block in &span.blocks {
                block.state.set(State::Out);
                self.heap.recycle(block);
            }
            self.heap.give(span.range, owner);
        }
        found
    }

    /// Bytes in use.
    pub(super) fn live_bytes(&mut self) -> usize {
        let streams = self.streams.clone();
        let live = streams.iter().map(|state| state.local_within(self).live_bytes());
        // One stream's may wrap: of a sum that does not.
        live.fold(0u64, u64::wrapping_add) as usize
    }

    /// All that was ever handed out and taken back.
    pub(super) fn counts(&mut self) -> Counts {
        let mut sum = self.departed.counts;
        for state in self.streams.clone().iter() {
            sum += state.part(&state.local_within(self));
        }
        sum
    }
}
