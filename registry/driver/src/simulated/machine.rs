//! Streams, events and the virtual clock.
//!
//! Work is queued per stream and runs when the clock reaches it. Calls move the
//! clock by what they cost; waits move it to what they wait for. Nothing happens at
//! random: the same calls give the same run.
#![allow(unsafe_code)]

use super::faults::Faults;
use super::kernels::Reduction;
use super::memory::Memory;
use crate::types::Capture;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, OnceLock};

/// Host functions, which run with the machine unlocked.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// One record of an event: when its work was done, once it is. Whoever waits keeps the
/// record that it waits for, whatever becomes of the event.
pub(super) type Record = Arc<OnceLock<u64>>;

pub(super) enum Op {
    Kernel,
    ToDevice { to: usize, from: usize, bytes: usize },
    ToHost { to: usize, from: usize, bytes: usize },
    OnDevice { to: usize, from: usize, bytes: usize },
    Fill { at: usize, byte: u8, bytes: usize },
    Reduce(Reduction),
    Record(Record),
    WaitRecord(Record),
    Write { word: usize, value: u64 },
    WaitValue { word: usize, value: u64 },
    HostFunction(Work),
}

struct Queued {
    op: Op,
    /// When it was asked for.
    from: u64,
    /// How long it takes once it begins.
    takes: u64,
}

pub(super) struct StreamState {
    pub(super) id: u64,
    queue: VecDeque<Queued>,
    /// When the work before the queue was done.
    done: u64,
    pub(super) capture: Capture,
    /// Destroyed; it goes when its work is done.
    dying: bool,
    /// A host function of this stream runs.
    away: bool,
}

#[derive(Default)]
pub(super) struct EventState {
    /// The last one.
    pub(super) record: Option<Record>,
}

impl EventState {
    /// Whether the last record has passed, or there is none.
    pub(super) fn is_done(&self) -> bool {
        self.record.as_ref().is_none_or(|record| record.get().is_some())
    }
}

pub(super) struct Machine {
    pub(super) now: u64,
    pub(super) memory: Memory,
    pub(super) streams: BTreeMap<usize, StreamState>,
    pub(super) events: BTreeMap<usize, EventState>,
    /// Loaded modules: their kernels.
    pub(super) modules: BTreeMap<usize, Vec<String>>,
    /// Kernels that were asked for: their modules and names.
    pub(super) functions: BTreeMap<usize, (usize, String)>,
    pub(super) faults: Faults,
    /// What was done wrong.
    pub(super) offences: Vec<String>,
    pub(super) handles: usize,
    pub(super) ids: u64,
    /// Handles of destroyed streams, given out again: as a driver does.
    free_handles: Vec<usize>,
}

impl Machine {
    pub(super) fn new(memory: Memory) -> Machine {
        let mut machine = Machine {
            now: 0,
            memory,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            faults: Faults::new(),
            offences: Vec::new(),
            handles: 0x1000,
            ids: 1,
            free_handles: Vec::new(),
        };
        machine.streams.insert(0, StreamState::new(1));
        machine
    }

    pub(super) fn handle(&mut self) -> usize {
        self.handles += 0x10;
        self.handles
    }

    pub(super) fn new_stream(&mut self) -> usize {
        self.ids += 1;
        let handle = self.free_handles.pop().unwrap_or_else(|| {
            self.handles += 0x10;
            self.handles
        });
        let id = self.ids;
        self.streams.insert(handle, StreamState::new(id));
        handle
    }

    /// The handle is free at once; the work still runs.
    pub(super) fn destroy_stream(&mut self, handle: usize) -> bool {
        let Some(mut stream) = self.streams.remove(&handle).filter(|_| handle != 0) else { return false };
        self.free_handles.push(handle);
        stream.dying = true;
        if !stream.queue.is_empty() || stream.away {
            // Above every handle that is given out.
            self.streams.insert((1 << 48) + stream.id as usize, stream);
        }
        true
    }

    pub(super) fn enqueue(&mut self, stream: usize, op: Op, takes: u64) -> bool {
        let now = self.now;
        let Some(stream) = self.streams.get_mut(&stream).filter(|stream| !stream.dying) else { return false };
        stream.queue.push_back(Queued { op, from: now, takes });
        true
    }

