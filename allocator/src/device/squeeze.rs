//! No slab is to be had. In this order: every stream's free memory is detached and
//! marked; whatever has passed is searched, again and again, until it suffices or
//! the patience is over (so a stream that never passes hangs nobody whose memory is
//! elsewhere); where that takes long, the stream waits on the device instead; slabs that are
//! free are traded for one of the right length, as many as are needed; observers are told;
//! then the error says who holds what.

use super::alloc::{Effort, Pieces, Want};
use super::block::BlockRef;
use super::core::{Central, Core};
use super::error::{DeviceError, Shortage, StreamShare};
use super::stream::StreamState;
use crate::source::DriverToken;
use crate::trace::Kind;
use parking_lot::MutexGuard;
use pinyard_worker::log;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

/// What an idle stream's mark needs to be seen: looked for without sleeping.
const SPIN: Duration = Duration::from_micros(60);
/// Between two looks at streams.
const SHORTEST: Duration = Duration::from_micros(20);
const LONGEST: Duration = Duration::from_millis(1);

impl Core {
    pub(super) fn squeeze(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        effort: Effort,
        error: DeviceError,
        token: &mut DriverToken,
    ) -> Result<BlockRef, DeviceError> {
        let patience = match effort {
            Effort::Patient => {
                Core::count(&self.tallies.squeezes);
                self.watch.event(Kind::Wait, state.id, want.bytes(), 0);
                self.settings.patience
            }
            // A request tries often: what it waited for is noted once (`Core::ask`).
            Effort::Once => Duration::ZERO,
        };
        let error = match self.squeeze_once(state, want, patience, error, token) {
            Ok(block) => {
                if effort == Effort::Once {
                    Core::count(&self.tallies.squeezes);
                }
                return Ok(block);
            }
            Err(DeviceError::Retired) => return Err(DeviceError::Retired),
            Err(error) => error,
        };
        let observers = self.observers.lock().clone();
        if observers.is_empty() || effort == Effort::Once {
            return Err(self.out_of_memory(want, error, effort, token));
        }
        let shortage = self.shortage(want.bytes(), Some(&error), token);
        for observer in observers {
            observer(&shortage);
        }
        self.squeeze_once(state, want, patience, error, token).map_err(|error| match error {
            DeviceError::Retired => error,
            error => self.out_of_memory(want, error, effort, token),
        })
    }

    fn out_of_memory(
        &self,
        want: Want,
        error: DeviceError,
        effort: Effort,
        token: &mut DriverToken,
    ) -> DeviceError {
        let shortage = Box::new(self.shortage(want.bytes(), Some(&error), token));
        if effort == Effort::Patient {
            log!(warn, bytes = want.bytes(), %error, "no memory in a device pool");
        }
        DeviceError::OutOfMemory { cause: Box::new(error), shortage }
    }

    fn squeeze_once(
        &self,
        state: &Arc<StreamState>,
        want: Want,
        patience: Duration,
        error: DeviceError,
        token: &mut DriverToken,
    ) -> Result<BlockRef, DeviceError> {
        let mut error = error;
        if self.is_vain(want, &error, token) {
            return Err(error);
        }
        let began = Instant::now();
        let mut pause = SHORTEST;
        let (mut pieces, mut least) = (Pieces::Joined, usize::MAX);
        loop {
            // By another handle, while this one waits.
            if state.last_mark().is_some() {
                return Err(DeviceError::Retired);
            }
            // Before the search: what comes home during it may come where it has been looked for.
            let came = self.is_expecting(token);
            self.settle_dropped(token);
            if let Some(block) = self.lock(token).find(state, want) {
                return Ok(block);
            }
            let mut central = self.take_all_kept(token);
            if let Some(block) = central.find(state, want) {
                return Ok(block);
            }
            // Only as many slabs as the new one needs: the others stay.
            let slabs = central.heap.detach_slabs(want.bytes());
            drop(central);
            let released = self.release(slabs, token);
            if released > 0 {
                let grown = self.grow_for(state, want, pieces, token);
                // What was added in pieces may lie in two places: it would be given back and
                // added again.
                pieces = Pieces::One;
                match grown {
                    Ok(Some(block)) => return Ok(block),
                    Ok(None) => continue,
                    Err(refused) => error = refused,
                }
                // Less is reserved each time; else what was released came back in part, or
                // another thread took it: no cause to try at once.
                let reserved = self.lock(token).reserved;
                if reserved < least {
                    least = reserved;
                    continue;
                }
            }
            let waits = came || self.is_expecting(token);
            if !waits || began.elapsed() >= patience {
                return Err(error);
            }
            if began.elapsed() > SPIN {
                if let Some(block) = self.hold(state, want, token) {
                    return Ok(block);
                }
                thread::sleep(pause);
                pause = (pause * 2).min(LONGEST);
            }
        }
    }

