//! A backend's functions are the program's code: they may call the registry, and wait for other threads.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

mod common;

use common::*;
use pinyard_registry::backend::{Backend, BackendError, Custom, Limits, Unlocked};
use pinyard_registry::{Access, MemoryKey, PageRange, Registry};
use std::sync::{Arc, OnceLock, mpsc};

/// A backend whose name asks the registry: `Backend::name` is the program's code.
struct Asks(Arc<OnceLock<Registry>>);

impl Backend for Asks {
    fn name(&self) -> &'static str {
        if let Some(registry) = self.0.get() {
            let _ = registry.stats();
        }
        "asks"
    }
    fn limits(&self) -> Limits {
        Limits { max_region_bytes: 4 * PAGE, max_regions: 1 }
    }
    fn register(&self, _: PageRange, _: Access, _: &Unlocked) -> Result<MemoryKey, BackendError> {
        Ok(MemoryKey::default())
    }
    fn deregister(&self, _: MemoryKey, _: PageRange, _: &Unlocked) -> Result<(), BackendError> {
        Ok(())
    }
}

#[test]
fn a_backends_name_is_asked_without_a_lock() {
    or_be_killed();
    let place = Arc::new(OnceLock::new());
    let registry = Registry::builder().backend(Asks(place.clone())).budget(2 * PAGE).build().unwrap();
    place.set(registry.clone()).ok().unwrap();
    let (long, short) = (Pages::new(5), Pages::new(2));
    let refused = |pages| registry.get(pages, Access::LOCAL_READ).map(drop).unwrap_err().to_string();
    assert!(refused(long.part(0, 5)).contains("asks"));
    let _held = registry.get(short.part(0, 1), Access::LOCAL_READ).unwrap();
    let many = refused(long.part(0, 1));
    assert!(many.contains("asks"), "{many}");
    // Of the other registry of the same budget.
    let other = Custom::new("other", |_, _| Ok(MemoryKey::default()), |_, _| Ok(()));
    let other = Registry::builder().backend(other).budget(registry.budget().clone()).build().unwrap();
    let budget = other.get(long.part(0, 2), Access::LOCAL_READ).map(drop).unwrap_err().to_string();
    assert!(budget.contains("asks"), "{budget}");
}

/// The function that takes a page back waits for another thread, which invalidates elsewhere.
#[test]
fn an_invalidation_waits_for_no_other_range() {
    or_be_killed();
    let (begun, begins) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel::<()>();
    let goes_on = std::sync::Mutex::new(goes_on);
    let takes_back = move |_, _| {
        begun.send(()).unwrap();
        goes_on.lock().unwrap().recv().unwrap();
        Ok(())
    };
    let backend = Custom::new("waits", |_, _| Ok(MemoryKey::default()), takes_back);
    let registry = Registry::builder().backend(backend).build().unwrap();
    let pages = Pages::new(3);
    drop(registry.get(pages.part(0, 1), Access::LOCAL_READ).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| registry.invalidate(pages.part(0, 1)).unwrap());
        begins.recv().unwrap();
        registry.invalidate(pages.part(2, 1)).unwrap();
        go_on.send(()).unwrap();
    });
}