    /// Ends all work, and frees all that was made.
    pub(super) fn reset(&mut self) {
        self.streams.retain(|&handle, _| handle == 0);
        self.streams.values_mut().for_each(|stream| stream.queue.clear());
        self.events.clear();
        self.modules.clear();
        self.functions.clear();
        self.memory.reset();
    }

    /// Whether the stream's work is done; `None` without such a stream.
    pub(super) fn is_idle(&self, stream: usize) -> Option<bool> {
        self.streams.get(&stream).map(StreamState::is_idle)
    }

    pub(super) fn all_idle(&self) -> bool {
        self.streams.values().all(StreamState::is_idle)
    }

    /// Does what the clock allows. A host function is returned to be run, with the
    /// machine unlocked and then [`returned`](Machine::returned), with its stream's number: by
    /// then the handle may be another's.
    pub(super) fn run(&mut self) -> Option<(u64, Work)> {
        loop {
            let mut moved = false;
            let handles: Vec<usize> = self.streams.keys().copied().collect();
            for handle in handles {
                while let Some(step) = self.step(handle) {
                    moved = true;
                    if let Some(work) = step {
                        return self.streams.get(&handle).map(|stream| (stream.id, work));
                    }
                }
            }
            self.streams.retain(|_, stream| !(stream.dying && stream.is_idle()));
            if !moved {
                return None;
            }
        }
    }

    pub(super) fn returned(&mut self, id: u64) {
        let now = self.now;
        if let Some(stream) = self.streams.values_mut().find(|stream| stream.id == id) {
            stream.away = false;
            stream.done = now;
        }
    }

    /// Takes the stream's next piece of work if its time has come: `Some` if so.
    fn step(&mut self, handle: usize) -> Option<Option<Work>> {
        let now = self.now;
        let stream = self.streams.get_mut(&handle)?;
        if stream.away {
            return None;
        }
        let Queued { op, from, takes } = stream.queue.front()?;
        let mut done = stream.done.max(*from) + takes;
        match op {
            Op::WaitRecord(record) => done = done.max(*record.get()?),
            Op::WaitValue { word, value } => {
                // SAFETY: the waiter's contract keeps the word.
                let word = unsafe { AtomicU64::from_ptr(*word as *mut u64) };
                // Acquire: pairs with the host's store of the word.
                if (word.load(Acquire).wrapping_sub(*value) as i64) < 0 {
                    return None;
                }
                done = done.max(now);
            }
            _ => {}
        }
        if done > now {
            return None;
        }
        let Queued { op, .. } = stream.queue.pop_front()?;
        stream.done = done;
        match op {
            Op::Kernel | Op::WaitRecord(_) | Op::WaitValue { .. } => {}
            Op::ToDevice { to, from, bytes }
            | Op::ToHost { to, from, bytes }
            | Op::OnDevice { to, from, bytes } => {
                // SAFETY: the copier's contract keeps both ranges.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) }
            }
            Op::Fill { at, byte, bytes } => {
                // SAFETY: the caller's contract keeps the range.
                unsafe { std::ptr::write_bytes(at as *mut u8, byte, bytes) }
            }
            // SAFETY: the launcher's contract keeps the ranges.
            Op::Reduce(reduction) => unsafe { reduction.run() },
            // Queued once, so not set before.
            Op::Record(record) => drop(record.set(done)),
            Op::Write { word, value } => {
                // SAFETY: the writer's contract keeps the word.
                // Release: pairs with the host's load of the word.
                unsafe { AtomicU64::from_ptr(word as *mut u64) }.store(value, Release);
            }
            Op::HostFunction(work) => {
                stream.away = true;
                return Some(Some(work));
            }
        }
        Some(None)
    }

    /// When the next piece of work can be done whose time is known.
    pub(super) fn next_time(&self) -> Option<u64> {
        let times = self.streams.values().filter_map(|stream| {
            let Queued { op, from, takes } = stream.queue.front().filter(|_| !stream.away)?;
            let mut done = stream.done.max(*from) + takes;
            match op {
                Op::WaitValue { .. } => return None,
                Op::WaitRecord(record) => done = done.max(*record.get()?),
                _ => {}
            }
            Some(done)
        });
        times.filter(|&time| time > self.now).min()
    }
}

impl StreamState {
    fn new(id: u64) -> StreamState {
        StreamState { id, queue: VecDeque::new(), done: 0, capture: Capture::None, dying: false, away: false }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.away
    }
}
