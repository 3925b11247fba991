//! A backend's function that allocates from a pool over its registry, while another thread adds a slab to
//! the pool and waits for that function.
#![allow(unsafe_code, clippy::unwrap_used, clippy::disallowed_methods)]
#![cfg(not(loom))]

use pinyard_allocator::device::DevicePool;
use pinyard_allocator::{HostMemory, HostSource, PinnedSource, Pool, Segment, Source, SourceError};
use pinyard_driver::{Driver, DriverToken, Simulated};
use pinyard_registry::backend::Custom;
use pinyard_registry::{Access, Budget, Events, MemoryKey, Registry};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

const MIB: usize = 1 << 20;

/// What the two threads of a test have done.
#[derive(Default)]
struct Steps {
    /// The function of the backend that takes back is called, and stays until the pool grows.
    in_deregister: AtomicBool,
    /// The pool's new slab is to be registered.
    grows: AtomicBool,
    allocated: AtomicBool,
}

fn until(done: &AtomicBool) {
    while !done.load(SeqCst) {
        thread::yield_now();
    }
}

type Alloc = Box<dyn Fn() + Send + Sync>;

/// A registry whose backend allocates by what is set, when it first deregisters.
fn registry(steps: &Arc<Steps>, alloc: &Arc<OnceLock<Alloc>>, budget: Budget) -> Registry {
    let next = AtomicU64::new(1);
    let (steps, alloc, first) = (steps.clone(), alloc.clone(), Mutex::new(true));
    let backend = Custom::new(
        "allocates",
        move |_, _| Ok(MemoryKey { lkey: next.fetch_add(1, SeqCst), ..MemoryKey::default() }),
        move |_, _| {
            if std::mem::take(&mut *first.lock().unwrap()) {
                steps.in_deregister.store(true, SeqCst);
                until(&steps.grows);
                // The other thread waits by now, or will.
                thread::sleep(std::time::Duration::from_millis(50));
                alloc.get().unwrap()();
                steps.allocated.store(true, SeqCst);
            }
            Ok(())
        },
    );
    Registry::builder().backend(backend).events(Events::NotifyOnly).budget(budget).build().unwrap()
}

/// Registers a page elsewhere, and has it deregistered.
fn deregister_one(registry: &Registry) {
    let page = vec![0u8; 4096];
    drop(registry.get(&page[..1], Access::LOCAL_READ).unwrap());
    registry.invalidate(&page[..1]).unwrap();
}

/// `grow` is called while the other thread is inside the backend.
fn both(steps: &Arc<Steps>, registry: &Registry, grow: impl FnOnce() + Send) {
    // SAFETY: alarm has no preconditions: a hang becomes a failure.
    unsafe { libc::alarm(60) };
    thread::scope(|scope| {
        scope.spawn(|| deregister_one(registry));
        until(&steps.in_deregister);
        grow();
    });
    assert!(steps.allocated.load(SeqCst));
    // SAFETY: as above.
    unsafe { libc::alarm(0) };
}

/// A source that says when a slab is wanted.
struct Tells<S>(S, Arc<Steps>);

// SAFETY: the other source's memory, which gets back what it gave.
unsafe impl<S: Source> Source for Tells<S> {
    fn name(&self) -> &'static str {
        "tells"
    }
    fn granularity(&self) -> usize {
        self.0.granularity()
    }
    fn grow(&self, bytes: usize, token: &DriverToken) -> Result<Segment, SourceError> {
        self.1.grows.store(true, SeqCst);
        self.0.grow(bytes, token)
    }
    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        // SAFETY: the caller's contract.
        unsafe { self.0.shrink(segment, token) }
    }
}

// SAFETY: the host's memory.
unsafe impl HostMemory for Tells<HostSource> {}

/// Room for all, or for the slab alone: the page that is being deregistered counts until it is.
fn budgets() -> [Budget; 2] {
    [usize::MAX.into(), (2 * MIB).into()]
}

#[test]
fn a_host_pool_makes_no_thread_wait_for_one_that_waits_for_it() {
    for budget in budgets() {
        let (steps, alloc) = (Arc::new(Steps::default()), Arc::new(OnceLock::<Alloc>::new()));
        let registry = registry(&steps, &alloc, budget);
        let source = Tells(HostSource::new(), steps.clone());
        let pool = Pool::from_source(&registry, source).slab_bytes(2 * MIB).build().unwrap();
        let own = pool.clone();
        alloc.set(Box::new(move || drop(own.alloc::<u8>(100)))).ok().unwrap();
        both(&steps, &registry, || drop(pool.alloc::<u8>(MIB).unwrap()));
    }
}

#[test]
fn a_device_pool_makes_no_thread_wait_for_one_that_waits_for_it() {
    for budget in budgets() {
        let (steps, alloc) = (Arc::new(Steps::default()), Arc::new(OnceLock::<Alloc>::new()));
        let registry = registry(&steps, &alloc, budget);
        let gpu = Simulated::new(64 * MIB).running();
        let source = Tells(PinnedSource::new(gpu.clone()), steps.clone());
        let pool = DevicePool::from_source(gpu.clone(), source).registry(&registry, Access::LOCAL_WRITE);
        let pool = pool.slab_bytes(2 * MIB).build().unwrap();
        let new = || gpu.stream_create(&DriverToken::at_entry()).unwrap();
        let (stream, other) = (pool.stream(new()).unwrap(), pool.stream(new()).unwrap());
        alloc.set(Box::new(move || drop(other.alloc(100)))).ok().unwrap();
        both(&steps, &registry, || drop(stream.alloc(MIB).unwrap()));
    }
}
