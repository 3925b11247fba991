//! The device pool: what callers see.

use super::alloc::{Effort, Want};
use super::block::BlockRef;
use super::buf::DeviceBuf;
use super::builder::DeviceBuilder;
use super::classes::{self, Kind, LARGEST_SMALL};
use super::core::Core;
use super::error::{DeviceError, Shortage};
use super::marks::{ASK_AFTER, Marked};
use super::snapshot::{Snapshot, Statistics};
use super::stats::DeviceStats;
use super::stream::StreamState;
use crate::fence::{Fence, Poll};
use crate::pressure::Pressure;
use crate::requests::guarded;
use crate::retire::Retired;
use crate::source::{DriverToken, Source, SourceError};
use crate::sources::{DeviceSource, VirtualSource};
use pinyard_driver::{Counted, Driver, DriverError, Stream};
use pinyard_worker::log;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Blocks of device memory in the order of streams. A handle: clones share one pool.
///
/// An allocation on a stream may be given what that stream's earlier work still uses:
/// the device runs a stream's work in order. Another stream is given it when that
/// work has passed, which a word in host memory tells. Streams keep what they free; when
/// they keep more than a tenth of the pool, others are given theirs before it grows, and
/// where it has an eighth more than is in use they wait for it, on the device, if the
/// streams that freed it move ([`DeviceBuilder::stall`]).
///
/// When the last handle is dropped, of the pool and of its streams, a thread gives
/// everything back, at the latest with the last block. In a forked child allocations
/// fail, and drops do nothing.
#[derive(Clone)]
pub struct DevicePool {
    handle: Arc<Handle>,
}

struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a fork the locks may be held for ever.
        if !self.core.is_forked() {
            // Blocks in use rely on the end.
            guarded("the report of a pool's leaks", || self.report());
        }
        self.core.watch.close();
        self.core.closed.store(true, SeqCst);
        self.core.wake();
    }
}

impl Handle {
    fn report(&self) {
        if let Some(heirs) = self.core.heirs.get().filter(|heirs| !heirs.is_empty()) {
            let leaks = self.core.leaks();
            if leaks.blocks > 0 {
                heirs.iter().for_each(|heir| heir(&leaks));
            }
        }
        if let Some(path) = self.core.trace_file.get() {
            self.core.watch.write_numbered(path);
        }
    }
}

/// A stream as a pool knows it. A handle: clones share it. It keeps the pool.
#[derive(Clone)]
pub struct PoolStream {
    handle: Arc<Handle>,
    state: Arc<StreamState>,
}

impl DevicePool {
    /// Starts making a pool of memory from `cuMemAlloc`.
    pub fn builder(driver: Arc<dyn Driver>) -> DeviceBuilder {
        let driver = Arc::new(Counted::new(driver));
        let source: Arc<dyn Source> = Arc::new(DeviceSource::new(driver.clone()));
        DeviceBuilder::new(driver, [source.clone(), source])
    }

    /// Starts making a pool of memory that is mapped piece by piece
    /// ([`VirtualSource`]); with `rdma`, memory that a NIC may reach.
    pub fn virtual_memory(driver: Arc<dyn Driver>, rdma: bool) -> Result<DeviceBuilder, SourceError> {
        let driver = Arc::new(Counted::new(driver));
        let source =
            || VirtualSource::new(driver.clone(), rdma).map(|source| Arc::new(source) as Arc<dyn Source>);
        let sources = [source()?, source()?];
        Ok(DeviceBuilder::new(driver, sources))
    }

    /// Starts making a pool of memory from a source of the caller's own, which the
    /// driver's streams use: pinned host memory, say.
    pub fn from_source(driver: Arc<dyn Driver>, source: impl Source + 'static) -> DeviceBuilder {
        let source: Arc<dyn Source> = Arc::new(source);
        DeviceBuilder::new(Arc::new(Counted::new(driver)), [source.clone(), source])
    }

