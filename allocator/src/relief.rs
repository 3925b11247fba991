//! What a host pool does while memory is short. Its source is asked before each slab
//! ([`Source::room`](crate::Source::room)): below the low mark slabs that are free go back, as many
//! as the high one lacks, and the slab is as long as what is wanted; until more than the high mark
//! is left. Nobody looks in between but who asks: a pool that is not used has no thread for it.

use crate::pool::{Handle, Pool};
use crate::pressure::Pressure;
use crate::source::DriverToken;

impl Pool {
    /// Has `observer` called when memory becomes short and when it no longer is
    /// ([`Builder::watermarks`](crate::Builder::watermarks)), once each, on the thread that
    /// notices, without a lock held. It may free blocks, which are searched before a slab is made, and
    /// allocate: then it may be called again before it has returned, with the other end. Two threads
    /// may tell of the two ends in either order. The pool keeps it until its
    /// last handle goes: one that has a handle of its own keeps the pool.
    pub fn on_pressure(&self, observer: impl Fn(&Pressure) + Send + Sync + 'static) {
        if !self.handle.core.is_forked() {
            self.handle.pressure.add(observer);
        }
    }

    /// Looks how much memory is left, and gives back slabs that are free as far as the marks ask
    /// for it; whether memory is short. For a program's idle moments. `false` without watermarks.
    pub fn relieve(&self) -> bool {
        !self.handle.core.is_forked() && self.handle.is_short_for(0, &mut DriverToken::at_entry())
    }
}

impl Handle {
    /// Whether it has to be looked at closer: less than the low mark would be left with `wanted`
    /// bytes more, or memory was short.
    pub(crate) fn is_low_for(&self, wanted: usize, token: &mut DriverToken) -> bool {
        let Some((marks, room)) = self.watermarks.zip(self.supplier.source.room(token)) else { return false };
        self.pressure.is_pressed() || room.free.saturating_sub(wanted) < marks.of(room.total).0
    }

    /// Whether less than the mark would be left with `wanted` bytes more, after what is free was
    /// given back.
    pub(crate) fn is_short_for(&self, wanted: usize, token: &mut DriverToken) -> bool {
        let Some(marks) = self.watermarks else { return false };
        let source = &self.supplier.source;
        let Some(room) = source.room(token) else { return false };
        let before = self.pressure.is_pressed();
        let (low, high) = marks.of(room.total);
        let mark = if before { high } else { low };
        let enough = room.free.saturating_sub(wanted) >= mark;
        if enough && !before {
            return false;
        }
        let lacks = high.saturating_add(wanted).saturating_sub(room.free);
        let given_back = if enough { 0 } else { self.core.give_back(lacks, token) };
        let Some(room) = source.room(token) else { return false };
        let short = room.free.saturating_sub(wanted) < mark;
        self.pressure.tell(before, short, || {
            let reserved = self.core.lock(token).reserved;
            Pressure { short, wanted, room, reserved, given_back }
        });
        short
    }
}
