//! Who pins the pages: one trait, one file per backend, one conformance suite
//! (`tests/conformance.rs`).

use crate::access::Access;
use crate::range::PageRange;
use std::marker::PhantomData;
use std::sync::Arc;

#[cfg(not(loom))]
mod cuda;
#[cfg(not(loom))]
mod custom;
#[cfg(not(loom))]
mod device_memory;
#[cfg(not(loom))]
mod faulty;
#[cfg(not(loom))]
mod io_uring;
#[cfg(all(test, not(loom)))]
mod layouts;
#[cfg(not(loom))]
mod libfabric;
#[cfg(not(loom))]
mod library;
#[cfg(not(loom))]
mod mlock;
mod open_error;
#[cfg(not(loom))]
mod ucx;
#[cfg(not(loom))]
mod verbs;

#[cfg(not(loom))]
pub use cuda::Cuda;
#[cfg(not(loom))]
pub use custom::Custom;
#[cfg(not(loom))]
pub use device_memory::{DeviceMemory, DmaBuf};
#[cfg(not(loom))]
pub use faulty::{Fault, Faulty, Work};
#[cfg(not(loom))]
pub use io_uring::IoUring;
#[cfg(not(loom))]
pub use libfabric::{Libfabric, LibfabricOptions};
#[cfg(not(loom))]
pub use mlock::Mlock;
pub use open_error::OpenError;
#[cfg(not(loom))]
pub use ucx::{Ucx, UcxOptions};
#[cfg(not(loom))]
pub use verbs::{OnDemandPaging, Verbs, VerbsOptions};

/// What a device needs to use a registration. The words' meaning is the
/// backend's; 0 where it has none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MemoryKey {
    /// Local key: verbs' lkey, io_uring's buffer index, libfabric's descriptor, UCX's
    /// memory handle.
    pub lkey: u64,
    /// Remote key: what a peer must name. UCX's is longer than a word: this is then
    /// where it lies, see [`Ucx::packed_rkey`].
    pub rkey: u64,
    /// The backend's own handle, such as an `ibv_mr` pointer.
    pub handle: u64,
}

/// The lkey alone: who knows an rkey may read or write the memory from elsewhere, so that it is
/// in no log by chance.
impl std::fmt::Debug for MemoryKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryKey").field("lkey", &self.lkey).finish_non_exhaustive()
    }
}

/// What a backend can register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest single registration, in bytes.
    pub max_region_bytes: usize,
    /// Registrations at a time.
    pub max_regions: usize,
}

impl Limits {
    /// No limit of the backend's own.
    pub const NONE: Limits = Limits { max_region_bytes: usize::MAX, max_regions: usize::MAX };
}

/// Proof that the calling thread holds no lock of the registry.
///
/// The registry's lock borrows it mutably for as long as it is held, so a call
/// of a backend under the lock does not compile. Only the registry makes one,
/// at its entry points.
#[derive(Debug)]
pub struct Unlocked(PhantomData<*const ()>);

impl Unlocked {
    /// For the registry's entry points, which hold no lock.
    pub(crate) fn at_entry() -> Unlocked {
        Unlocked(PhantomData)
    }
}

/// Pins pages and makes them known to a device.
///
/// Called from any thread, several at a time, never under a lock of the
/// registry's, never from a hook. May take long, allocate, and change mappings
/// of its own. Ranges of registrations that exist at the same time may overlap.
pub trait Backend: Send + Sync {
    /// A short name for messages.
    fn name(&self) -> &'static str;

    /// What it can register. Asked once, when the registry is made.
    fn limits(&self) -> Limits;

    /// Whether its pages count against RLIMIT_MEMLOCK, which the registry's
    /// default budget then heeds. Asked once.
    fn locks_memory(&self) -> bool {
        false
    }

    /// Pins `range` and returns its key. On an error nothing stays pinned.
    fn register(
        &self,
        range: PageRange,
        access: Access,
        unlocked: &Unlocked,
    ) -> Result<MemoryKey, BackendError>;

    /// Takes back one registration, once. The pages may be unmapped by now, or
    /// others may be mapped at the same addresses.
    fn deregister(&self, key: MemoryKey, range: PageRange, unlocked: &Unlocked) -> Result<(), BackendError>;
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn name(&self) -> &'static str {
        (**self).name()
    }
    fn limits(&self) -> Limits {
        (**self).limits()
    }
    fn locks_memory(&self) -> bool {
        (**self).locks_memory()
    }
    fn register(
        &self,
        range: PageRange,
        access: Access,
        unlocked: &Unlocked,
    ) -> Result<MemoryKey, BackendError> {
        (**self).register(range, access, unlocked)
    }
    fn deregister(&self, key: MemoryKey, range: PageRange, unlocked: &Unlocked) -> Result<(), BackendError> {
        (**self).deregister(key, range, unlocked)
    }
}

/// A failed call of a backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {}{hint}", reason(.errno))]
pub struct BackendError {
    /// The call with its arguments.
    pub call: String,
    /// Its errno; 0 where it has none.
    pub errno: i32,
    /// What the caller can do, starting with `; `, or nothing.
    pub hint: String,
}

impl BackendError {
    /// A call, with its arguments, that failed with `errno`.
    pub fn new(call: impl Into<String>, errno: i32) -> BackendError {
        BackendError { call: call.into(), errno, hint: String::new() }
    }

    /// Adds what the caller can do.
    pub fn with_hint(mut self, hint: impl std::fmt::Display) -> BackendError {
        self.hint = format!("; {hint}");
        self
    }

    /// Whether the device or the library has no such function, rather than refusing
    /// this call of it.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::EOPNOTSUPP | libc::ENOSYS)
    }

    /// Whether giving other registrations back may help.
    pub(crate) fn is_exhaustion(&self) -> bool {
        matches!(self.errno, libc::ENOMEM | libc::EAGAIN | libc::ENOSPC)
    }
}

fn reason(errno: &i32) -> String {
    if *errno == 0 {
        return "refused".to_owned();
    }
    let text = std::io::Error::from_raw_os_error(*errno).to_string();
    text.replace("os error", "errno")
}