    /// The pool's handle of a stream, to allocate with. Asks the driver for the
    /// stream's number, so that a handle of CUDA's that was given out anew is not
    /// confused with the old stream; one that is new to the pool is marked
    /// (`cuStreamWriteValue64`) unless streams do not share or it is being captured.
    ///
    /// The per-thread default stream is refused: its handle is another stream in every
    /// thread, the pool's own included, which marks streams.
    ///
    /// Before the stream is destroyed, call [`PoolStream::retire`].
    pub fn stream(&self, stream: Stream) -> Result<PoolStream, DeviceError> {
        let core = &self.handle.core;
        if core.is_forked() {
            return Err(DeviceError::Forked);
        }
        if stream.is_per_thread() {
            return Err(DeviceError::PerThread);
        }
        let mut token = DriverToken::at_entry();
        let id = core.driver.stream_id(stream, &token)?;
        // So that those that are done leave their places.
        core.poll_events_of(|state| state.last_mark().is_some(), &mut token);
        let mut central = core.lock(&mut token);
        let known = central.streams.iter().find(|state| state.id == id && state.last_mark().is_none());
        if let Some(state) = known {
            return Ok(PoolStream { handle: self.handle.clone(), state: state.clone() });
        }
        let state = central.enter(Arc::as_ptr(core), core.words.as_ref(), stream, id);
        drop(central);
        // It shows early that it moves: until it has, others cannot borrow of it. If it
        // cannot be marked now, that is when others want what it keeps.
        // Another thread may have found it, retired and destroyed it since.
        if !core.settings.stall.is_zero()
            && let Ok(in_use) = state.in_use(&token)
            && let Err(error) = state.timeline.mark(&*core.driver, &in_use, &mut token)
        {
            log!(debug, %error, "a new stream could not be marked");
        }
        Ok(PoolStream { handle: self.handle.clone(), state })
    }

    /// A block of at least `bytes` for work on `stream`. Its contents are unspecified.
    ///
    /// Usually no driver call. An allocation that would fail first waits for streams
    /// that hold free memory, up to the pool's patience.
    #[inline]
    pub fn alloc(&self, bytes: usize, stream: &PoolStream) -> Result<DeviceBuf, DeviceError> {
        if !Arc::ptr_eq(&self.handle, &stream.handle) {
            return Err(DeviceError::ForeignStream);
        }
        stream.alloc(bytes)
    }

    /// Reserves slabs for `count` blocks of each size, one block more than is live
    /// being enough for any order.
    pub fn warmup(&self, sizes: &[(usize, usize)], stream: &PoolStream) -> Result<(), DeviceError> {
        // Beyond the limit or all addresses nothing is reserved first.
        let sum = |sum: usize, &(bytes, count): &(usize, usize)| sum.checked_add(bytes.checked_mul(count)?);
        let wanted = sizes.iter().try_fold(0, sum).unwrap_or(usize::MAX);
        let limit = self.handle.core.settings.limit();
        if classes::rounded(wanted).is_none() {
            return Err(DeviceError::Overflow { bytes: wanted });
        }
        if wanted > limit {
            let reserved = self.stats().reserved_bytes as usize;
            return Err(DeviceError::Limit { limit, wanted, reserved });
        }
        let mut blocks = Vec::new();
        for &(bytes, count) in sizes {
            for _ in 0..count {
                blocks.push(self.alloc(bytes, stream)?);
            }
        }
        Ok(())
    }

    /// A block of each size, or none. Those above 32 KiB lie side by side where the
    /// stream has such a range, and are taken under one lock.
    pub fn alloc_batch(&self, sizes: &[usize], stream: &PoolStream) -> Result<Vec<DeviceBuf>, DeviceError> {
        if !Arc::ptr_eq(&self.handle, &stream.handle) {
            return Err(DeviceError::ForeignStream);
        }
        stream.alloc_batch(sizes)
    }

    /// Gives back the slabs that hold no block, after waiting up to `patience` for the
    /// streams that freed them. Returns bytes.
    pub fn trim(&self, patience: Duration) -> usize {
        self.handle.core.trim(patience)
    }

    /// Has `observer` called before an allocation fails, without a lock held. It may
    /// free blocks; the allocation is then tried once more.
    pub fn on_shortage(&self, observer: impl Fn(&Shortage) + Send + Sync + 'static) {
        let core = &self.handle.core;
        if !core.is_forked() {
            core.observers.lock().push(Arc::new(observer));
        }
    }

    /// Has `observer` called when memory becomes short and when it no longer is
    /// ([`DeviceBuilder::watermarks`]), once each, on the thread that notices, without a
    /// lock held.
    pub fn on_pressure(&self, observer: impl Fn(&Pressure) + Send + Sync + 'static) {
        let core = &self.handle.core;
        if !core.is_forked() {
            core.pressure.add(observer);
        }
    }

    /// What [`DeviceBuilder::keep_idle`] does each time: gives back the slabs that were
    /// free since the last call. Returns bytes.
    pub fn collect_idle(&self) -> usize {
        self.handle.core.collect_idle(&mut DriverToken::at_entry())
    }

    /// Who holds what now. Takes the pool's lock.
    pub fn holdings(&self) -> Shortage {
        let core = &self.handle.core;
        if core.is_forked() {
            return Shortage::default();
        }
        core.shortage(0, None, &mut DriverToken::at_entry())
    }