    /// Whether blocks are on their way home, or memory of streams waits for them.
    fn is_expecting(&self, token: &mut DriverToken) -> bool {
        self.coming.load(SeqCst) > 0 || !self.lock(token).waiting.is_empty()
    }

    /// Whether the limit stands against it whatever streams have passed: nothing waits,
    /// and what is free neither joins to one range nor makes room for a slab. Spares a
    /// program that lives at its limit a mark and the waiting for each refusal.
    fn is_vain(&self, want: Want, error: &DeviceError, token: &mut DriverToken) -> bool {
        if !matches!(error, DeviceError::Limit { .. })
            || self.coming.load(SeqCst) > 0
            || !self.dropped.is_empty()
        {
            return false;
        }
        let mut central = self.lock(token);
        if !central.waiting.is_empty() || central.growing.is_under_way() {
            return false;
        }
        let mut small = central.bin_bytes;
        for state in central.streams.clone().iter() {
            central.collect(state);
            small += state.local_within(&mut central).cached();
        }
        let (longest, whole) = central.heap.prospects();
        let room = self.settings.limit().saturating_sub(central.reserved);
        // Spans may dissolve; a source that joins adds to the last range.
        let beside = if self.joins(want.kind()) { longest } else { 0 };
        let most = small.saturating_add(longest.max(room + whole + beside));
        most < want.bytes()
    }

    /// As `take_kept`, from every stream that keeps anything.
    pub(super) fn take_all_kept<'a>(&'a self, token: &'a mut DriverToken) -> MutexGuard<'a, Central> {
        let mut central = self.lock(token);
        let keepers = self.keepers(&mut central, None);
        drop(central);
        self.take_kept(keepers.into_iter().map(|(_, keeper)| keeper).collect(), token)
    }

    /// What `keepers` keep is the pool's, and merged, as far as its work has passed.
    pub(super) fn take_kept<'a>(
        &'a self,
        keepers: Vec<Arc<StreamState>>,
        token: &'a mut DriverToken,
    ) -> MutexGuard<'a, Central> {
        self.steal(keepers, token);
        self.poll_events(token);
        let mut central = self.lock(token);
        central.poll();
        central.dissolve_spans();
        central
    }

    /// Gives back all slabs that are, or become within the patience, free.
    pub(super) fn trim(&self, patience: Duration) -> usize {
        if self.is_forked() {
            return 0;
        }
        let mut token = DriverToken::at_entry();
        let token = &mut token;
        let began = Instant::now();
        let mut released = 0;
        let mut pause = SHORTEST;
        loop {
            let came = self.is_expecting(token);
            self.settle_dropped(token);
            let slabs = self.take_all_kept(token).heap.detach_slabs(usize::MAX);
            released += self.release(slabs, token);
            if !(came || self.is_expecting(token)) || began.elapsed() >= patience {
                return released;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// The driver is asked for its free memory unless the pool's own limit is the cause.
    pub(super) fn shortage(
        &self,
        wanted: usize,
        cause: Option<&DeviceError>,
        token: &mut DriverToken,
    ) -> Shortage {
        let own = matches!(cause, Some(DeviceError::Limit { .. }));
        let device_free = if own { None } else { self.driver.mem_info(token).ok().map(|info| info.free) };
        let mut central = self.lock(token);
        let counts = central.counts();
        let mut streams = Vec::new();
        for state in central.streams.clone().iter().filter(|state| !state.has_left()) {
            let live = state.local_within(&mut central).live_bytes();
            streams.push(StreamShare { id: state.id, live, kept: central.kept_by(state) });
        }
        Shortage {
            wanted,
            reserved: central.reserved,
            live: counts.live_bytes,
            live_blocks: counts.allocations.wrapping_sub(counts.frees),
            waiting_blocks: central.waiting.used_blocks,
            waiting: central.waiting.stolen_bytes,
            free: central.heap.all_free_bytes() + central.bin_bytes,
            device_free,
            streams,
        }
    }
}
