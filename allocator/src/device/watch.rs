//! What looks on while a pool is watched: the trace, the ledger of blocks, poison. Not
//! watched, it costs an allocation and a free nothing: the comparison that finds a fork
//! finds a watched pool as well, and goes the same way every time.
//!
//! Watched, they take the ledger's lock for a moment, under which nothing but the
//! ledger's own maps is touched: a drop still waits for no driver and no other lock.

use super::block::BlockRef;
use super::core::Core;
use super::ledger::{Ledger, Note};
use super::misuse::{Misuse, Offence};
use super::stream::StreamState;
use crate::fork;
use crate::source::DriverToken;
use crate::trace::{DEPTH, Event, Kind, Record, Ring, Stack, Trace, Traced, thread_number};
use parking_lot::Mutex;
use pinyard_worker::{log, say, without_signals};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What to watch for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceOptions {
    /// Events that the ring holds; 88 bytes each, 280 with stacks. Set by the first start.
    pub events: usize,
    /// Keep the stack of each event: 2 to 5 microseconds each.
    pub stacks: bool,
}

impl TraceOptions {
    /// The fewest and the most events of a ring.
    pub const EVENTS: std::ops::RangeInclusive<usize> = 16..=1 << 24;
}

impl Default for TraceOptions {
    /// 65,536 events without stacks: 5.5 MiB.
    fn default() -> TraceOptions {
        TraceOptions { events: 1 << 16, stacks: false }
    }
}

type Alarm = Arc<dyn Fn(&Misuse) + Send + Sync>;

/// No generations of forks.
const WATCHED: u32 = u32::MAX;
const CLOSED: u32 = u32::MAX - 1;

pub(super) struct Watch {
    /// The fork generation of the pool's process, [`WATCHED`], or [`CLOSED`]: not watched,
    /// but no handle is left, and drops have to wake the pool's thread.
    plain: AtomicU32,
    forks: u32,
    tracing: AtomicBool,
    poison: bool,
    /// The process's trace has this pool's events as well.
    process: Option<Traced>,
    began: Instant,
    ring: OnceLock<Ring>,
    pub(super) ledger: Ledger,
    alarms: Mutex<Vec<Alarm>>,
    misuses: AtomicU64,
}

impl Watch {
    pub(super) fn new(poison: bool, process: Option<Traced>, forks: u32) -> Watch {
        Watch {
            plain: AtomicU32::new(if poison || process.is_some() { WATCHED } else { forks }),
            forks,
            tracing: AtomicBool::new(false),
            poison,
            process,
            began: Instant::now(),
            ring: OnceLock::new(),
            ledger: Ledger::default(),
            alarms: Mutex::default(),
            misuses: AtomicU64::new(0),
        }
    }

    /// Neither watched, nor closed, nor in a fork of the pool's process.
    #[inline(always)]
    pub(super) fn is_plain(&self) -> bool {
        self.plain.load(Relaxed) == fork::generation()
    }

    /// Not in a fork, where the ledger's lock may be held for ever.
    pub(super) fn is_on(&self) -> bool {
        self.plain.load(Relaxed) == WATCHED && self.forks == fork::generation()
    }

    pub(super) fn poisons(&self) -> bool {
        self.poison
    }

    /// Starts, or starts anew. The ring is made once.
    pub(super) fn start(&self, options: TraceOptions) {
        let events = options.events.clamp(*TraceOptions::EVENTS.start(), *TraceOptions::EVENTS.end());
        let depth = if options.stacks { DEPTH } else { 0 };
        self.ring.get_or_init(|| Ring::new(events, depth)).clear();
        if !self.stays_watched() {
            self.ledger.clear();
        }
        self.tracing.store(true, Relaxed);
        self.plain.store(WATCHED, Relaxed);
    }

    /// No handle is left.
    pub(super) fn close(&self) {
        _ = self.plain.compare_exchange(self.forks, CLOSED, Relaxed, Relaxed);
    }

    pub(super) fn stop(&self) {
        self.tracing.store(false, Relaxed);
        self.plain.store(if self.stays_watched() { WATCHED } else { self.forks }, Relaxed);
    }

