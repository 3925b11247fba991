//! A stream as the pool knows it.
#![allow(unsafe_code)]

use super::block::{BlockRef, Owner, Stack};
use super::copies::Copies;
use super::core::{Central, Core};
use super::counts::Counts;
use super::levels::Levels;
use super::local::Local;
use super::marks::Timeline;
use crate::inbox::Inbox;
use crate::latch::{Guard, Latch};
use crate::retire::{InUse, RetireLock, Retired, Retiring};
use crate::source::DriverToken;
use pinyard_driver::Stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A stream's handle while its retire lock is held.
pub(super) type StreamInUse<'a> = InUse<'a, Stream>;

/// Stands until it has left its place ([`Central::enter`]), or as long as the pool's core.
pub(super) struct StreamState {
    pub(super) core: *const Core,
    pub(super) owner: Owner,
    /// The stream's handle, and whether the driver may be given it.
    handle: RetireLock<Stream>,
    /// `cuStreamGetId`: a handle that is given out anew is another stream.
    pub(super) id: u64,
    /// Of its place: a later stream goes on with it.
    pub(super) timeline: Arc<Timeline>,
    /// The last mark of those that had the place before.
    pub(super) began: u64,
    /// The most that any of those had in use.
    peak_before: u64,
    /// Blocks freed while the cache was locked, or after a fence.
    pub(super) inbox: Inbox<BlockRef>,
    pub(super) copies: Copies,
    /// Nothing of it is left: its place is another's. Under the pool's lock.
    has_left: AtomicBool,
    /// How allocations that the cache did not serve were served.
    pub(super) levels: Levels,
    /// The last of the hub's epochs that it waits for.
    epoch: AtomicU64,
    /// What it had done at the last collection.
    pub(super) last_seen: AtomicU64,
    local: Latch<Local>,
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
        timeline: Arc<Timeline>,
        peak_before: u64,
    ) -> StreamState {
        StreamState {
            core,
            owner,
            handle: RetireLock::new(stream),
            id,
            began: timeline.asked(),
            timeline,
            peak_before,
            inbox: Inbox::new(),
            copies: Copies::default(),
            has_left: AtomicBool::new(false),
            levels: Levels::default(),
            epoch: AtomicU64::new(0),
            last_seen: AtomicU64::new(0),
            local: Latch::new(Local::new()),
        }
    }

    /// The stream's cache. The token is not to be had while it is held.
    #[inline(always)]
    pub(super) fn local<'a>(&'a self, _: &'a mut DriverToken) -> Guard<'a, Local> {
        self.local.lock()
    }

    /// For a thread that may not wait.
    #[inline(always)]
    pub(super) fn try_local<'a>(&'a self, _: &'a mut DriverToken) -> Option<Guard<'a, Local>> {
        self.local.try_lock()
    }

    /// Under the pool's lock, which is taken before any cache's.
    pub(super) fn local_within<'a>(&'a self, central: &'a mut Central) -> Guard<'a, Local> {
        self.freeze(central)
    }

    /// Every cache's lock may be had at once by whoever has the pool's.
    pub(super) fn freeze<'a>(&'a self, _: &'a Central) -> Guard<'a, Local> {
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

    /// The stream's handle as the program knows it. Not for a call of the driver.
    pub(super) fn name(&self) -> Stream {
        self.handle.name()
    }

    /// The stream's handle for calls of the driver, unless it is retired: the only way to one.
    /// The retire lock is held while the answer lives.
    pub(super) fn in_use(&self, token: &DriverToken) -> Result<StreamInUse<'_>, Retired> {
        self.handle.in_use(token)
    }

    /// The same, to retire it.
    pub(super) fn retiring(&self, token: &DriverToken) -> Result<Retiring<'_, Stream>, Retired> {
        self.handle.retiring(token)
    }

    /// The last mark, if the stream is no longer to be used.
    pub(super) fn last_mark(&self) -> Option<u64> {
        self.handle.last_mark()
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Relaxed)
    }

    /// Its later work is after the epoch. Relaxed: who takes memory by it holds the
    /// pool's lock, and calls the stream's own functions in the caller's order.
    pub(super) fn joins(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, Relaxed);
    }

    /// It is retired: its cache is closed for whoever does not ask that first.
    pub(super) fn close(&self, token: &mut DriverToken) {
        self.local(token).close();
    }

    /// It is retired, and all its work has passed.
    pub(super) fn is_done(&self) -> bool {
        let passed = self.timeline.passed();
        self.last_mark().is_some_and(|last| passed >= last) && passed >= self.timeline.asked()
    }

    pub(super) fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// It is done, and nothing of it is left: no block in use and none that it keeps. What the
    /// pool's heap has of it is the caller's to know.
    pub(super) fn has_nothing(&self) -> bool {
        // Locked: the last block may be dropped just now.
        let local = self.local.lock();
        local.live_blocks() == 0 && local.cached() == 0 && self.copies.is_empty() && self.is_done()
    }

    pub(super) fn leave(&mut self) {
        *self.has_left.get_mut() = true;
    }

    /// Its part of the pool's sums. The streams of one place never had more in use together
    /// than one of them at some time.
    pub(super) fn part(&self, local: &Local) -> Counts {
        let counts = local.counts();
        Counts { peak_bytes: counts.peak_bytes.max(self.peak_before), ..counts }
    }
}
