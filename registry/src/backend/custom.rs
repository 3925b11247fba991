//! A backend made of two closures: for a transport that brings its own calls.

use super::{Backend, BackendError, Limits, MemoryKey, Unlocked};
use crate::access::Access;
use crate::range::PageRange;

type Register = dyn Fn(PageRange, Access) -> Result<MemoryKey, BackendError> + Send + Sync;
type Deregister = dyn Fn(MemoryKey, PageRange) -> Result<(), BackendError> + Send + Sync;

/// Registers and deregisters with the caller's closures. They may allocate,
/// block and change mappings; see [`Backend`].
pub struct Custom {
    name: &'static str,
    limits: Limits,
    register: Box<Register>,
    deregister: Box<Deregister>,
}

impl Custom {
    /// A backend without limits of its own.
    pub fn new(
        name: &'static str,
        register: impl Fn(PageRange, Access) -> Result<MemoryKey, BackendError> + Send + Sync + 'static,
        deregister: impl Fn(MemoryKey, PageRange) -> Result<(), BackendError> + Send + Sync + 'static,
    ) -> Custom {
        Custom { name, limits: Limits::NONE, register: Box::new(register), deregister: Box::new(deregister) }
    }

    /// With limits.
    pub fn with_limits(mut self, limits: Limits) -> Custom {
        self.limits = limits;
        self
    }
}

impl Backend for Custom {
    fn name(&self) -> &'static str {
        self.name
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn register(&self, range: PageRange, access: Access, _: &Unlocked) -> Result<MemoryKey, BackendError> {
        (self.register)(range, access)
    }
    fn deregister(&self, key: MemoryKey, range: PageRange, _: &Unlocked) -> Result<(), BackendError> {
        (self.deregister)(key, range)
    }
}
