//! From an event to everyone who asked for it.
//!
//! A hook brackets the change of a mapping: [`before`] publishes the range,
//! then the real call runs, then [`after`] publishes it once more, but only if a
//! registration began in between. The first push makes a `get` that starts after
//! the change miss; the second catches a registration that pinned the old pages
//! in the gap between the push and the change. Correct programs never hit that
//! gap; racy ones must not get a stale entry either.
//!
//! Two kinds of subscribers: a [`Map`](crate::map::Map), in which a hook marks what it touches
//! (registries), and a [`Sink`], which queues ranges (whoever keeps records of its
//! own, such as libfabric's monitor). Both are static, or never unmapped: a hook
//! that runs while a subscriber closes still has something to walk or to push to,
//! and nothing is initialised lazily.

use crate::event::Event;
use crate::filter::Filter;
use crate::inbox::{Inbox, Mark};
use crate::sync::{AtomicBool, AtomicU64, const_unless_loom};
use core::ops::Range;
#[cfg(not(loom))]
use core::sync::atomic::Ordering::AcqRel;
use core::sync::atomic::Ordering::{Acquire, Release, SeqCst};

/// Events that fit into a sink before it asks for a flush.
pub const INBOX_SLOTS: usize = 4096;
/// Counters of a sink's filter: 16 GiB of 2 MiB granules before any two share one.
pub const FILTER_GRANULES: usize = 8192;
/// Subscribers that one process can have at a time.
pub const MAX_SUBSCRIBERS: usize = 15;

/// One subscriber's filter and inbox.
pub struct Sink<const N: usize = INBOX_SLOTS, const G: usize = FILTER_GRANULES> {
    claimed: AtomicBool,
    filter: Filter<G>,
    inbox: Inbox<N>,
}

impl<const N: usize, const G: usize> Default for Sink<N, G> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize, const G: usize> Sink<N, G> {
    const_unless_loom! {
        /// An unclaimed sink that wants nothing.
        pub fn new() -> Self {
            Sink { claimed: AtomicBool::new(false), filter: Filter::new(), inbox: Inbox::new() }
        }
    }

    /// Asks for events that touch `range` (bytes, not empty) from now on.
    ///
    /// Call before the backend pins a page of it: a hook that has passed its
    /// filter check by then publishes again after its change.
    pub fn watch(&self, range: Range<usize>) {
        #[cfg(not(loom))]
        process::WATCHED.fetch_add(1, AcqRel);
        self.filter.add(range.start, range.end);
    }

    /// Takes back one [`watch`](Sink::watch) of the same range.
    pub fn unwatch(&self, range: Range<usize>) {
        self.filter.remove(range.start, range.end);
        #[cfg(not(loom))]
        process::WATCHED.fetch_sub(1, AcqRel);
    }

    /// Whether events wait that no drain has applied. Two loads of one line.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.inbox.has_news()
    }

    /// Events published to this sink since it was made.
    #[inline]
    pub fn pushed(&self) -> u64 {
        self.inbox.pushed()
    }

    /// Starts a drain; see [`Inbox::begin`]. One drainer at a time.
    pub fn begin(&self) -> Mark {
        self.inbox.begin()
    }

    /// Takes what is pending; see [`Inbox::take`].
    #[must_use = "true orders a flush of everything"]
    pub fn take(&self, each: impl FnMut(Event)) -> bool {
        self.inbox.take(each)
    }

    /// Ends a drain; see [`Inbox::finish`].
    pub fn finish(&self, mark: Mark) {
        self.inbox.finish(mark);
    }

    /// Publishes that `len` bytes at `start` change, if anything may be
    /// registered there. What a hook does for each sink.
    #[inline]
    pub fn publish(&self, start: usize, len: usize) {
        if len != 0 && self.filter.may_overlap(start, start.saturating_add(len - 1)) {
            self.deliver(start, len);
        }
    }

    /// Out of line: most events end at the filter.
    #[inline(never)]
    fn deliver(&self, start: usize, len: usize) {
        match Event::new(start, len) {
            Some(event) => self.inbox.push(event),
            None => self.inbox.push_everything(),
        }
    }

    /// Publishes that anything may have changed, whatever is watched.
    pub fn publish_everything(&self) {
        self.inbox.push_everything();
    }
}

/// A claimed sink; given back on drop.
pub struct Subscription {
    sink: &'static Sink,
}

impl core::ops::Deref for Subscription {
    type Target = Sink;
    #[inline]
    fn deref(&self) -> &Sink {
        self.sink
    }
}

impl Drop for Subscription {
    /// The owner has unwatched its ranges, so hooks pass the sink by; one that
    /// is late leaves an event, which the next owner takes for a needless
    /// invalidation.
    fn drop(&mut self) {
        // Release: pairs with the Acquire in `claim`.
        self.sink.claimed.store(false, Release);
    }
}

/// Counts the registrations that have begun; what tells a hook whether one began
/// while it made its change.
pub struct Begun(AtomicU64);

/// A moment in the count; see [`Begun`].
#[derive(Clone, Copy)]
pub struct Ticket(u64);

impl Default for Begun {
    fn default() -> Self {
        Self::new()
    }
}

impl Begun {
    const_unless_loom! {
        /// None has begun.
        pub fn new() -> Self {
            Begun(AtomicU64::new(0))
        }
    }

    /// A registration begins: its range is watched, no page is pinned yet.
    #[inline]
    pub fn declare(&self) {
        // SeqCst: a hook that does not see this in `any_since` ran its change
        // before the backend pins; one that sees it sees the watched range too.
        self.0.fetch_add(1, SeqCst);
    }

