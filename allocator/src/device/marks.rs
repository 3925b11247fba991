//! How far a stream has come: a word that the stream itself raises
//! (`cuStreamWriteValue64`), or pooled events where it cannot.
//!
//! A mark is asked for once for many blocks, and only when somebody besides the
//! stream wants them. Whether it has passed is then a plain load. With events,
//! whoever polls moves the word.
#![allow(unsafe_code)]

use super::events::Events;
use crate::error::BuildError;
use crate::host;
use crate::retire::Callable;
use crate::source::{DriverToken, Segment, SourceError};
use parking_lot::Mutex;
use pinyard_driver::{Capture, DevicePtr, Driver, DriverError, Stream};
use pinyard_worker::log;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

/// How a pool learns what streams have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MarkKind {
    /// Words where the device can, else events.
    #[default]
    Best,
    /// Events.
    Events,
}

/// Words of pinned memory, one per stream, each on a cache line of its own. The memory is ours and
/// registered: what `cuMemHostAlloc` gives is unmapped when the device is reset (seen on an H200), and
/// a timeline would read it still. It may be part of a child, as nothing but the device writes to it, so
/// that the parent's pages stay where they are.
pub(super) struct Words {
    host: *mut u8,
    device: DevicePtr,
}

/// Streams that have a word of their own; later ones have events.
pub(super) const WORDS: usize = 1024;
const STRIDE: usize = 64;
const BYTES: usize = WORDS * STRIDE;

// SAFETY: an address; the words are atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    pub(super) fn new(driver: &dyn Driver, token: &DriverToken) -> Result<Words, BuildError> {
        let memory = host::map_pages(BYTES).map_err(BuildError::Memory)?;
        let host = ptr::with_exposed_provenance_mut(memory.start);
        // SAFETY: our own mapping, which stands until `free` has undone this.
        if let Err(error) = unsafe { driver.host_register(host, BYTES, token) } {
            // SAFETY: seen by nobody. Refused, address space stays behind.
            let _ = unsafe { host::unmap(memory) };
            return Err(BuildError::Driver(error));
        }
        let mut words = Words { host, device: DevicePtr(0) };
        // SAFETY: registered.
        match unsafe { driver.host_device_ptr(host, token) } {
            Ok(device) => words.device = device,
            Err(error) => {
                // SAFETY: seen by nobody. Refused, the pages stay behind.
                let _ = unsafe { words.free(driver, token) };
                return Err(BuildError::Driver(error));
            }
        }
        Ok(words)
    }

    /// # Safety
    /// Every stream has written what it was asked to, no timeline is used any more,
    /// and it is called once.
    pub(super) unsafe fn free(&self, driver: &dyn Driver, token: &DriverToken) -> Result<(), SourceError> {
        // SAFETY: registered in `new`.
        match unsafe { driver.host_unregister(self.host, token) } {
            // Unregistered by the reset.
            Err(error) if error.is_context_destroyed() => {}
            // The mapping stays: the device may write there.
            other => other?,
        }
        // SAFETY: mapped in `new`; neither the device nor a timeline uses it (the caller's
        // contract).
        unsafe { host::unmap(Segment { start: self.host.addr(), bytes: BYTES }) }
    }

    fn word(&self, at: usize) -> Option<(*const AtomicU64, DevicePtr)> {
        (at < WORDS).then(|| {
            // SAFETY: within the allocation.
            let host = unsafe { self.host.add(at * STRIDE) };
            (host.cast_const().cast(), DevicePtr(self.device.0 + (at * STRIDE) as u64))
        })
    }
}

/// A thread that waits for a mark asks the driver after this time whether the context is lost, and again
/// after the same time: a long kernel costs four calls a second.
pub(super) const ASK_AFTER: Duration = Duration::from_millis(250);

/// What became of a mark.
pub(super) enum Marked {
    /// Passes when the timeline is at least this.
    At(u64),
    /// The stream is being captured: a mark would become part of the graph.
    Capturing,
}

pub(super) struct Timeline {
    /// Raised by the stream, or by `poll`.
    word: *const AtomicU64,
    raised: Raised,
    /// The last value given out. This lock and the stream's retire lock are the only ones that
    /// are held over a driver call: one, for this stream, so that values are in the stream's order. Who waits for it is about to
    /// make the same call for the same stream, and waits no longer than the driver would
    /// make it. No lock of the pool's is held meanwhile (the token), and no drop, no poll
    /// and no other stream's allocation asks for it.
    issued: Mutex<u64>,
    /// The last value asked for, as far as others need to know.
    asked: AtomicU64,
}