    /// Counters; in a forked child zeros. Takes the pool's lock.
    pub fn stats(&self) -> DeviceStats {
        self.handle.core.stats(&mut DriverToken::at_entry())
    }

    /// Everything that is counted, by stream, size and function of the driver. Looks the
    /// whole pool over, under its lock and those of its streams: frees do not wait for it,
    /// allocations do, 10 to 30 ns per block. Not for hot paths.
    pub fn statistics(&self) -> Statistics {
        self.handle.core.snapshot().statistics
    }

    /// Every slab and every block with its state, at one moment; costs what
    /// [`statistics`](DevicePool::statistics) does. Its sums are the counters' own.
    pub fn snapshot(&self) -> Snapshot {
        self.handle.core.snapshot()
    }
}

impl DevicePool {
    pub(super) fn new(core: Arc<Core>) -> DevicePool {
        DevicePool { handle: Arc::new(Handle { core }) }
    }

    pub(super) fn core(&self) -> &Core {
        &self.handle.core
    }
}

impl PoolStream {
    /// The stream.
    pub fn stream(&self) -> Stream {
        self.state.name()
    }

    /// `cuStreamGetId`.
    pub fn id(&self) -> u64 {
        self.state.id
    }

    pub(super) fn state(&self) -> &StreamState {
        &self.state
    }

    pub(super) fn parts(&self) -> (&Core, &Arc<StreamState>) {
        (&self.handle.core, &self.state)
    }

    /// See [`DevicePool::alloc`].
    #[inline]
    pub fn alloc(&self, bytes: usize) -> Result<DeviceBuf, DeviceError> {
        self.alloc_with(bytes, Effort::Patient)
    }

    #[inline(always)]
    pub(super) fn alloc_with(&self, bytes: usize, effort: Effort) -> Result<DeviceBuf, DeviceError> {
        if !self.handle.core.watch.is_plain() {
            return self.alloc_watched(bytes, effort);
        }
        Ok(DeviceBuf::new(self.take(bytes, effort)?, bytes))
    }

    #[cold]
    #[inline(never)]
    fn alloc_watched(&self, bytes: usize, effort: Effort) -> Result<DeviceBuf, DeviceError> {
        let core = &self.handle.core;
        if core.is_forked() {
            return Err(DeviceError::Forked);
        }
        let block = self.take(bytes, effort)?;
        core.watch.allocated(core, &self.state, block, bytes);
        Ok(DeviceBuf::new(block, bytes))
    }

    #[inline(always)]
    fn take(&self, bytes: usize, effort: Effort) -> Result<BlockRef, DeviceError> {
        let core = &self.handle.core;
        let mut token = DriverToken::at_entry();
        let want = if bytes <= LARGEST_SMALL {
            if bytes == 0 {
                return Err(DeviceError::Empty);
            }
            Want::Small(classes::class_of(bytes))
        } else {
            match classes::rounded(bytes) {
                Some(bytes) => Want::Large(bytes),
                None => return Err(DeviceError::Overflow { bytes }),
            }
        };
        let mut local = self.state.local(&mut token);
        let (kept, slot) = match want {
            _ if local.is_closed() => (None, 0),
            Want::Small(class) => (local.pop_small(class), class as usize),
            Want::Large(bytes) => (local.pop_large(bytes), want.slot()),
        };
        match kept {
            Some(block) => {
                local.allocated(block, bytes, Arc::as_ptr(&self.state), slot);
                drop(local);
                Ok(block)
            }
            None => {
                drop(local);
                core.alloc_slow(&self.state, want, bytes, effort)
            }
        }
    }

    /// See [`DevicePool::alloc_batch`].
    pub fn alloc_batch(&self, sizes: &[usize]) -> Result<Vec<DeviceBuf>, DeviceError> {
        let core = &self.handle.core;
        if core.is_forked() {
            return Err(DeviceError::Forked);
        }
        let mut token = DriverToken::at_entry();
        let mut blocks: Vec<Option<BlockRef>> = vec![None; sizes.len()];
        if self.state.last_mark().is_some() {
            return Err(DeviceError::Retired);
        }
        let mut central = core.lock(&mut token);
        for kind in [Kind::Small, Kind::Large] {
            let rounded = |bytes: usize| classes::rounded(bytes).filter(|_| bytes > LARGEST_SMALL);
            let of_kind = sizes.iter().enumerate().filter_map(|(at, &bytes)| Some((at, rounded(bytes)?)));
            let (places, lengths): (Vec<usize>, Vec<usize>) =
                of_kind.filter(|&(_, bytes)| Kind::of(bytes) == kind).unzip();
            let Some((row, level)) = central.find_row(&self.state, kind, &lengths) else { continue };
            let mut local = self.state.local_within(&mut central);
            for (at, block) in places.into_iter().zip(row) {
                self.state.levels.hit(level);
                let slot = Want::Large(block.bytes.get()).slot();
                local.allocated(block, sizes[at], Arc::as_ptr(&self.state), slot);
                blocks[at] = Some(block);
            }
        }
        drop(central);
        // All of the rows before any block that may fail, whose failure drops them.
        let own = |(block, &bytes): (Option<BlockRef>, &usize)| {
            let block = block?;
            if !core.watch.is_plain() {
                core.watch.allocated(core, &self.state, block, bytes);
            }
            Some(DeviceBuf::new(block, bytes))
        };
        let blocks: Vec<Option<DeviceBuf>> = blocks.into_iter().zip(sizes).map(own).collect();
        let one_by_one =
            |(block, &bytes): (Option<DeviceBuf>, &usize)| block.map_or_else(|| self.alloc(bytes), Ok);
        blocks.into_iter().zip(sizes).map(one_by_one).collect()
    }