    /// Taken by a hook before it publishes for the first time.
    #[inline]
    pub fn ticket(&self) -> Ticket {
        // Acquire: pairs with `declare`; whatever has begun, its watched range
        // is visible to the filter check that follows.
        Ticket(self.0.load(Acquire))
    }

    /// Asked by a hook after its change.
    #[inline]
    pub fn any_since(&self, ticket: Ticket) -> bool {
        // SeqCst: pairs with `declare`; the system call in between is a barrier
        // of its own on both sides.
        self.0.load(SeqCst) != ticket.0
    }
}

#[cfg(not(loom))]
mod process {
    use super::*;
    use crate::map::MapSize;
    use crate::places::{MapPlace, publish_file_to_maps, publish_to_maps, publish_to_maps_everything};
    use crate::sync::AtomicU32;
    use crate::{effect, files};

    /// One more than the subscribers: the self-test always finds a place, the first.
    const SINKS: usize = MAX_SUBSCRIBERS + 1;

    static ALL: [Sink; SINKS] = [const { Sink::new() }; SINKS];
    /// Sinks below this index have been claimed at some time.
    static HIGH: AtomicU32 = AtomicU32::new(0);
    static BEGUN: Begun = Begun::new();
    /// Ranges that sinks watch, of all sinks, and the listener's: most processes have none.
    pub(crate) static WATCHED: AtomicU32 = AtomicU32::new(0);

    /// Sees every later event that its filter lets through, or `None` when
    /// [`MAX_SUBSCRIBERS`] are there already.
    pub fn subscribe() -> Option<Subscription> {
        claim(&ALL[1..])
    }

    /// An empty map in which every later event marks what it touches.
    ///
    /// The error is mmap's errno, or `None` when [`MAX_SUBSCRIBERS`] maps are in
    /// use already.
    pub fn subscribe_map(size: MapSize) -> Result<MapPlace, Option<i32>> {
        MapPlace::claim(size)
    }

    /// The place that is kept for the self-test.
    pub(crate) fn subscribe_for_self_test() -> Option<Subscription> {
        claim(&ALL[..1])
    }

    fn claim(from: &'static [Sink]) -> Option<Subscription> {
        let free = |sink: &&Sink| sink.claimed.compare_exchange(false, true, AcqRel, Acquire).is_ok();
        let sink = from.iter().find(free)?;
        let index = ALL.iter().position(|other| core::ptr::eq(other, sink))?;
        // SeqCst: whoever begins a registration on this sink is ordered after.
        HIGH.fetch_max(index as u32 + 1, SeqCst);
        Some(Subscription { sink })
    }

    #[inline]
    fn sinks() -> &'static [Sink] {
        let high = HIGH.load(Acquire) as usize;
        &ALL[..high.min(SINKS)]
    }

    /// Declares that a registration begins. Call after [`Sink::watch`] or
    /// [`Map::coming`](crate::map::Map::coming), before the backend's own call.
    pub fn begin_registration() {
        BEGUN.declare();
    }

    /// Publishes `len` bytes at `start` to every subscriber that watches them.
    /// The caller changes the mapping next.
    #[inline]
    pub(crate) fn before(start: usize, len: usize) -> Ticket {
        let ticket = BEGUN.ticket();
        publish(start, len);
        ticket
    }

    /// Publishes again if a registration began since `before`.
    #[inline]
    pub(crate) fn after(ticket: Ticket, start: usize, len: usize) {
        if BEGUN.any_since(ticket) {
            publish(start, len);
        }
    }

    #[inline]
    fn publish(start: usize, len: usize) {
        if len == 0 {
            return;
        }
        let last = start.saturating_add(len - 1);
        publish_to_maps(start, last);
        // Acquire: as the filter's own; pairs with `watch`.
        if WATCHED.load(Acquire) != 0 {
            publish_to_sinks(start, len);
        }
    }

    /// Brackets a change of some file, whose pages may be registered for the first time while it
    /// happens. A sink, which does not tell its ranges apart, hears of everything.
    #[inline(always)]
    pub(crate) fn change_file(change: impl FnOnce() -> isize) -> isize {
        let ticket = BEGUN.ticket();
        publish_file();
        let result = change();
        if BEGUN.any_since(ticket) {
            publish_file();
        }
        result
    }

    fn publish_file() {
        if files::are_registered() {
            publish_file_to_maps();
        }
        // Acquire: as in `publish`.
        if WATCHED.load(Acquire) != 0 {
            let [(start, len), _] = effect::EVERYTHING;
            publish_to_sinks(start, len);
        }
    }

    #[inline(never)]
    fn publish_to_sinks(start: usize, len: usize) {
        for sink in sinks() {
            sink.publish(start, len);
        }
        crate::listener::tell(start, len);
    }

    /// Tells every subscriber that `len` bytes at `addr` are about to be
    /// unmapped, replaced or emptied. `addr` is only compared, never read.
    ///
    /// For changes that no hook sees: raw system calls, an allocator of one's
    /// own, a runtime that bypasses libc. **Call it before the change**, and once
    /// more after it where other threads may register the range meanwhile. A
    /// length of 0 does nothing; a range that wraps around reaches to the end of
    /// the address space.
    ///
    /// Never blocks, allocates or fails; safe in a signal handler and inside
    /// malloc.
    #[inline]
    pub fn notify_unmapped(addr: *const u8, len: usize) {
        publish(addr.addr(), len);
    }

    /// Makes every subscriber take a slow path once (after a fork).
    pub(crate) fn publish_everything() {
        publish_to_maps_everything();
        for sink in sinks() {
            sink.publish_everything();
        }
    }
}
#[cfg(not(loom))]
pub use process::*;
