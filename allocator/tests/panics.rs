//! The program's code that panics where a pool calls it: on the pool's thread, or as its last
//! handle goes. Each pool goes on, and keeps its memory as long as a block of it is in use.
//! The address sanitizer sees what these only show by memory that is never given back: a core
//! that is freed below its blocks.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod counted;

use counted::{MIB, registry, wait_for};
use pinyard_allocator::device::{DevicePool, PoolStream, Registrar};
use pinyard_allocator::{Fence, Poll, Pool, Segment, SourceError};
use pinyard_driver::{Driver, DriverToken, Simulated};
use pinyard_registry::MemoryKey;
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

fn gpu() -> (Arc<Simulated>, pinyard_driver::Stream) {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let stream = gpu.stream_create(&DriverToken::at_entry()).unwrap();
    (gpu, stream)
}

/// A payload whose own drop panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("the payload's drop")
    }
}

/// Panics when asked, with a [`Bomb`], and when dropped.
struct Grumpy(Arc<AtomicU32>);

impl Poll for Grumpy {
    fn passed(&mut self) -> bool {
        self.0.fetch_add(1, SeqCst);
        panic_any(Bomb)
    }
}

impl Drop for Grumpy {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        if !std::thread::panicking() {
            panic_any(Bomb)
        }
    }
}

/// Passes at once; panics when dropped.
struct LeavesBadly;

impl Poll for LeavesBadly {
    fn passed(&mut self) -> bool {
        true
    }
}

impl Drop for LeavesBadly {
    fn drop(&mut self) {
        panic!("dropped")
    }
}

/// Panics the first few times.
struct Bad {
    registers: AtomicU32,
    deregisters: Arc<AtomicU32>,
}

impl Registrar for Bad {
    fn register(&self, _: Segment, _: &DriverToken) -> Result<MemoryKey, SourceError> {
        if self.registers.fetch_add(1, SeqCst) < 1 {
            panic!("no key today")
        }
        Ok(MemoryKey::default())
    }

    fn deregister(&self, _: Segment, _: MemoryKey, _: &DriverToken) -> Result<(), SourceError> {
        if self.deregisters.fetch_add(1, SeqCst) < 3 {
            panic_any(Bomb)
        }
        Ok(())
    }
}

#[test]
fn a_registrar_that_panics_is_one_that_refuses() {
    let (gpu, stream) = gpu();
    let deregisters = Arc::new(AtomicU32::new(0));
    let registrar = Bad { registers: AtomicU32::new(0), deregisters: deregisters.clone() };
    let pool = DevicePool::builder(gpu.clone()).registrar(registrar).build().unwrap();
    let stream = pool.stream(stream).unwrap();
    let refused = stream.alloc(100 * MIB).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("Registrar::register") && text.contains("it panicked: no key today"), "{text}");
    assert_eq!((pool.stats().reserved_bytes, gpu.used_bytes()), (0, 0), "nothing stays");
    let kept = stream.alloc(100 * MIB).unwrap();
    let other = stream.alloc(100 * MIB).unwrap();
    drop((pool, stream, other));
    wait_for("the other slab goes when it is deregistered at last", || deregisters.load(SeqCst) >= 4);
    wait_for("one slab is left", || gpu.used_bytes() < 200 * MIB);
    assert!(gpu.used_bytes() >= kept.len(), "the memory of a block in use");
    drop(kept);
    wait_for("the pool ends with its last block", || gpu.used_bytes() == 0);
    assert_eq!(gpu.offences(), Vec::<String>::new());
}

#[test]
fn a_device_pool_outlives_a_fence_that_panics_when_asked_and_when_dropped() {
    let (gpu, stream) = gpu();
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    let stream = pool.stream(stream).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let kept = stream.alloc(100 * MIB).unwrap();
    stream.alloc(MIB).unwrap().defer_until(Fence::poll(Grumpy(calls.clone())));
    stream
        .alloc(MIB)
        .unwrap()
        .defer_until(Fence::poll(vec![Fence::poll(LeavesBadly), Fence::poll(LeavesBadly)]));
    wait_for("the fence is asked and dropped", || calls.load(SeqCst) == 2);
    works_on(&pool, &stream);
    // The kept block, and the one whose fence said nothing.
    wait_for("the block of fences that leave badly is free", || pool.stats().live_blocks == 2);
    drop((pool, stream));
    std::thread::sleep(Duration::from_millis(20));
    assert!(gpu.used_bytes() >= kept.len());
    drop(kept);
    // But for the slab of the block whose fence said nothing.
    wait_for("the kept block's slab goes", || gpu.used_bytes() < 100 * MIB);
}

/// Passes once the word is 1. `any_thread` and the drop panic.
struct Doubtful(Arc<AtomicU32>);

impl Poll for Doubtful {
    fn passed(&mut self) -> bool {
        self.0.load(SeqCst) == 1
    }
    fn any_thread(&self) -> bool {
        panic_any(Bomb)
    }
}

impl Drop for Doubtful {
    fn drop(&mut self) {
        panic_any(Bomb)
    }
}