enum Raised {
    /// The device's address of the word.
    ByStream(DevicePtr),
    ByEvents {
        own: Box<AtomicU64>,
        events: Events,
    },
}

// SAFETY: the word is an atomic, in pinned memory or in `own`.
unsafe impl Send for Timeline {}
// SAFETY: as above.
unsafe impl Sync for Timeline {}

impl Timeline {
    /// The timeline of the stream with this number; words stand as long as it does.
    pub(super) fn new(words: Option<&Words>, number: usize) -> Timeline {
        let (word, raised) = match words.and_then(|words| words.word(number)) {
            Some((word, device)) => (word, Raised::ByStream(device)),
            None => {
                let own = Box::new(AtomicU64::new(0));
                (&raw const *own, Raised::ByEvents { own, events: Events::default() })
            }
        };
        Timeline { word, raised, issued: Mutex::new(0), asked: AtomicU64::new(0) }
    }

    /// What has passed.
    #[inline]
    pub(super) fn passed(&self) -> u64 {
        // Acquire: pairs with the stream's write, or the Release in `poll`.
        // SAFETY: the word stands (`new`).
        unsafe { &*self.word }.load(Acquire)
    }

    /// The last mark asked for; another thread's may be a moment late.
    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// Whether a mark has not passed.
    pub(super) fn is_behind(&self) -> bool {
        self.passed() < self.asked()
    }

    /// Marks the work that `stream` has been given so far.
    pub(super) fn mark(
        &self,
        driver: &dyn Driver,
        stream: &impl Callable<Stream>,
        token: &mut DriverToken,
    ) -> Result<Marked, DriverError> {
        let stream = stream.handle();
        if driver.stream_capture(stream, token)? != Capture::None {
            return Ok(Marked::Capturing);
        }
        match &self.raised {
            Raised::ByStream(word) => {
                let mut issued = self.issued.lock();
                // SAFETY: the word stands until all that was asked for is written.
                unsafe { driver.stream_write_value(stream, *word, *issued + 1, token) }?;
                Ok(self.marked(&mut issued))
            }
            Raised::ByEvents { events, .. } => {
                let event = events.take(driver, token)?;
                let mut issued = self.issued.lock();
                if let Err(error) = driver.event_record(event, stream, token) {
                    events.put_back(event, token);
                    return Err(error);
                }
                events.recorded(*issued + 1, event, token);
                Ok(self.marked(&mut issued))
            }
        }
    }

    fn marked(&self, issued: &mut u64) -> Marked {
        *issued += 1;
        self.asked.store(*issued, Relaxed);
        Marked::At(*issued)
    }

    /// All marks have passed: the context is lost, and its streams write no word any more.
    pub(super) fn pass_all(&self) {
        // Release: pairs with `passed`.
        // SAFETY: the word stands (`new`), and the host may write it.
        unsafe { &*self.word }.fetch_max(self.asked(), Release);
    }

    /// Whether somebody has to ask for what has passed.
    pub(super) fn has_events(&self) -> bool {
        matches!(self.raised, Raised::ByEvents { .. })
    }

    /// Asks the events; nothing to do for a word.
    pub(super) fn poll(&self, driver: &dyn Driver, token: &mut DriverToken) -> Result<(), DriverError> {
        let Raised::ByEvents { own, events } = &self.raised else { return Ok(()) };
        events.poll(driver, token, |value| {
            // Release: pairs with `passed`. Another poll may have raised it further.
            own.fetch_max(value, Release);
        })
    }

    /// Lets later work of `waiter` wait until `value` has passed.
    pub(super) fn hold(
        &self,
        waiter: &impl Callable<Stream>,
        value: u64,
        driver: &dyn Driver,
        token: &mut DriverToken,
    ) -> Result<(), DriverError> {
        let waiter = waiter.handle();
        match &self.raised {
            Raised::ByStream(word) => {
                // SAFETY: as in `mark`.
                unsafe { driver.stream_wait_value(waiter, *word, value, token) }
            }
            Raised::ByEvents { events, .. } => events.hold(waiter, value, driver, token),
        }
    }

    /// Everything has passed, as the context says.
    pub(super) fn destroy_events(&self, driver: &dyn Driver, token: &mut DriverToken) {
        let Raised::ByEvents { events, .. } = &self.raised else { return };
        for event in events.take_all(token) {
            // SAFETY: ours, and out of every list. A failure leaves an event behind.
            if let Err(error) = unsafe { driver.event_destroy(event, token) } {
                log!(warn, %error, "an event of a closed pool stays");
            }
        }
    }
}
