//! A stream as the pool knows it.
#![allow(unsafe_code)]

use super::block::{BlockRef, Owner, Stack};
use super::copies::Copies;
use super::core::{Central, Core};
use super::levels::Levels;
use super::local::Local;
use super::marks::Timeline;
use crate::inbox::Inbox;
use crate::source::DriverToken;
use parking_lot::{Mutex, MutexGuard};
use pinyard_driver::Stream;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Stands as long as the pool's core.
pub(super) struct StreamState {
    pub(super) core: *const Core,
    pub(super) owner: Owner,
    pub(super) stream: Stream,
    /// `cuStreamGetId`: a handle that is given out anew is another stream.
    pub(super) id: u64,
    pub(super) timeline: Timeline,
    /// Blocks freed while the cache was locked, or after a fence.
    pub(super) inbox: Inbox<BlockRef>,
    pub(super) copies: Copies,
    /// The last mark there will be, plus one; 0 while there may be more.
    retired: AtomicU64,
    /// Held by other threads that call the driver for the stream, and to retire it.
    standing: Mutex<()>,
    /// How allocations that the cache did not serve were served.
    pub(super) levels: Levels,
    /// The last of the hub's epochs that it waits for.
    epoch: AtomicU64,
    /// What it had done at the last collection.
    pub(super) last_seen: AtomicU64,
    local: Mutex<Local>,
}

// SAFETY: the core pointer is used while the core stands.
unsafe impl Send for StreamState {}
// SAFETY: as above.
unsafe impl Sync for StreamState {}

impl StreamState {
    pub(super) fn new(
        core: *const Core,
        owner: Owner,
        stream: Stream,
        id: u64,
        timeline: Timeline,
    ) -> StreamState {
        StreamState {
            core,
            owner,
            stream,
            id,
            timeline,
            inbox: Inbox::new(),
            copies: Copies::default(),
            retired: AtomicU64::new(0),
            standing: Mutex::new(()),
            levels: Levels::default(),
            epoch: AtomicU64::new(0),
            last_seen: AtomicU64::new(0),
            local: Mutex::new(Local::new()),
        }
    }

    /// The stream's cache. The token is not to be had while it is held.
    #[inline(always)]
    pub(super) fn local<'a>(&'a self, _: &'a mut DriverToken) -> MutexGuard<'a, Local> {
        self.local.lock()
    }

    /// For a thread that may not wait.
    #[inline(always)]
    pub(super) fn try_local<'a>(&'a self, _: &'a mut DriverToken) -> Option<MutexGuard<'a, Local>> {
        self.local.try_lock()
    }

    /// Under the pool's lock, which is taken before any cache's.
    pub(super) fn local_within<'a>(&'a self, _: &'a mut Central) -> MutexGuard<'a, Local> {
        let mut local = self.local.lock();
        for block in self.inbox.take() {
            local.freed(block);
        }
        local
    }

    /// Every cache's lock may be had at once by whoever has the pool's.
    pub(super) fn freeze<'a>(&'a self, _: &'a Central) -> MutexGuard<'a, Local> {
        let mut local = self.local.lock();
        for block in self.inbox.take() {
            local.freed(block);
        }
        local
    }

    /// All that it keeps.
    pub(super) fn take_all(&self, central: &mut Central) -> Stack {
        self.local_within(central).take_all()
    }

    /// While it is held the stream is not retired, unless it is so already: its handle is
    /// one. No drop waits for it, and nobody who holds another lock.
    pub(super) fn standing(&self) -> MutexGuard<'_, ()> {
        self.standing.lock()
    }

    /// The last mark, if the stream is no longer to be used.
    pub(super) fn last_mark(&self) -> Option<u64> {
        self.retired.load(Acquire).checked_sub(1)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Relaxed)
    }

    /// Its later work is after the epoch. Relaxed: who takes memory by it holds the
    /// pool's lock, and calls the stream's own functions in the caller's order.
    pub(super) fn joins(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, Relaxed);
    }

    /// Its last mark is `last`. Its cache is closed for whoever does not ask that first.
    pub(super) fn retire(&self, last: u64, token: &mut DriverToken) {
        // Release: pairs with `last_mark`.
        self.retired.store(last + 1, Release);
        self.local(token).close();
    }
}
