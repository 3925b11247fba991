//! A subscriber of `tracing` that panics, as one whose disk is full may: it is the program's
//! code, and a pool does not end of it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

mod counted;

use counted::{MIB, registry, wait_for};
use pinyard_allocator::Pool;
use pinyard_allocator::device::DevicePool;
use pinyard_driver::{Driver, DriverToken, Simulated};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Once};

static PANICS: AtomicU32 = AtomicU32::new(0);

/// Panics at every event and at each end of a span.
struct FullDisk;

fn full() {
    PANICS.fetch_add(1, SeqCst);
    panic!("the disk is full")
}

impl tracing::Subscriber for FullDisk {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("pinyard")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        full();
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {
        full();
    }
}

fn a_full_disk() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(FullDisk).unwrap());
}

#[test]
fn a_host_pool_outlives_its_log() {
    a_full_disk();
    let (registry, registered) = registry();
    let pool = Pool::host(&registry).slab_bytes(2 * MIB).build().unwrap();
    let [mut one, two, three] = [(); 3].map(|()| pool.alloc::<u8>(2 * MIB).unwrap());
    one.fill(7);
    drop(three);
    // This thread gives a slab back and logs it, then the pool's own does.
    drop(pool);
    assert_eq!(registered.load(SeqCst), 2);
    drop(two);
    wait_for("the pool's thread gives a slab back", || registered.load(SeqCst) == 1);
    assert!(one.iter().all(|&byte| byte == 7));
    drop(one);
    wait_for("the pool ends with its last block", || registered.load(SeqCst) == 0);
    assert!(PANICS.load(SeqCst) > 0, "the log was not written to");
}

#[test]
fn a_device_pool_outlives_its_log() {
    a_full_disk();
    let gpu = Arc::new(Simulated::new(1 << 30));
    let pool = DevicePool::builder(gpu.clone()).build().unwrap();
    let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap();
    let [one, two] = [(); 2].map(|()| stream.alloc(100 * MIB).unwrap());
    drop((pool, stream, two));
    wait_for("the pool's thread gives a slab back", || gpu.used_bytes() < 200 * MIB);
    assert!(gpu.used_bytes() >= one.len());
    drop(one);
    wait_for("the pool ends with its last block", || gpu.used_bytes() == 0);
    assert!(PANICS.load(SeqCst) > 0, "the log was not written to");
}
