//! Faults as a part: wraps any backend and misbehaves on purpose.

use super::{Backend, BackendError, Limits, MemoryKey, Unlocked};
use crate::access::Access;
use crate::range::PageRange;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What goes wrong in a call.
#[derive(Clone)]
pub enum Fault {
    /// The call fails with this errno; the wrapped backend is not asked.
    Fail(i32),
    /// The call sleeps first.
    Stall(Duration),
    /// The call runs this first: allocate, change a mapping, notify.
    Run(Work),
    /// The call runs this after the wrapped backend's, before it returns.
    RunAfter(Work),
}

/// Something to do inside a call, with the range of the registration.
pub type Work = std::sync::Arc<dyn Fn(PageRange) + Send + Sync>;

type Plan = dyn Fn(u64) -> Option<Fault> + Send + Sync;

/// A backend whose nth registration and deregistration (from 0) meet the fault
/// that a plan has for them.
pub struct Faulty<B> {
    inner: B,
    registering: Box<Plan>,
    deregistering: Box<Plan>,
    registered: AtomicU64,
    deregistered: AtomicU64,
}

impl<B: Backend> Faulty<B> {
    /// Wraps `inner`; nothing goes wrong yet.
    pub fn over(inner: B) -> Faulty<B> {
        Faulty {
            inner,
            registering: Box::new(|_| None),
            deregistering: Box::new(|_| None),
            registered: AtomicU64::new(0),
            deregistered: AtomicU64::new(0),
        }
    }

    /// The fault of the nth registration.
    pub fn registering(mut self, plan: impl Fn(u64) -> Option<Fault> + Send + Sync + 'static) -> Self {
        self.registering = Box::new(plan);
        self
    }

    /// The fault of the nth deregistration.
    pub fn deregistering(mut self, plan: impl Fn(u64) -> Option<Fault> + Send + Sync + 'static) -> Self {
        self.deregistering = Box::new(plan);
        self
    }
}

fn meet<R>(
    fault: Option<Fault>,
    call: &'static str,
    range: PageRange,
    wrapped: impl FnOnce() -> Result<R, BackendError>,
) -> Result<R, BackendError> {
    match &fault {
        Some(Fault::Fail(errno)) => {
            return Err(BackendError::new(format!("{call}({range}), by plan"), *errno));
        }
        Some(Fault::Stall(time)) => std::thread::sleep(*time),
        Some(Fault::Run(work)) => work(range),
        Some(Fault::RunAfter(_)) | None => {}
    }
    let answer = wrapped();
    if let Some(Fault::RunAfter(work)) = &fault {
        work(range);
    }
    answer
}

impl<B: Backend> Backend for Faulty<B> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn locks_memory(&self) -> bool {
        self.inner.locks_memory()
    }
    fn limits(&self) -> Limits {
        self.inner.limits()
    }
    fn register(
        &self,
        range: PageRange,
        access: Access,
        unlocked: &Unlocked,
    ) -> Result<MemoryKey, BackendError> {
        let fault = (self.registering)(self.registered.fetch_add(1, Relaxed));
        meet(fault, "register", range, || self.inner.register(range, access, unlocked))
    }
    fn deregister(&self, key: MemoryKey, range: PageRange, unlocked: &Unlocked) -> Result<(), BackendError> {
        let fault = (self.deregistering)(self.deregistered.fetch_add(1, Relaxed));
        meet(fault, "deregister", range, || self.inner.deregister(key, range, unlocked))
    }
}
