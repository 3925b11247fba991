//! A subscriber of `tracing` that panics on the reaper's thread: the reaper goes on, and
//! memory that the program has given up does not stay pinned.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]
#![cfg(not(loom))]

use pinyard_registry::{Access, Events, MemoryKey, Registry, backend::Custom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

static PANICS: AtomicU32 = AtomicU32::new(0);

/// As of a full disk.
struct FullDisk;

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
        if std::thread::current().name() == Some("pinyard-reaper") {
            PANICS.fetch_add(1, SeqCst);
            panic!("the disk is full")
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let ended = (0..10_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        done()
    });
    assert!(ended, "{what}");
}

#[test]
fn the_reaper_outlives_its_log() {
    tracing::subscriber::set_global_default(FullDisk).unwrap();
    let registered = Arc::new(AtomicUsize::new(0));
    let (more, less) = (registered.clone(), registered.clone());
    let backend = Custom::new(
        "counts",
        move |_, _| {
            more.fetch_add(1, SeqCst);
            Ok(MemoryKey::default())
        },
        move |_, _| {
            less.fetch_sub(1, SeqCst);
            Ok(())
        },
    );
    let registry = Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap();
    let buffer = vec![0u8; 1 << 16];
    let at = |page: usize| (buffer.as_ptr().wrapping_add(page << 12), 4096);
    for round in 1..=3 {
        drop(registry.get(at(4), Access::LOCAL_WRITE).unwrap());
        drop(registry.get(at(8), Access::LOCAL_WRITE).unwrap());
        registry.flush().unwrap();
        wait_for("the reaper logs what was flushed", || PANICS.load(SeqCst) >= round);
        // Nobody calls the registry from here on but its reaper.
        drop(registry.get(at(4), Access::LOCAL_WRITE).unwrap());
        let held = registered.load(SeqCst);
        pinyard_hooks::notify_unmapped(at(4).0, 4096);
        wait_for("the reaper deregisters", || registered.load(SeqCst) < held);
    }
}
