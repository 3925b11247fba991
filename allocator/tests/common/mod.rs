//! A backend and a source that keep books, for what a pool must never do.
#![allow(unsafe_code, dead_code)] // each test file uses its part

use parking_lot::Mutex; // the standard one is invisible to ThreadSanitizer
use pinyard_allocator::{
    Builder, DriverToken, HostMemory, HostSource, Pool, Room, Segment, Source, SourceError,
};
use pinyard_registry::{
    Events, MemoryKey, PageRange, Registry,
    backend::{Backend, BackendError, Custom},
};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::with_exposed_provenance_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// What is mapped and registered, and who asked for it.
#[derive(Default)]
pub(crate) struct Books {
    pub(crate) registered: Mutex<BTreeMap<usize, PageRange>>,
    pub(crate) mapped: Mutex<BTreeMap<usize, Segment>>,
    pub(crate) registrations: AtomicU64,
    pub(crate) deregistrations: AtomicU64,
    pub(crate) maps: AtomicU64,
    pub(crate) unmaps: AtomicU64,
    /// Bytes that the source may have mapped.
    pub(crate) budget: AtomicUsize,
    /// What there is in all, as the source says, if it says anything, and what others have of it.
    pub(crate) total: AtomicUsize,
    pub(crate) others: AtomicUsize,
    /// Threads that called the source or the backend.
    pub(crate) callers: Mutex<Vec<ThreadId>>,
    /// What was done wrong.
    pub(crate) faults: Mutex<Vec<String>>,
}

impl Books {
    pub(crate) fn new() -> Arc<Books> {
        Arc::new(Books { budget: AtomicUsize::new(usize::MAX), ..Books::default() })
    }

    pub(crate) fn called(&self) {
        self.callers.lock().push(thread::current().id());
    }

    /// Bytes.
    pub(crate) fn mapped(&self) -> usize {
        self.mapped.lock().values().map(|segment| segment.bytes).sum()
    }

    pub(crate) fn fault(&self, text: String) {
        self.faults.lock().push(text);
    }

    /// Everything was given back, in the right order.
    pub(crate) fn assert_balanced(&self) {
        assert_eq!(*self.faults.lock(), Vec::<String>::new());
        assert!(self.mapped.lock().is_empty(), "segments left");
        assert!(self.registered.lock().is_empty(), "registrations left");
        assert_eq!(self.maps.load(Relaxed), self.unmaps.load(Relaxed));
        assert_eq!(self.registrations.load(Relaxed), self.deregistrations.load(Relaxed));
    }
}

/// A backend whose key is the address of the registration.
pub(crate) fn backend(books: &Arc<Books>) -> Custom {
    let (one, two) = (books.clone(), books.clone());
    Custom::new(
        "books",
        move |range, _| {
            one.called();
            let seen = one.registrations.fetch_add(1, SeqCst);
            one.registered.lock().insert(range.start, range);
            Ok(MemoryKey { lkey: range.start as u64, rkey: seen, handle: 0 })
        },
        move |key, range| {
            two.called();
            two.deregistrations.fetch_add(1, SeqCst);
            if two.registered.lock().remove(&range.start).is_none() || key.lkey != range.start as u64 {
                two.fault(format!("deregistered {range}, which is not registered"));
            }
            if !two.mapped.lock().contains_key(&range.start) {
                two.fault(format!("deregistered {range} after it was unmapped"));
            }
            Ok::<(), BackendError>(())
        },
    )
}

/// Memory of the heap, in the books: sanitizers and Miri know how far each segment goes.
pub(crate) struct BookedSource(pub(crate) Arc<Books>);

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, HostSource::new().granularity()).unwrap()
}

// SAFETY: the heap's memory is the caller's alone, zeroed and aligned, until it is given back.
unsafe impl Source for BookedSource {
    fn name(&self) -> &'static str {
        "booked"
    }
    fn granularity(&self) -> usize {
        HostSource::new().granularity()
    }
    fn room(&self, _: &DriverToken) -> Option<Room> {
        let total = self.0.total.load(SeqCst);
        let used = self.0.mapped() + self.0.others.load(SeqCst);
        (total > 0).then(|| Room { free: total.saturating_sub(used), total })
    }
    fn grow(&self, bytes: usize, _: &DriverToken) -> Result<Segment, SourceError> {
        self.0.called();
        if self.0.mapped() + bytes > self.0.budget.load(SeqCst) {
            return Err(SourceError {
                call: format!("grow({bytes})"),
                reason: "the budget of the test is used up".to_owned(),
                hint: String::new(),
            });
        }
        // SAFETY: no segment is empty.
        let start = unsafe { alloc_zeroed(layout(bytes)) }.expose_provenance();
        assert_ne!(start, 0, "the heap has no {bytes} bytes");
        let segment = Segment { start, bytes };
        self.0.maps.fetch_add(1, SeqCst);
        self.0.mapped.lock().insert(segment.start, segment);
        Ok(segment)
    }
    unsafe fn shrink(&self, segment: Segment, _: &DriverToken) -> Result<(), SourceError> {
        self.0.called();
        if self.0.registered.lock().contains_key(&segment.start) {
            self.0.fault(format!("{segment:?} unmapped while it was registered"));
        }
        // Before the entry goes, for which tests wait.
        self.0.unmaps.fetch_add(1, SeqCst);
        if self.0.mapped.lock().remove(&segment.start) != Some(segment) {
            self.0.fault(format!("{segment:?} unmapped, which is not mapped"));
            return Ok(());
        }
        // SAFETY: the books know it, so `grow` made it with this layout.
        unsafe { dealloc(with_exposed_provenance_mut(segment.start), layout(segment.bytes)) };
        Ok(())
    }
}

// SAFETY: the heap's memory.
unsafe impl HostMemory for BookedSource {}

/// The tests' mappings are the pool's own, which tells the registry itself.
pub(crate) fn registry(backend: impl Backend + 'static) -> Registry {
    Registry::builder().backend(backend).events(Events::NotifyOnly).build().unwrap()
}

/// A pool of 2 MiB slabs in the books, which waits for no fence and has nobody ask any.
pub(crate) fn pool(books: &Arc<Books>, limit: usize) -> Pool {
    builder(books, limit).fence_thread(false).patience(Duration::ZERO).build().unwrap()
}

/// The same, as it is by default.
pub(crate) fn builder(books: &Arc<Books>, limit: usize) -> Builder {
    Pool::from_source(&registry(backend(books)), BookedSource(books.clone())).slab_bytes(2 << 20).limit(limit)
}

/// Waits until `done`, for what another thread does soon.
pub(crate) fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what} did not happen");
        thread::sleep(Duration::from_millis(1));
    }
}
