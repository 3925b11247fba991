//! The device allocators that replay a trace: the pool over `cuMemAlloc` and over virtual
//! memory, and `cuMemAllocAsync`. Those of others are behind shims ([`super::shim`]).
#![allow(unsafe_code)] // blocks are freed

use pinyard_allocator::device::{DeviceBuf, DevicePool, PoolStream};
use pinyard_benches::turns::or_fail;
use pinyard_driver::{Counted, Cuda, DevicePtr, Driver, DriverToken, Event, Stream};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn token() -> DriverToken {
    DriverToken::at_entry()
}

/// A block of a contender's.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// What the contender knows it by.
    pub(crate) at: u64,
    /// The pool's own block, by value, as programs hold it.
    pub(crate) own: Own,
    pub(crate) bytes: usize,
    /// Its stream's number.
    pub(crate) stream: u16,
}

/// The bytes of a [`DeviceBuf`], for a handle that is copied; uninitialised for others' blocks.
/// Words that may be pointers: these stay valid.
#[derive(Clone, Copy)]
pub(crate) struct Own([MaybeUninit<*const ()>; 2]);

const _: () =
    assert!(size_of::<Own>() == size_of::<DeviceBuf>() && align_of::<Own>() == align_of::<DeviceBuf>());

impl Own {
    pub(crate) const NONE: Own = Own([MaybeUninit::uninit(); 2]);

    fn hold(block: DeviceBuf) -> Own {
        let mut own = Own::NONE;
        // SAFETY: as long and as aligned.
        unsafe { own.0.as_mut_ptr().cast::<DeviceBuf>().write(block) };
        own
    }

    /// # Safety
    /// Of [`hold`](Own::hold), and of all its values one is dropped.
    unsafe fn block(self) -> ManuallyDrop<DeviceBuf> {
        // SAFETY: the bytes that `hold` wrote.
        ManuallyDrop::new(unsafe { self.0.as_ptr().cast::<DeviceBuf>().read() })
    }
}

/// An allocator.
pub(crate) trait Contender {
    fn name(&self) -> &'static str;
    /// The streams that it serves at once, at most.
    fn streams(&self) -> usize {
        usize::MAX
    }
    /// Whether it reserves no more than it is told to.
    fn heeds_cap(&self) -> bool {
        true
    }
    /// A trace begins, of slabs of at most `cap` bytes.
    fn begin(&mut self, _cap: Option<usize>) {}
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<Block>;
    /// Where it lies, if it is host memory.
    fn address(&self, _: Block) -> *const u8 {
        std::ptr::null()
    }
    fn free(&mut self, block: Block);
    /// Stream `other` uses the block as well, until it is freed.
    fn record_use(&mut self, block: Block, other: u16);
    /// Its calls of the driver so far, as far as they can be counted here.
    fn driver_calls(&self) -> Option<u64> {
        None
    }
    /// Most bytes reserved since `begin`.
    fn peak_reserved(&mut self) -> Option<u64>;
    fn end(&mut self) {}
}

/// The pool.
pub(crate) struct Ours {
    name: &'static str,
    driver: Arc<Counted>,
    raw: Vec<Stream>,
    virtual_memory: bool,
    pool: Option<(DevicePool, Vec<PoolStream>)>,
}

impl Ours {
    /// Over `cuMemAlloc`, or over virtual memory.
    pub(crate) fn new(driver: Arc<dyn Driver>, raw: Vec<Stream>, virtual_memory: bool) -> Ours {
        let name = if virtual_memory { "pinyard, virtual memory" } else { "pinyard" };
        let driver = Arc::new(Counted::new(driver));
        Ours { name, driver, raw, virtual_memory, pool: None }
    }
}

impl Contender for Ours {
    fn name(&self) -> &'static str {
        self.name
    }
    fn begin(&mut self, cap: Option<usize>) {
        let builder = if self.virtual_memory {
            or_fail(DevicePool::virtual_memory(self.driver.clone(), false))
        } else {
            DevicePool::builder(self.driver.clone())
        };
        let pool = or_fail(builder.limit(cap.unwrap_or(usize::MAX)).build());
        self.pool = Some((pool, Vec::new()));
    }
    #[inline]
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<Block> {
        let (pool, streams) = self.pool.as_mut()?;
        while streams.len() <= stream as usize {
            streams.push(pool.stream(self.raw[streams.len()]).ok()?);
        }
        let block = streams[stream as usize].alloc(bytes).ok()?;
        Some(Block { at: 0, own: Own::hold(block), bytes, stream })
    }
    #[inline]
    fn free(&mut self, block: Block) {
        // SAFETY: of `alloc`, and a trace frees a block once.
        drop(ManuallyDrop::into_inner(unsafe { block.own.block() }));
    }
    fn record_use(&mut self, block: Block, other: u16) {
        let streams = self.pool.as_ref().map(|(_, streams)| streams);
        let other = streams.and_then(|streams| streams.get(other as usize));
        if let Some(other) = other {
            // SAFETY: of `alloc`, not freed yet, and not dropped here.
            unsafe { block.own.block() }.record_use(other);
        }
    }
    fn driver_calls(&self) -> Option<u64> {
        Some(self.driver.calls().sum())
    }
    fn peak_reserved(&mut self) -> Option<u64> {
        self.pool.as_ref().map(|(pool, _)| pool.stats().peak_reserved_bytes)
    }
    fn end(&mut self) {
        if let Some((pool, _)) = self.pool.take() {
            pool.trim(Duration::from_secs(5));
        }
    }
}

/// `cuMemAllocAsync`.
pub(crate) struct Async {
    pub(crate) cuda: Arc<Cuda>,
    pub(crate) raw: Vec<Stream>,
    pub(crate) event: Option<Event>,
    pub(crate) calls: u64,
}

impl Contender for Async {
    fn name(&self) -> &'static str {
        "cuMemAllocAsync"
    }
    fn heeds_cap(&self) -> bool {
        false
    }
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<Block> {
        self.calls += 1;
        let at = self.cuda.alloc_async(bytes, self.raw[stream as usize], &token()).ok()?;
        Some(Block { at: at.0, own: Own::NONE, bytes, stream })
    }
    fn free(&mut self, block: Block) {
        self.calls += 1;
        let stream = self.raw[block.stream as usize];
        // SAFETY: allocated by `alloc`, used by nobody.
        or_fail(unsafe { self.cuda.free_async(DevicePtr(block.at), stream, &token()) });
    }
    /// The free is in the stream's order: it waits for the other, by an event.
    fn record_use(&mut self, block: Block, other: u16) {
        self.calls += 2;
        let event = *self.event.get_or_insert_with(|| or_fail(self.cuda.event_create(&token())));
        or_fail(self.cuda.event_record(event, self.raw[other as usize], &token()));
        or_fail(self.cuda.stream_wait_event(self.raw[block.stream as usize], event, &token()));
    }
    fn driver_calls(&self) -> Option<u64> {
        Some(self.calls)
    }
    fn peak_reserved(&mut self) -> Option<u64> {
        None
    }
    fn end(&mut self) {
        // All that it keeps goes back, for the next trace to begin with nothing.
        for kept in [0, u64::MAX] {
            or_fail(self.cuda.synchronize(&token()));
            or_fail(self.cuda.keep_async(kept, &token()));
        }
    }
}
