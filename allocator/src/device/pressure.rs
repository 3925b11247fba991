//! What the pool keeps while memory is short, and what it keeps for how long.
//!
//! Whoever gives the memory is asked before a slab is made ([`Source::room`]). Below the
//! low mark the pool gives back what is free and grows by what is wanted alone, until
//! more than the high mark is left; the application is told at both ends. By age, what
//! has lain idle for a while is given back as well. The pool's thread does both, and
//! sleeps without a timeout where neither was asked for, or the pool has no slab.
//!
//! [`Source::room`]: crate::Source::room

use super::core::Core;
use super::stream::StreamState;
use crate::pressure::{Pressure, Watermarks};
use crate::requests::guarded;
use crate::source::DriverToken;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// Between two looks while memory is short.
const LOOK: Duration = Duration::from_millis(100);

impl Core {
    /// Before `wanted` bytes are asked of a source: whether less than the low mark would
    /// be left. If so, what is free is given back first.
    pub(super) fn is_short_for(&self, wanted: usize, kind: usize, token: &mut DriverToken) -> bool {
        let Some(marks) = self.settings.watermarks else { return false };
        let Some(room) = self.sources[kind].room(token) else { return false };
        let left = room.free.saturating_sub(wanted);
        if left >= marks.of(room.total).0 && !self.pressure.is_pressed() {
            return false;
        }
        self.relieve(marks, wanted, token)
    }

    /// Gives back as much as the high mark lacks, and tells of a change; whether memory is
    /// still short.
    fn relieve(&self, marks: Watermarks, wanted: usize, token: &mut DriverToken) -> bool {
        let Some(room) = self.sources[0].room(token) else { return false };
        let lacks = marks.of(room.total).1.saturating_add(wanted).saturating_sub(room.free);
        let given_back = if lacks > 0 { self.give_back(lacks, token) } else { 0 };
        let Some(room) = self.sources[0].room(token) else { return false };
        let left = room.free.saturating_sub(wanted);
        let before = self.pressure.is_pressed();
        let (low, high) = marks.of(room.total);
        let short = left < if before { high } else { low };
        self.pressure.tell(before, short, || {
            let reserved = self.lock(token).reserved;
            Pressure { short, wanted, room, reserved, given_back }
        });
        short
    }

    /// Gives back free slabs, as many as it takes, of those that streams have passed.
    fn give_back(&self, bytes: usize, token: &mut DriverToken) -> usize {
        self.settle_dropped(token);
        let mut central = self.take_all_kept(token);
        let mut slabs = Vec::new();
        let mut sum = 0;
        while sum < bytes {
            let more = central.heap.detach_slabs(bytes - sum);
            if more.is_empty() {
                break;
            }
            sum += more.iter().map(|slab| slab.segment.bytes).sum::<usize>();
            slabs.extend(more);
        }
        drop(central);
        self.release(slabs, token)
    }

    /// Gives back slabs that were free, and out of no allocation's way, since the last
    /// call. What streams keep that did nothing since then is taken from them first.
    pub(super) fn collect_idle(&self, token: &mut DriverToken) -> usize {
        if self.is_forked() {
            return 0;
        }
        self.settle_dropped(token);
        let mut central = self.lock(token);
        let streams = central.streams.clone();
        let mut idle: Vec<Arc<StreamState>> = Vec::new();
        for state in streams.iter() {
            let counts = state.local_within(&mut central).counts();
            let sum = counts.allocations + counts.frees;
            if state.last_seen.swap(sum, Relaxed) == sum && central.kept_by(state) > 0 {
                idle.push(state.clone());
            }
        }
        drop((central, streams));
        let mut central = self.take_kept(idle, token);
        let slabs = central.heap.detach_idle();
        drop(central);
        self.release(slabs, token)
    }

    /// What the pool's thread does now and then; how long it may sleep.
    pub(super) fn look_after(&self, ticked: bool, token: &mut DriverToken) -> Option<Duration> {
        if self.closed.load(SeqCst) {
            return None;
        }
        if ticked {
            if let (Some(marks), true) = (self.settings.watermarks, self.pressure.is_pressed()) {
                guarded("an observer of pressure", || {
                    self.relieve(marks, 0, token);
                });
            }
            if self.settings.keep_idle.is_some() {
                self.collect_idle(token);
            }
        }
        let keep = self.settings.keep_idle.filter(|_| self.lock(token).reserved > 0);
        let look = self.pressure.is_pressed().then_some(LOOK);
        keep.into_iter().chain(look).min()
    }
}
