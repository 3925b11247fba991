//! The device allocators that replay a trace: the pool over `cuMemAlloc` and over virtual
//! memory, `cuMemAllocAsync`, and PyTorch's.
#![allow(unsafe_code)] // blocks are freed, and a shim's functions are called

use pinyard_allocator::device::{DeviceBuf, DevicePool, PoolStream};
use pinyard_benches::turns::{fail, or_fail};
use pinyard_driver::{Cuda, DevicePtr, Driver, DriverToken, Event, Stream};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// Names the shim over PyTorch's allocator: ci/gpu/torch_shim.cpp.
pub(crate) const TORCH_SHIM: &str = "PINYARD_BENCH_TORCH";

pub(crate) fn token() -> DriverToken {
    DriverToken::at_entry()
}

/// An allocator.
pub(crate) trait Contender {
    fn name(&self) -> &'static str;
    /// Whether it reserves no more than it is told to.
    fn heeds_cap(&self) -> bool {
        true
    }
    /// A trace begins, of slabs of at most `cap` bytes.
    fn begin(&mut self, _cap: Option<usize>) {}
    /// A block; it is known by what this returns.
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<u64>;
    fn free(&mut self, block: u64, stream: u16);
    /// Stream `other` uses the block of `stream`'s as well, until it is freed.
    fn record_use(&mut self, block: u64, stream: u16, other: u16);
    /// Most bytes reserved since `begin`.
    fn peak_reserved(&mut self) -> Option<u64>;
    fn end(&mut self) {}
}

/// The pool.
pub(crate) struct Ours {
    name: &'static str,
    driver: Arc<dyn Driver>,
    raw: Vec<Stream>,
    virtual_memory: bool,
    pool: Option<(DevicePool, Vec<PoolStream>)>,
    blocks: Vec<Option<DeviceBuf>>,
    spare: Vec<u64>,
}

impl Ours {
    /// Over `cuMemAlloc`, or over virtual memory.
    pub(crate) fn new(driver: Arc<dyn Driver>, raw: Vec<Stream>, virtual_memory: bool) -> Ours {
        let name = if virtual_memory { "pinyard, virtual memory" } else { "pinyard" };
        Ours { name, driver, raw, virtual_memory, pool: None, blocks: Vec::new(), spare: Vec::new() }
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
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<u64> {
        let (pool, streams) = self.pool.as_mut()?;
        while streams.len() <= stream as usize {
            streams.push(pool.stream(self.raw[streams.len()]).ok()?);
        }
        let block = streams[stream as usize].alloc(bytes).ok()?;
        let at = self.spare.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() as u64 - 1
        });
        self.blocks[at as usize] = Some(block);
        Some(at)
    }
    #[inline]
    fn free(&mut self, block: u64, _: u16) {
        self.blocks[block as usize] = None;
        self.spare.push(block);
    }
    fn record_use(&mut self, block: u64, _: u16, other: u16) {
        let streams = self.pool.as_ref().map(|(_, streams)| streams);
        let other = streams.and_then(|streams| streams.get(other as usize));
        if let (Some(block), Some(other)) = (&mut self.blocks[block as usize], other) {
            block.record_use(other);
        }
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
}

impl Contender for Async {
    fn name(&self) -> &'static str {
        "cuMemAllocAsync"
    }
    fn heeds_cap(&self) -> bool {
        false
    }
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<u64> {
        self.cuda.alloc_async(bytes, self.raw[stream as usize], &token()).ok().map(|at| at.0)
    }
    fn free(&mut self, block: u64, stream: u16) {
        // SAFETY: allocated by `alloc`, used by nobody.
        let freed = unsafe { self.cuda.free_async(DevicePtr(block), self.raw[stream as usize], &token()) };
        or_fail(freed);
    }
    /// The free is in the stream's order: it waits for the other, by an event.
    fn record_use(&mut self, _: u64, stream: u16, other: u16) {
        let event = *self.event.get_or_insert_with(|| or_fail(self.cuda.event_create(&token())));
        or_fail(self.cuda.event_record(event, self.raw[other as usize], &token()));
        or_fail(self.cuda.stream_wait_event(self.raw[stream as usize], event, &token()));
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

/// PyTorch's allocator, through `ci/gpu/torch_shim.cpp`.
pub(crate) struct Torch {
    pub(crate) name: &'static str,
    raw: Vec<Stream>,
    pub(crate) alloc: unsafe extern "C" fn(usize, *mut c_void) -> *mut c_void,
    pub(crate) free: unsafe extern "C" fn(*mut c_void),
    record: unsafe extern "C" fn(*mut c_void, *mut c_void),
    begin: unsafe extern "C" fn(f64),
    peak: unsafe extern "C" fn() -> u64,
    total: usize,
}

impl Torch {
    /// The shim's functions; `total` are the device's bytes.
    pub(crate) fn load(path: &str, raw: Vec<Stream>, total: usize) -> Torch {
        let failed = |error: libloading::Error| -> ! { fail(&format!("{TORCH_SHIM}={path}: {error}")) };
        // SAFETY: the shim's constructors are PyTorch's own.
        let library = unsafe { libloading::Library::new(path) }.unwrap_or_else(|error| failed(error));
        // PyTorch is never unloaded.
        let library = Box::leak(Box::new(library));
        let expandable =
            std::env::var("PYTORCH_ALLOC_CONF").is_ok_and(|text| text.contains("expandable_segments:True"));
        // SAFETY: the shim has these functions with these types.
        unsafe {
            Torch {
                name: if expandable { "PyTorch, expandable segments" } else { "PyTorch" },
                raw,
                alloc: *library.get(b"shim_alloc").unwrap_or_else(|error| failed(error)),
                free: *library.get(b"shim_free").unwrap_or_else(|error| failed(error)),
                record: *library.get(b"shim_record_use").unwrap_or_else(|error| failed(error)),
                begin: *library.get(b"shim_begin").unwrap_or_else(|error| failed(error)),
                peak: *library.get(b"shim_peak_reserved").unwrap_or_else(|error| failed(error)),
                total,
            }
        }
    }
}

impl Contender for Torch {
    fn name(&self) -> &'static str {
        self.name
    }
    fn begin(&mut self, cap: Option<usize>) {
        // SAFETY: the shim's function.
        unsafe { (self.begin)(cap.map_or(1.0, |cap| cap as f64 / self.total as f64)) }
    }
    #[inline]
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<u64> {
        // SAFETY: the shim's function; the stream stands.
        let at = unsafe { (self.alloc)(bytes, self.raw[stream as usize].raw() as *mut c_void) };
        (!at.is_null()).then_some(at as u64)
    }
    #[inline]
    fn free(&mut self, block: u64, _: u16) {
        // SAFETY: from `alloc`.
        unsafe { (self.free)(block as *mut c_void) }
    }
    fn record_use(&mut self, block: u64, _: u16, other: u16) {
        // SAFETY: from `alloc`, not freed yet; the stream stands.
        unsafe { (self.record)(block as *mut c_void, self.raw[other as usize].raw() as *mut c_void) }
    }
    fn peak_reserved(&mut self) -> Option<u64> {
        // SAFETY: the shim's function.
        Some(unsafe { (self.peak)() })
    }
    fn end(&mut self) {
        self.begin(None);
    }
}