#[test]
fn a_host_block_is_free_again_whatever_else_of_its_fence_panics() {
    let pool = Pool::host(&registry().0).build().unwrap();
    let told = Arc::new(AtomicU32::new(0));
    let one = || Fence::poll(Doubtful(told.clone()));
    for fence in [one(), Fence::poll(vec![one(), one()]), Fence::poll(vec![Fence::poll(vec![one()]), one()])]
    {
        pool.alloc::<u8>(4096).unwrap().defer_until(fence);
    }
    assert_eq!((pool.stats().live_blocks, pool.stats().deferred_blocks), (3, 3));
    pool.poll_fences();
    assert_eq!(pool.stats().deferred_blocks, 3);
    told.store(1, SeqCst);
    wait_for("all have passed", || {
        pool.poll_fences();
        pool.stats().deferred_blocks == 0
    });
    assert_eq!(pool.stats().live_blocks, 0);
}

/// Its thread serves a request, and marks a stream.
fn works_on(pool: &DevicePool, stream: &PoolStream) {
    let before = pool.stats().live_blocks;
    let answered = Arc::new(AtomicU32::new(0));
    let tells = answered.clone();
    stream.alloc_then(MIB, move |block| _ = tells.fetch_add(1 + u32::from(block.is_err()), SeqCst));
    wait_for("a request is served", || answered.load(SeqCst) == 1);
    wait_for("the request's block is free", || pool.stats().live_blocks <= before);
}

#[test]
fn a_device_pool_outlives_a_callback_whose_payload_panics() {
    let (gpu, stream) = gpu();
    let pool = DevicePool::builder(gpu.clone()).limit(200 * MIB).build().unwrap();
    let stream = pool.stream(stream).unwrap();
    let kept = stream.alloc(100 * MIB).unwrap();
    let other = stream.alloc(90 * MIB).unwrap();
    let called = Arc::new(AtomicU32::new(0));
    let tells = called.clone();
    stream.alloc_then(90 * MIB, move |_| {
        tells.fetch_add(1, SeqCst);
        panic_any(Bomb)
    });
    drop(other);
    wait_for("the callback", || called.load(SeqCst) == 1);
    works_on(&pool, &stream);
    drop((pool, stream));
    std::thread::sleep(Duration::from_millis(20));
    assert!(gpu.used_bytes() >= kept.len());
    drop(kept);
    wait_for("the pool ends with its last block", || gpu.used_bytes() == 0);
}

#[test]
fn a_device_pool_outlives_sources_of_copies_whose_drops_panic() {
    let (gpu, stream) = gpu();
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    let stream = pool.stream(stream).unwrap();
    let mut kept = stream.alloc(MIB).unwrap();
    // A PoolBuf's pool ends with it: the leak report is the program's code, and panics.
    for _ in 0..3 {
        let (registry, _) = registry();
        let source = Pool::host(&registry).on_leak(|_| panic_any(Bomb)).build().unwrap();
        let block = source.alloc::<u8>(1000).unwrap();
        stream.copy_to_device(block, &mut kept, 0).unwrap();
        drop(source);
    }
    gpu.advance(1_000_000_000);
    works_on(&pool, &stream);
    drop((pool, stream, kept));
    wait_for("the pool ends with its last block", || gpu.used_bytes() == 0);
}

#[test]
fn a_host_pool_outlives_fences_that_panic() {
    let (registry, registered) = registry();
    let pool = Pool::host(&registry).slab_bytes(2 * MIB).build().unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    // Whole pages: this thread gets no magazines, which would keep the core.
    let mut kept = pool.alloc::<u8>(MIB).unwrap();
    kept.fill(7);
    pool.alloc::<u8>(MIB).unwrap().defer_until(Fence::poll(Grumpy(calls.clone())));
    wait_for("the fence is asked and dropped", || calls.load(SeqCst) == 2);
    wait_for("nothing is deferred any more", || pool.stats().deferred_blocks == 0);
    // One that passes and then panics has passed.
    pool.alloc::<u8>(MIB).unwrap().defer_until(Fence::poll(LeavesBadly));
    wait_for("its block is free", || pool.stats().deferred_blocks == 0 && pool.stats().live_blocks == 2);
    // On a thread of the program's as well, which is told by the log alone.
    pool.alloc::<u8>(MIB).unwrap().defer_until(Fence::poll(Grumpy(calls.clone())));
    pool.poll_fences();
    wait_for("the other fence", || calls.load(SeqCst) == 4);
    drop(pool);
    std::thread::sleep(Duration::from_millis(20));
    assert!(registered.load(SeqCst) > 0 && kept.iter().all(|&byte| byte == 7));
    drop(kept);
}

/// The last handle's drop tells of the leak, and then leaves the pool to its thread.
#[test]
fn a_host_pool_outlives_a_report_of_leaks_whose_payload_panics() {
    let (registry, registered) = registry();
    let pool = Pool::host(&registry).slab_bytes(2 * MIB).fence_thread(false);
    let pool = pool.on_leak(|_| panic_any(Bomb)).build().unwrap();
    let mut kept = pool.alloc::<u8>(MIB).unwrap();
    kept.fill(7);
    drop(pool);
    std::thread::sleep(Duration::from_millis(20));
    assert!(registered.load(SeqCst) == 1 && kept.iter().all(|&byte| byte == 7));
    drop(kept);
    wait_for("the pool ends with its last block", || registered.load(SeqCst) == 0);
}
