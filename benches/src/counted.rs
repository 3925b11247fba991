//! What callgrind counts (xtask/ci/instructions.sh, `pinyard bench instructions`): each `count_`
//! function runs its path [`TIMES`] times between two named entries. `--list` names them.
#![allow(unsafe_code)] // symbols that callgrind can name

mod counted_traces;

use core::ffi::{c_int, c_void};
use pinyard as _; // whose library has the functions of the C interface
use pinyard_allocator::device::{DevicePool, PoolStream};
use pinyard_driver::{Driver, DriverToken, Simulated};
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, MemoryKey, Registry};
use std::hint::black_box;
use std::sync::Arc;

/// The counted functions.
const PATHS: [&str; 10] = [
    "count_hit",
    "count_c_hit",
    "count_lookup",
    "count_event_elsewhere",
    "count_event_registered",
    "count_insert",
    "count_miss_and_evict",
    "count_stats",
    "count_pool_small",
    "count_pool_large",
];

/// Repetitions inside one counted function.
const TIMES: usize = 1000;
const PAGE: usize = 4096;

/// A hit: get and release.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_hit(registry: &Registry, at: *const u8) {
    for _ in 0..TIMES {
        drop(black_box(registry.get((at, PAGE), Access::LOCAL_READ)));
    }
}

unsafe extern "C" {
    fn pny_registry_create(config: *const [u64; 11], registry: *mut *mut c_void) -> c_int;
    fn pny_get(
        registry: *mut c_void,
        at: *const u8,
        length: usize,
        access: u32,
        lease: *mut [u64; 6],
    ) -> c_int;
    fn pny_put(lease: *mut [u64; 6]) -> c_int;
}

/// The same through the C interface.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_c_hit(registry: *mut c_void, at: *const u8) {
    let mut lease = [0; 6];
    for _ in 0..TIMES {
        // SAFETY: a live registry and a lease of our own; the address is only compared.
        unsafe {
            black_box(pny_get(registry, at, PAGE, 0, &raw mut lease));
            black_box(pny_put(&raw mut lease));
        }
    }
}

/// A registry made in C, over functions that do nothing.
fn c_registry() -> *mut c_void {
    extern "C" fn nothing() -> c_int {
        0
    }
    let function = nothing as extern "C" fn() -> c_int as usize as u64;
    // pny_backend_ops and pny_registry_config, in words of the header.
    let ops: [u64; 8] = [64, 0, function, function, 0, 0, 0, 0];
    let notify_only = 8 << 32;
    let config = [88, notify_only, 0, 0, (&raw const ops).addr() as u64, 0, 0, 0, 0, 0, 0];
    let mut registry = std::ptr::null_mut();
    // SAFETY: both structures are whole; the functions read none of their arguments.
    let status = unsafe { pny_registry_create(&raw const config, &raw mut registry) };
    if status != 0 {
        eprintln!("counted: pny_registry_create: status {status}");
        std::process::exit(1)
    }
    registry
}

/// A lookup without a reference.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_lookup(registry: &Registry, at: *const u8) {
    for _ in 0..TIMES {
        black_box(registry.lookup((at, PAGE), Access::LOCAL_READ));
    }
}

/// An event where nothing is registered.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_event_elsewhere(at: *const u8) {
    for _ in 0..TIMES {
        pinyard_hooks::notify_unmapped(black_box(at), PAGE);
    }
}

/// An event where something is registered: each marks a region of its own, so that
/// it does not matter when the reaper comes.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_event_registered(at: *const u8) {
    for region in 0..TIMES {
        pinyard_hooks::notify_unmapped(black_box(at.wrapping_add(region * STRIDE)), PAGE);
    }
}

/// A miss: a registration of four pages is begun, made and published.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_insert(registry: &Registry, at: *const u8) {
    for region in 0..TIMES {
        drop(black_box(registry.get((at.wrapping_add(region * STRIDE), REGION), Access::LOCAL_READ)));
    }
}

/// A miss that must take out another region first.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_miss_and_evict(registry: &Registry, at: *const u8) {
    // Not the same code as above: the linker would make one function of both.
    for region in (0..TIMES).rev() {
        drop(black_box(registry.get((at.wrapping_add(region * STRIDE), REGION), Access::LOCAL_READ)));
    }
}

/// The counters of a cache that is full of regions.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_stats(registry: &Registry) {
    for _ in 0..TIMES {
        black_box(registry.stats());
    }
}

/// A small block of a device pool, by the stream that freed it: allocated and freed.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_pool_small(stream: &PoolStream) {
    for _ in 0..TIMES {
        drop(black_box(stream.alloc(black_box(4096))));
    }
}

/// The same of a large block.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_pool_large(stream: &PoolStream) {
    for _ in 0..TIMES {
        drop(black_box(stream.alloc(black_box(16 << 20))));
    }
}

/// Four pages every eight, as in `versus-ucx`.
const REGION: usize = 4 * PAGE;
const STRIDE: usize = 8 * PAGE;

fn registry(most: usize) -> Registry {
    let backend = Custom::new("dummy", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    // callgrind does not let text be patched; the events are announced.
    let events = pinyard_registry::Events::NotifyOnly;
    Registry::builder().backend(backend).events(events).max_regions(most).build().unwrap_or_else(|error| {
        eprintln!("counted: {error}");
        std::process::exit(1)
    })
}

/// A device pool's stream that keeps a block of each kind.
fn pool_stream() -> Result<(DevicePool, PoolStream), Box<dyn std::error::Error>> {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).build()?;
    let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry())?)?;
    drop((stream.alloc(4096)?, stream.alloc(16 << 20)?));
    Ok((pool, stream))
}

fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return PATHS.iter().chain(counted_traces::PATHS).for_each(|path| println!("{path}"));
    }
    let base = 0x10_0000_0000 as *const u8;
    let cached = registry(10 * TIMES);
    drop(cached.get((base, REGION), Access::LOCAL_READ));
    count_hit(&cached, base);
    count_lookup(&cached, base);
    count_event_elsewhere(base.wrapping_add(1 << 30));
    for region in 0..TIMES {
        drop(cached.get((base.wrapping_add(region * STRIDE), REGION), Access::LOCAL_READ));
    }
    count_event_registered(base);
    // Later: every registry that was ever made adds to the cost of an event.
    count_insert(&registry(10 * TIMES), base);
    let full = registry(100);
    for region in TIMES..TIMES + 200 {
        drop(full.get((base.wrapping_add(region * STRIDE), REGION), Access::LOCAL_READ));
    }
    count_miss_and_evict(&full, base);
    let many = registry(10 * TIMES);
    for region in 0..10 * TIMES {
        drop(many.get((base.wrapping_add(region * STRIDE), REGION), Access::LOCAL_READ));
    }
    count_stats(&many);
    let in_c = c_registry();
    let mut lease = [0; 6];
    // SAFETY: as in `count_c_hit`: registered, and a ticket kept.
    unsafe {
        pny_get(in_c, base, REGION, 0, &raw mut lease);
        pny_put(&raw mut lease);
    }
    count_c_hit(in_c, base);
    let (_pool, stream) = pool_stream().unwrap_or_else(|error| {
        eprintln!("counted: {error}");
        std::process::exit(1)
    });
    count_pool_small(&stream);
    count_pool_large(&stream);
    counted_traces::run();
}