    /// Whether or not a trace of its own is kept.
    fn stays_watched(&self) -> bool {
        self.poison || self.process.is_some()
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// The caller's stack, if anybody wants it.
    fn stack(&self) -> Stack {
        let wanted = self.poison || self.ring.get().is_some_and(Ring::keeps_stacks);
        if wanted { Stack::here() } else { Stack::NONE }
    }

    pub(super) fn note(&self) -> Note {
        Note { time_ns: self.now(), thread: thread_number(), stack: self.stack() }
    }

    fn push(&self, note: &Note, record: impl FnOnce() -> Record) {
        let ring = self.ring.get().filter(|_| self.tracing.load(Relaxed));
        if ring.is_none() && self.process.is_none() {
            return;
        }
        let record = Record { time_ns: note.time_ns, thread: note.thread, ..record() };
        if let Some(ring) = ring {
            ring.push(record, &note.stack.0);
        }
        if let Some(process) = self.process {
            process.pass_on(record);
        }
    }

    /// An event that is of no block.
    pub(super) fn event(&self, kind: Kind, stream: u64, bytes: usize, address: u64) {
        if self.is_on() {
            self.of_pool(kind, stream, bytes, address);
        }
    }

    #[cold]
    fn of_pool(&self, kind: Kind, stream: u64, bytes: usize, address: u64) {
        let note = self.note();
        self.push(&note, || Record { stream, bytes: bytes as u64, address, ..Record::of(kind) });
    }

    /// A block was handed out, to nobody yet.
    #[cold]
    #[inline(never)]
    pub(super) fn allocated(&self, core: &Core, state: &StreamState, block: BlockRef, wanted: usize) {
        let note = self.note();
        if self.poison {
            core.inspect(state, block, &note, &DriverToken::at_entry());
        } else {
            self.ledger.take_past(block.address.get(), block.bytes.get() as u64);
        }
        let (address, bytes) = (block.address.get(), block.bytes.get() as u64);
        let id = self.ledger.allocated(address, bytes, wanted as u64, state.id, note);
        self.of_block(Kind::Alloc, &note, state.id, block, wanted as u64, id);
    }

    /// A block was dropped, and is still its owner's.
    #[cold]
    #[inline(never)]
    pub(super) fn dropped(&self, block: BlockRef) {
        let note = self.note();
        let life = self.ledger.dropped(block.address.get(), note);
        let (stream, wanted, id) = life.map_or((0, 0, 0), |life| (life.stream, life.wanted, life.id));
        self.of_block(Kind::Free, &note, stream, block, wanted, id);
    }

    pub(super) fn used(&self, block: BlockRef, stream: u64) {
        if self.is_on() {
            let id = self.ledger.life(block.address.get()).map_or(0, |life| life.id);
            self.of_block(Kind::RecordUse, &self.note(), stream, block, 0, id);
        }
    }

    fn of_block(&self, kind: Kind, note: &Note, stream: u64, block: BlockRef, bytes: u64, id: u64) {
        let (address, block_bytes) = (block.address.get(), block.bytes.get() as u64);
        self.push(note, || Record { stream, bytes, block_bytes, block: id, address, ..Record::of(kind) });
    }

    /// How long ago the block there was handed out.
    pub(super) fn age_of(&self, address: u64) -> Option<u64> {
        let life = self.ledger.life(address).filter(|_| self.is_on())?;
        Some(self.now().saturating_sub(life.allocated.time_ns))
    }

    pub(super) fn trace(&self) -> Trace {
        let Some(ring) = self.ring.get() else { return Trace::default() };
        let (records, lost) = ring.read();
        let events = records.into_iter().map(|(record, stack)| Event::of(record, Stack::of(&stack).names()));
        Trace::with_lost(events.collect(), lost)
    }

    /// To `path`, the process and a number that no file has.
    pub(super) fn write_numbered(&self, path: &Path) {
        const MOST: u32 = 10_000;
        let trace = self.trace();
        for number in 0..MOST {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{}.{number}", std::process::id()));
            match without_signals(|| trace.write(Path::new(&name))) {
                Err(error) if error.source.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return say(format_args!("the trace of a pool is lost: {error}"));
                }
                Ok(()) => return,
            }
        }
        say(format_args!("the trace of a pool is lost: {} has {MOST} files already", path.display()));
    }

    pub(super) fn on_misuse(&self, alarm: Alarm) {
        self.alarms.lock().push(alarm);
    }

    pub(super) fn misuses(&self) -> u64 {
        self.misuses.load(Relaxed)
    }

    /// Something wrong with a block in use.
    pub(super) fn misuse_of_block(&self, offence: Offence, at: u64) -> Misuse {
        let misuse = Misuse::new(offence, at, &self.note()).of_life(self.ledger.life(at).as_ref());
        self.report(&misuse);
        misuse
    }

    /// No block begins at `at`; a block in use that begins at `inside` goes on there.
    pub(super) fn refused(&self, at: u64, inside: Option<u64>) -> Misuse {
        let now = self.note();
        let misuse = match (inside, self.ledger.past(at)) {
            (Some(block), _) => {
                Misuse::new(Offence::Inside { block }, at, &now).of_life(self.ledger.life(block).as_ref())
            }
            (None, Some(past)) if past.block == at => {
                Misuse::new(Offence::DoubleFree, at, &now).of_past(&past)
            }
            _ => Misuse::new(Offence::Foreign, at, &now),
        };
        self.report(&misuse);
        misuse
    }

    /// Tells everybody who asked, or else the log, without a lock.
    pub(super) fn report(&self, misuse: &Misuse) {
        self.misuses.fetch_add(1, Relaxed);
        let alarms = self.alarms.lock().clone();
        if alarms.is_empty() {
            log!(error, "{misuse}");
        }
        alarms.iter().for_each(|alarm| alarm(misuse));
    }
}