    /// A fence that passes when the stream has done what it has been given so far: for
    /// [`PoolBuf::defer_until`](crate::PoolBuf::defer_until) of a copy's source. Keeps
    /// the pool. Not while the stream is captured. It also passes when the context is lost, whose streams
    /// do nothing more: the driver is asked for that once a quarter of a second.
    pub fn fence(&self) -> Result<Fence, DriverError> {
        let core = &self.handle.core;
        if core.is_forked() {
            return Err(forked("fence", self.state.name()));
        }
        let mut token = DriverToken::at_entry();
        let marked = match self.state.in_use(&token) {
            Ok(in_use) => self.state.timeline.mark(&*core.driver, &in_use, &mut token)?,
            Err(Retired(last)) => Marked::At(last),
        };
        match marked {
            Marked::At(value) => Ok(Fence::poll(StreamFence { stream: self.clone(), value, vain: None })),
            Marked::Capturing => Err(DriverError {
                call: format!("fence of {:?}", self.state.name()),
                code: 900,
                text: "the stream is being captured: a fence would become part of the graph".to_owned(),
            }),
        }
    }

    /// The stream is about to be destroyed, or no longer used with the pool: marks the
    /// end of its work, after which everybody may have its memory. Blocks of it that
    /// are still in use may be dropped later. Other handles of it allocate and copy no
    /// more ([`DeviceError::Retired`]); the end of its work is their fence. What the pool keeps
    /// of it serves another stream when its work has passed and these are dropped, its blocks
    /// as well.
    pub fn retire(self) -> Result<(), DriverError> {
        let core = &self.handle.core;
        if core.is_forked() {
            return Err(forked("retire", self.state.name()));
        }
        let mut token = DriverToken::at_entry();
        let state = &self.state;
        let Ok(retiring) = state.retiring(&token) else { return Ok(()) };
        let last = match state.timeline.mark(&*core.driver, &retiring, &mut token)? {
            Marked::At(value) => value,
            Marked::Capturing => {
                core.driver.synchronize(&token)?;
                0
            }
        };
        retiring.end(last);
        state.close(&mut token);
        drop(retiring);
        core.steal(vec![state.clone()], &mut token);
        core.lock(&mut token).poll();
        Ok(())
    }
}

fn forked(call: &str, stream: Stream) -> DriverError {
    DriverError {
        call: format!("{call} of {stream:?}"),
        code: 3,
        text: "not called: this pool belongs to the parent process, whose context does not survive a fork"
            .to_owned(),
    }
}

struct StreamFence {
    stream: PoolStream,
    value: u64,
    /// The first call that it refused, since the driver was last asked whether the context is lost.
    vain: Option<Instant>,
}

impl Poll for StreamFence {
    fn passed(&mut self) -> bool {
        let PoolStream { handle, state } = &self.stream;
        if handle.core.is_forked() {
            return false;
        }
        let mut token = DriverToken::at_entry();
        // An event that cannot be asked has not passed as far as anybody knows.
        let _ = state.timeline.poll(&*handle.core.driver, &mut token);
        let passed = || state.timeline.passed() >= self.value;
        if passed() {
            return true;
        }
        if self.vain.get_or_insert_with(Instant::now).elapsed() < ASK_AFTER {
            return false;
        }
        self.vain = None;
        handle.core.pass_if_lost(&mut token);
        passed()
    }
}

impl std::fmt::Debug for PoolStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolStream").field("stream", &self.state.name()).field("id", &self.state.id).finish()
    }
}

impl std::fmt::Debug for DevicePool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevicePool")
            .field("driver", &self.handle.core.driver.name())
            .field("source", &self.handle.core.sources[0].name())
            .finish_non_exhaustive()
    }
}
