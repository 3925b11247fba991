//! Freed host memory gets a pattern, and whoever has it next looks whether it is still
//! there: a write after the free shows, with who allocated the block, who freed it and
//! who found out. For finding faults: a free writes the whole block, an allocation reads
//! it, and both take the ledger's lock, under which nothing else is called.
//!
//! A device that still writes to a block, which was given up without its fence, is
//! found as well.
#![allow(unsafe_code)]

use crate::device::{Ledger, Life, Note, Past};
use crate::device::{Misuse, Offence};
use crate::trace::{Stack, thread_number};
use parking_lot::Mutex;
use pinyard_worker::log;
use std::sync::Arc;
use std::time::Instant;

/// What freed memory holds.
pub(crate) const PATTERN: u8 = 0xdb;

type Alarm = Arc<dyn Fn(&Misuse) + Send + Sync>;

pub(crate) struct Poison {
    began: Instant,
    ledger: Ledger,
    alarms: Mutex<Vec<Alarm>>,
}

impl Poison {
    pub(crate) fn new() -> Poison {
        Poison { began: Instant::now(), ledger: Ledger::default(), alarms: Mutex::default() }
    }

    pub(crate) fn on_misuse(&self, alarm: Alarm) {
        self.alarms.lock().push(alarm);
    }

    /// The blocks in use.
    pub(crate) fn lives(&self) -> impl Iterator<Item = Life> {
        self.ledger.live().into_iter().map(|(_, life)| life)
    }

    fn note(&self) -> Note {
        let time_ns = self.began.elapsed().as_nanos() as u64;
        Note { time_ns, thread: thread_number(), stack: Stack::here() }
    }

    /// The block is handed out, to nobody yet.
    ///
    /// # Safety
    /// The range is the caller's, mapped host memory.
    #[cold]
    pub(crate) unsafe fn allocated(&self, start: usize, bytes: usize, wanted: usize) {
        let now = self.note();
        // SAFETY: the caller's contract.
        unsafe { self.inspect(start, bytes, &now) };
        self.ledger.allocated(start as u64, bytes as u64, wanted as u64, 0, now);
    }

    /// The block is free, and still the caller's.
    ///
    /// # Safety
    /// As [`allocated`](Poison::allocated).
    #[cold]
    pub(crate) unsafe fn freed(&self, start: usize, bytes: usize) {
        // SAFETY: the caller's.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start).write_bytes(PATTERN, bytes) };
        self.ledger.dropped(start as u64, self.note());
        self.ledger.poisoned(start as u64);
    }

    /// The range goes back to the source.
    ///
    /// # Safety
    /// As [`allocated`](Poison::allocated).
    pub(crate) unsafe fn released(&self, start: usize, bytes: usize) {
        // SAFETY: the caller's contract.
        unsafe { self.inspect(start, bytes, &self.note()) };
    }

    /// # Safety
    /// As [`allocated`](Poison::allocated).
    unsafe fn inspect(&self, start: usize, bytes: usize, now: &Note) {
        for (at, past) in self.ledger.take_past(start as u64, bytes as u64) {
            // SAFETY: a part of the caller's range. Volatile, as whoever writes there now
            // does what is being looked for.
            let byte = |offset: u64| unsafe {
                std::ptr::with_exposed_provenance::<u8>((at + offset) as usize).read_volatile()
            };
            let changed =
                (0..past.bytes).map(|offset| (offset, byte(offset))).find(|&(_, byte)| byte != PATTERN);
            if let Some((offset, found)) = changed {
                self.report(&past, at + offset - past.block, found, now);
            }
        }
    }

    fn report(&self, past: &Past, offset: u64, found: u8, now: &Note) {
        let offence = Offence::UseAfterFree { offset, found };
        let misuse = Misuse { stream: None, ..Misuse::new(offence, past.block, now).of_past(past) };
        let alarms = self.alarms.lock().clone();
        if alarms.is_empty() {
            log!(error, "{misuse}");
        }
        alarms.iter().for_each(|alarm| alarm(&misuse));
    }
}
