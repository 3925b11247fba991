//! What a subscriber of tracing hears of pools, at which level.
#![allow(clippy::unwrap_used)]
#![cfg(not(loom))]

use pinyard_allocator::Pool;
use pinyard_allocator::device::DevicePool;
use pinyard_driver::{Driver, DriverToken, Simulated};
use pinyard_registry::backend::Custom;
use pinyard_registry::{Events, MemoryKey, Registry};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing::Level;

/// What this thread is told while `work` runs.
fn told(work: impl FnOnce()) -> String {
    #[derive(Clone)]
    struct To(Arc<Mutex<Vec<u8>>>);
    impl std::io::Write for To {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let lines = To(Arc::default());
    let to = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(false);
    let subscriber = subscriber.with_writer(move || to.clone()).finish();
    tracing::subscriber::with_default(subscriber, work);
    let text = lines.0.lock().unwrap().clone();
    String::from_utf8(text).unwrap()
}

/// One line each of these levels and words, in this order.
fn assert_told(text: &str, wanted: &[(&str, &[&str])]) {
    let mut lines = text.lines();
    for (level, words) in wanted {
        let has = |line: &str| line.contains(level) && words.iter().all(|word| line.contains(word));
        assert!(lines.any(has), "{level} {words:?} is not told, or too early:\n{text}");
    }
}

#[test]
fn a_host_pool_tells_of_slabs_and_of_a_shortage() {
    let text = told(|| {
        let backend = Custom::new("none", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
        let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
        let pool = Pool::host(&registry).slab_bytes(2 << 20).limit(2 << 20).build().unwrap();
        let block = pool.alloc::<u8>(1 << 20).unwrap();
        assert!(pool.alloc::<u8>(2 << 20).is_err());
        drop(block);
        assert_eq!(pool.trim(), 2 << 20);
    });
    assert_told(
        &text,
        &[
            (" INFO ", &["a pool was made", "limit=2097152"]),
            ("DEBUG ", &["slab{", "a pool grew by a slab", "bytes=2097152"]),
            (" WARN ", &["no memory in a pool"]),
            ("DEBUG ", &["a pool gives a slab back"]),
        ],
    );
}

#[test]
fn a_device_pool_tells_of_slabs_and_of_a_shortage() {
    let text = told(|| {
        let gpu = Arc::new(Simulated::new(1 << 26));
        let pool = DevicePool::builder(gpu.clone()).limit(1 << 24).patience(Duration::ZERO);
        let pool = pool.ignore_environment().build().unwrap();
        let stream = pool.stream(gpu.stream_create(&DriverToken::at_entry()).unwrap()).unwrap();
        let block = stream.alloc(1 << 24).unwrap();
        assert!(stream.alloc(1 << 23).is_err());
        drop(block);
        assert!(pool.trim(Duration::from_secs(5)) > 0);
    });
    assert_told(
        &text,
        &[
            (" INFO ", &["a device pool was made", "limit=16777216"]),
            ("DEBUG ", &["slab{", "a device pool grew by a slab"]),
            (" WARN ", &["no memory in a device pool", "bytes=8388608"]),
            ("DEBUG ", &["a device pool gives a slab back"]),
        ],
    );
}
