//! A registry whose registrations count, and a wait that ends by count.

use pinyard_registry::{Events, MemoryKey, Registry, backend::Custom};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

pub(crate) const MIB: usize = 1 << 20;

pub(crate) fn registry() -> (Registry, Arc<AtomicUsize>) {
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
    (Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap(), registered)
}

pub(crate) fn wait_for(what: &str, done: impl Fn() -> bool) {
    let ended = (0..10_000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        done()
    });
    assert!(ended, "{what}");
}
