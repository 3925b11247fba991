//! What a device pool keeps while memory is short, and for how long. On the simulated
//! device, whose memory others use as well, and with control groups made of files.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod device_common;
mod resting;

use device_common::{MIB, token, wait_for};
use parking_lot::Mutex;
use pinyard_allocator::device::{DeviceBuilder, DevicePool, PoolStream, Pressure};
use pinyard_allocator::{Bound, BuildError, HostLimits, PinnedSource};
use pinyard_driver::{Call, Driver as _, Simulated};
use resting::Thread;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

fn device() -> Arc<Simulated> {
    Simulated::new(1 << 30).running()
}

fn build(
    gpu: &Arc<Simulated>,
    builder: DeviceBuilder,
) -> (DevicePool, PoolStream, Arc<Mutex<Vec<Pressure>>>) {
    let pool = builder.build().unwrap();
    let stream = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let told: Arc<Mutex<Vec<Pressure>>> = Arc::default();
    let telling = told.clone();
    let observed = pool.clone();
    pool.on_pressure(move |pressure| {
        // No lock is held: the pool may be asked.
        assert_eq!(observed.stats().reserved_bytes, pressure.reserved as u64);
        telling.lock().push(*pressure);
    });
    (pool, stream, told)
}

#[test]
fn below_the_low_mark_the_pool_gives_back_and_above_the_high_one_all_is_as_before() {
    let gpu = device();
    let marks = |builder: DeviceBuilder| builder.watermarks(Bound::Fraction(0.1), Bound::Bytes(300 * MIB));
    let (pool, stream, told) = build(&gpu, marks(DevicePool::builder(gpu.clone())));
    let live = stream.alloc(100 * MIB).unwrap();
    drop((0..4).map(|_| stream.alloc(100 * MIB).unwrap()).collect::<Vec<_>>());
    gpu.synchronize(&token()).unwrap();
    assert!(told.lock().is_empty() && pool.stats().reserved_bytes >= 500 << 20);
    // Another process takes most of what is left; 24 MiB stay.
    let theirs = gpu.mem_alloc(500 * MIB - (2 << 20), &token()).unwrap();
    // It needs a slab: what is free goes back, up to the high mark, and that suffices.
    let large = stream.alloc(110 * MIB).unwrap();
    let left = gpu.mem_info(&token()).unwrap().free;
    assert!(left >= 290 * MIB && pool.stats().releases >= 4, "{left} of {:?}", pool.stats());
    assert!(told.lock().is_empty());
    // There is no more to give: the application is told.
    let small = stream.alloc(220 * MIB).unwrap();
    let short = told.lock()[0];
    assert!(short.short && short.room.free < 320 * MIB && short.reserved >= 210 * MIB, "{short:?}");
    assert_eq!(told.lock().len(), 1);
    assert_eq!(live.len(), 100 * MIB);
    drop((small, large));
    // SAFETY: nobody uses it.
    #[allow(unsafe_code)]
    unsafe { gpu.mem_free(theirs, &token()) }.unwrap();
    // The pool's thread notices.
    wait_for("the end of the shortage", || told.lock().len() == 2);
    assert!(!told.lock()[1].short);
    drop((live, stream, pool));
}

#[test]
fn bad_watermarks_are_refused() {
    let gpu = device();
    for (low, high) in [
        (Bound::Fraction(1.5), Bound::Fraction(1.5)),
        (Bound::Fraction(f64::NAN), Bound::Bytes(1)),
        (Bound::Bytes(2), Bound::Bytes(1)),
    ] {
        let built = DevicePool::builder(gpu.clone()).watermarks(low, high).build();
        assert!(matches!(built, Err(BuildError::Watermarks { .. })));
    }
}

#[test]
fn by_age_what_lay_idle_is_given_back_and_what_is_used_stays() {
    let gpu = device();
    let (pool, stream, _) = build(&gpu, DevicePool::builder(gpu.clone()));
    let other = pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let live = stream.alloc(40 * MIB).unwrap();
    drop(stream.alloc(50 * MIB).unwrap());
    drop(other.alloc(60 * MIB).unwrap());
    // The first look only notes what there is.
    assert_eq!(pool.collect_idle(), 0);
    let mut released = 0;
    // `other` goes on, `stream` is idle.
    wait_for("the idle stream's slab", || {
        drop(other.alloc(60 * MIB).unwrap());
        gpu.synchronize(&token()).unwrap();
        released += pool.collect_idle();
        released >= 50 * MIB
    });
    assert!(released < 60 * MIB, "{released}: a slab in use every time was given back");
    assert_eq!(live.len(), 40 * MIB);
    wait_for("the other's slab", || {
        released += pool.collect_idle();
        released >= 110 * MIB
    });
    assert_eq!(pool.stats().slabs, 1);
}

