//! Streams that copy from and to host memory, and an event per slot.
#![allow(unsafe_code)]

use crate::buffers::Gpu;
use pinyard_allocator::DriverToken;
use pinyard_driver::{Driver, DriverError, Event, Stream};
use std::sync::Arc;

/// A device copies both ways at a time, so there is a stream for each.
pub(crate) struct Streams {
    gpu: Gpu,
    /// From the device.
    down: Stream,
    /// To the device.
    up: Stream,
}

impl Streams {
    pub(crate) fn new(gpu: &Gpu, token: &DriverToken) -> Result<Streams, DriverError> {
        let driver = gpu.driver();
        let down = driver.stream_create(token)?;
        let up = driver.stream_create(token).inspect_err(|_| {
            // SAFETY: just made, used by nobody. Its own failure would say less than the first.
            let _ = unsafe { driver.stream_destroy(down, token) };
        })?;
        Ok(Streams { gpu: gpu.clone(), down, up })
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let (driver, token) = (self.gpu.driver(), DriverToken::at_entry());
        for stream in [self.down, self.up] {
            // What cannot be waited for or destroyed belongs to a context that is gone.
            let _ = driver.stream_synchronize(stream, &token);
            // SAFETY: ours, used no more.
            let _ = unsafe { driver.stream_destroy(stream, &token) };
        }
    }
}

/// An event for each slot, on streams that others may use as well.
pub(crate) struct Lanes {
    streams: Arc<Streams>,
    /// Passed when the slot's last copy has.
    events: Vec<Event>,
}

impl Lanes {
    pub(super) fn new(
        streams: Arc<Streams>,
        slots: usize,
        token: &DriverToken,
    ) -> Result<Lanes, DriverError> {
        // What was made goes with the value.
        let mut lanes = Lanes { streams, events: Vec::with_capacity(slots) };
        for _ in 0..slots {
            lanes.events.push(lanes.driver().event_create(token)?);
        }
        Ok(lanes)
    }

    fn driver(&self) -> &Arc<dyn Driver> {
        self.streams.gpu.driver()
    }

    /// From the device.
    pub(super) fn down(&self) -> Stream {
        self.streams.down
    }

    /// To the device.
    pub(super) fn up(&self) -> Stream {
        self.streams.up
    }

    pub(super) fn slots(&self) -> usize {
        self.events.len()
    }

    fn event(&self, slot: usize) -> Event {
        self.events[slot % self.slots()]
    }

    /// Marks the end of the slot's loads.
    pub(super) fn loaded(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.driver().event_record(self.event(slot), self.down(), token)
    }

    /// Marks the end of the slot's stores.
    pub(super) fn stored(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.driver().event_record(self.event(slot), self.up(), token)
    }

    /// Whether what was marked last has ended.
    pub(super) fn has_ended(&self, slot: usize, token: &DriverToken) -> Result<bool, DriverError> {
        self.driver().event_query(self.event(slot), token)
    }

    /// Waits for what was marked last.
    pub(super) fn wait(&self, slot: usize, token: &DriverToken) -> Result<(), DriverError> {
        self.driver().event_synchronize(self.event(slot), token)
    }

    /// Waits for every load.
    pub(super) fn wait_loads(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.driver().stream_synchronize(self.down(), token)
    }

    /// Waits for every store, and every copy across.
    pub(super) fn wait_stores(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.driver().stream_synchronize(self.up(), token)
    }

    /// Waits for every copy.
    pub(super) fn wait_all(&self, token: &DriverToken) -> Result<(), DriverError> {
        self.wait_loads(token)?;
        self.wait_stores(token)
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let token = DriverToken::at_entry();
        // Others' work on the same streams is not waited for. Whoever could not mark what it queued
        // has waited for all.
        let mut marked = (0..self.slots()).map(|slot| self.wait(slot, &token));
        if marked.any(|waited| waited.is_err()) {
            let _ = self.wait_all(&token);
        }
        for &event in &self.events {
            // What cannot be destroyed belongs to a context that is gone.
            // SAFETY: ours, used no more.
            let _ = unsafe { self.driver().event_destroy(event, &token) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinyard_driver::Simulated;

    #[test]
    fn lanes_that_go_wait_for_what_they_have_marked_and_streams_for_the_rest() {
        const LONG: u64 = 1_000_000_000;
        let simulated = Arc::new(Simulated::new(1 << 20));
        let gpu = Gpu::new(simulated.clone()).unwrap();
        let token = DriverToken::at_entry();
        let streams = Arc::new(Streams::new(&gpu, &token).unwrap());
        let lanes = || Lanes::new(streams.clone(), 2, &token).unwrap();
        let (first, second, third) = (lanes(), lanes(), lanes());
        let before = simulated.now();
        first.stored(0, &token).unwrap();
        simulated.kernel(first.up(), LONG, &token);
        second.stored(0, &token).unwrap();
        simulated.kernel(third.up(), LONG, &token);
        drop(first);
        assert!(simulated.now() - before < LONG, "it waited for what is not marked there");
        drop(second);
        let passed = simulated.now() - before;
        assert!((LONG..2 * LONG).contains(&passed), "{passed}: not for its own work alone");
        drop((third, streams));
        assert!(simulated.now() - before >= 2 * LONG, "nobody waited for what was not marked");
    }

    #[test]
    fn nothing_is_left_of_lanes_that_could_not_be_made() {
        let simulated = Arc::new(Simulated::new(1 << 20));
        let gpu = Gpu::new(simulated.clone()).unwrap();
        let (token, before) = (DriverToken::at_entry(), simulated.outstanding());
        // Two streams, and an event for each of three slots.
        let lanes = || Lanes::new(Arc::new(Streams::new(&gpu, &token)?), 3, &token);
        for failing in 0..5 {
            simulated.fail_at(simulated.all_calls() + failing, 2);
            assert_eq!(lanes().err().map(|error| error.code), Some(2), "call {failing}");
            assert_eq!(simulated.outstanding(), before, "call {failing}");
        }
        simulated.fail_never();
        drop(lanes().unwrap());
        assert_eq!(simulated.outstanding(), before);
    }
}
