//! Allocators of others behind plain C functions: the shims of `xtask/ci/gpu/`, whose `shim.h` has
//! the same types.
#![allow(unsafe_code)] // a shim's functions are called

use super::Device;
use super::contenders::{Block, Contender, Own};
use crate::tell;
use pinyard_benches::turns::fail;
use pinyard_cli::bench::Absence;
use pinyard_driver::Stream;
use std::ffi::{CStr, c_char, c_void};

/// Whose allocators, the variable that names their shim, and its source in `xtask/ci/gpu/`.
type Shim = (&'static str, &'static str, &'static str);

/// Those of device memory.
const SHIMS: [Shim; 3] = [
    ("PyTorch", "PINYARD_BENCH_TORCH", "torch_shim.cpp"),
    ("RMM", "PINYARD_BENCH_RMM", "rmm_shim.cpp"),
    ("CUB", "PINYARD_BENCH_CUB", "cub_shim.cpp"),
];

/// That of pinned host memory.
const PINNED_SHIM: Shim = ("PyTorch", "PINYARD_BENCH_TORCH_HOST", "torch_host_shim.cpp");

/// `Contender` of `shim.h`.
#[repr(C)]
struct Functions {
    name: *const c_char,
    version: *const c_char,
    streams: u64,
    alloc: unsafe extern "C" fn(usize, *mut c_void) -> *mut c_void,
    address: Option<unsafe extern "C" fn(*mut c_void) -> *mut c_void>,
    free: unsafe extern "C" fn(*mut c_void, usize, *mut c_void),
    record_use: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void),
    begin: unsafe extern "C" fn(u64, u64),
    peak_reserved: unsafe extern "C" fn() -> u64,
    end: unsafe extern "C" fn(),
}

/// An allocator of a shim.
#[derive(Clone, Copy)]
pub(crate) struct Foreign {
    functions: &'static Functions,
    total: u64,
}

// SAFETY: the names are constants, and each function may be called by any thread: one by one
// where `streams` is 1.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Foreign {
    pub(crate) fn name(&self) -> &'static str {
        text(self.functions.name)
    }
    /// The streams, and threads, that it serves at once.
    pub(crate) fn streams(&self) -> usize {
        match self.functions.streams {
            0 => usize::MAX,
            streams => streams as usize,
        }
    }
    /// A block for `stream`, or null.
    #[inline]
    pub(crate) fn alloc(&self, bytes: usize, stream: Stream) -> *mut c_void {
        // SAFETY: the stream stands.
        unsafe { (self.functions.alloc)(bytes, stream.raw() as *mut c_void) }
    }
    /// # Safety
    /// The block is of `alloc` with these arguments, and is freed once.
    #[inline]
    pub(crate) unsafe fn free(&self, block: *mut c_void, bytes: usize, stream: Stream) {
        // SAFETY: the caller's promise.
        unsafe { (self.functions.free)(block, bytes, stream.raw() as *mut c_void) }
    }
    /// Drops what it keeps; it reserves no more than `limit` bytes.
    pub(crate) fn begin(&self, limit: Option<usize>) {
        // SAFETY: nothing lives.
        unsafe { (self.functions.begin)(limit.map_or(u64::MAX, |limit| limit as u64), self.total) }
    }
    pub(crate) fn end(&self) {
        // SAFETY: nothing lives.
        unsafe { (self.functions.end)() }
    }
}

fn text(text: *const c_char) -> &'static str {
    // SAFETY: a constant of a library that is never unloaded.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

/// The allocators whose shims the variables name; they need a GPU.
pub(super) fn all(device: &Device) -> Vec<Foreign> {
    of(device, &SHIMS)
}

/// The same of pinned host memory.
pub(super) fn pinned(device: &Device) -> Vec<Foreign> {
    of(device, &[PINNED_SHIM])
}

fn of(device: &Device, shims: &[Shim]) -> Vec<Foreign> {
    let total = device.driver.device().total_bytes as u64;
    match &device.cuda {
        Some(_) => shims.iter().flat_map(|shim| load(shim, total)).collect(),
        None => Vec::new(),
    }
}

/// A shim, which is never unloaded: its threads and its destructors would not survive that.
pub(super) fn library(path: &str) -> Result<&'static libloading::Library, libloading::Error> {
    // SAFETY: a shim's constructors are those of the libraries that it is linked with.
    let library = unsafe { libloading::Library::new(path) }?;
    Ok(Box::leak(Box::new(library)))
}

fn load(&(peer, variable, source): &Shim, total: u64) -> Vec<Foreign> {
    let Ok(path) = std::env::var(variable) else {
        let remedy =
            format!("build xtask/ci/gpu/{source}, as xtask/ci/gpu/pools.sh does, and name it in {variable}");
        tell::peer(peer, Err(Absence::new(format!("{variable} is not set"), remedy)));
        return Vec::new();
    };
    let failed = |error: libloading::Error| -> ! { fail(&format!("{variable}={path}: {error}")) };
    let library = library(&path).unwrap_or_else(|error| failed(error));
    // SAFETY: the type of `shim.h`, which the shim includes.
    let contender: libloading::Symbol<'_, unsafe extern "C" fn(u64) -> *const Functions> =
        unsafe { library.get(b"shim_contender") }.unwrap_or_else(|error| failed(error));
    // SAFETY: null, or a constant of a library that is never unloaded.
    let functions = (0..).map_while(|number| unsafe { contender(number).as_ref() });
    let found: Vec<_> = functions.map(|functions| Foreign { functions, total }).collect();
    for foreign in &found {
        tell::peer(foreign.name(), Ok(text(foreign.functions.version).to_owned()));
    }
    found
}

/// It replays a trace on these streams.
pub(super) struct Shimmed {
    pub(super) foreign: Foreign,
    pub(super) raw: Vec<Stream>,
}

impl Contender for Shimmed {
    fn name(&self) -> &'static str {
        self.foreign.name()
    }
    fn streams(&self) -> usize {
        self.foreign.streams()
    }
    fn begin(&mut self, cap: Option<usize>) {
        self.foreign.begin(cap);
    }
    #[inline]
    fn alloc(&mut self, bytes: usize, stream: u16) -> Option<Block> {
        let at = self.foreign.alloc(bytes, self.raw[stream as usize]);
        (!at.is_null()).then_some(Block { at: at as u64, own: Own::NONE, bytes, stream })
    }
    fn address(&self, block: Block) -> *const u8 {
        let at = block.at as *mut c_void;
        // SAFETY: of `alloc`, not freed yet.
        self.foreign.functions.address.map_or(at, |address| unsafe { address(at) }).cast()
    }
    #[inline]
    fn free(&mut self, block: Block) {
        // SAFETY: of `alloc`, and a trace frees a block once.
        unsafe {
            self.foreign.free(block.at as *mut c_void, block.bytes, self.raw[block.stream as usize]);
        }
    }
    fn record_use(&mut self, block: Block, other: u16) {
        let raw = |stream: u16| self.raw[stream as usize].raw() as *mut c_void;
        // SAFETY: of `alloc`, not freed yet; the streams stand.
        unsafe {
            (self.foreign.functions.record_use)(block.at as *mut c_void, raw(block.stream), raw(other));
        }
    }
    fn peak_reserved(&mut self) -> Option<u64> {
        // SAFETY: no more than a figure.
        Some(unsafe { (self.foreign.functions.peak_reserved)() })
    }
    fn end(&mut self) {
        self.foreign.end();
    }
}