#[test]
fn the_pools_thread_collects_by_itself_and_sleeps_when_there_is_no_slab() {
    let gpu = device();
    let (pool, stream, _) = build(&gpu, DevicePool::builder(gpu.clone()).keep_idle(Duration::from_millis(5)));
    for round in 1..4 {
        drop(stream.alloc(50 * MIB).unwrap());
        wait_for("an empty pool", || pool.stats().reserved_bytes == 0);
        assert_eq!((pool.stats().growths, gpu.used_bytes()), (round, 0));
    }
    // Nothing to look after: no call of the driver however long it takes.
    wait_for("sleep", || Thread::all("pinyard-device").iter().all(Thread::sleeps_for_good));
}

/// Files of a control group, gone at the end.
struct Groups(PathBuf);

impl Groups {
    fn new() -> Groups {
        let root = std::env::temp_dir().join(format!("pinyard-pressure-{}", std::process::id()));
        fs::create_dir_all(root.join("cgroup/job")).unwrap();
        fs::write(root.join("cgroup").join("job/memory.max"), "max").unwrap();
        fs::create_dir_all(root.join("process")).unwrap();
        fs::write(root.join("process/cgroup"), "0::/job\n").unwrap();
        Groups(root)
    }

    fn set(&self, limit: usize, used: usize) {
        fs::write(self.0.join("cgroup/job/memory.high"), limit.to_string()).unwrap();
        fs::write(self.0.join("cgroup/job/memory.current"), used.to_string()).unwrap();
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_pool_of_pinned_memory_heeds_its_control_group() {
    let gpu = device();
    let groups = Groups::new();
    groups.set(1 << 30, 100 << 20);
    let limits = HostLimits::at(&groups.0.join("cgroup"), &groups.0.join("process"), None);
    let source = PinnedSource::new(gpu.clone()).threads(1).limits(limits);
    let builder = DevicePool::from_source(gpu.clone(), source).slab_bytes(4 * MIB);
    let (pool, stream, told) = build(&gpu, builder.watermarks(Bound::Fraction(0.1), Bound::Fraction(0.2)));
    drop((0..3).map(|_| stream.alloc(17 * MIB).unwrap()).collect::<Vec<_>>());
    gpu.synchronize(&token()).unwrap();
    assert!(told.lock().is_empty() && gpu.calls(Call::HostUnregister) == 0);
    groups.set(1 << 30, 1000 << 20);
    let held = stream.alloc(33 * MIB).unwrap();
    let short = told.lock()[0];
    assert!(short.short && short.given_back >= 51 << 20, "{short:?}");
    assert!(gpu.calls(Call::HostUnregister) >= 3);
    groups.set(1 << 30, 100 << 20);
    wait_for("the end of the shortage", || told.lock().len() == 2);
    drop((held, stream, pool));
}

/// What lives moves through the addresses, which are twice as many as the device's memory:
/// at their end a block's pieces would lie in two ranges.
#[test]
fn a_pool_at_its_limit_outlives_its_range_of_addresses() {
    let gpu = device();
    let stream = gpu.stream_create(&token()).unwrap();
    let builder = DevicePool::virtual_memory(gpu, false).unwrap();
    let pool = builder.limit(1 << 30).build().unwrap();
    let stream = pool.stream(stream).unwrap();
    let (mut live, mut bytes, mut step) = (Vec::new(), 0, 1_usize);
    for _ in 0..4000 {
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let want = (1 + (step >> 33) % 200) * MIB;
        while bytes + want > 940 * MIB {
            let block: pinyard_allocator::device::DeviceBuf = live.swap_remove((step >> 40) % live.len());
            bytes -= block.len();
        }
        // Fragments may refuse a block; no block may take for ever.
        if let Ok(block) = stream.alloc(want) {
            bytes += want;
            live.push(block);
        }
    }
    assert!(pool.stats().releases > 100, "{:?}", pool.stats());
}

/// Blocks that two streams used are brought home by the pool's thread while an allocation that
/// needs them all is on its way through the pool: past where it has looked, at times.
#[test]
fn what_comes_home_during_the_search_is_found() {
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).slab_bytes(8 * MIB).limit(16 * MIB).build().unwrap();
    let stream = || pool.stream(gpu.stream_create(&token()).unwrap()).unwrap();
    let (one, two) = (stream(), stream());
    for _ in 0..3000 {
        let blocks: Vec<_> = (0..4).map(|_| one.alloc(4 * MIB).unwrap()).collect();
        for (at, mut block) in blocks.into_iter().enumerate() {
            if at % 2 == 0 {
                block.record_use(&two);
            }
        }
        two.alloc(12 * MIB).unwrap();
    }
}
