//! What the rounds need from a registration cache.

use crate::wire::Wire;
use pinyard_registry::backend::{BackendError, IoUring};
use pinyard_registry::{Access, Events, Registry};
use std::fmt;
use std::ops::DerefMut;

pub use pinyard_cli::demo::Counts;

/// Why a rank cannot go on, and what the user can do about it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The failed call with its arguments and errno, or the finding.
    pub why: String,
    /// What helps; empty where nothing particular does.
    pub remedy: String,
    /// The rank found out before the first round: nothing is wrong with the cache.
    pub refused: bool,
}

impl Failure {
    /// A failure without a particular remedy.
    pub fn new(why: impl Into<String>) -> Failure {
        Failure { why: why.into(), remedy: String::new(), refused: false }
    }

    /// The machine or the command line does not allow the run.
    pub fn refusal(why: impl Into<String>, remedy: impl Into<String>) -> Failure {
        Failure { why: why.into(), remedy: remedy.into(), refused: true }
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Failure {
        let whole = error.to_string();
        let why = whole.strip_suffix(&error.hint).unwrap_or(&whole);
        Failure::refusal(why, error.hint.trim_start_matches("; "))
    }
}

/// What a rank has pinned at most.
const PINNED: usize = 2 << 20;

/// Whether this machine lets a rank pin what it needs through io_uring, in
/// pinyard's own words if not.
pub fn probe() -> Result<(), Failure> {
    let registry = Registry::builder()
        .backend(IoUring::new(1)?)
        .events(Events::NotifyOnly) // the buffer is given back before anything else happens
        .build()
        .map_err(|error| Failure::refusal(error.to_string(), ""))?;
    let buffer = vec![0u8; PINNED];
    let lease = registry.get(&buffer, Access::LOCAL_READ);
    lease.map(drop).map_err(|error| Failure::refusal(error.to_string(), ""))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// A way to have a buffer's pages registered when they are to be sent.
pub trait Cache {
    /// Where a round's bytes live.
    type Buffer: DerefMut<Target = [u8]>;

    /// A fresh buffer of `len` bytes, their contents unspecified.
    fn allocate(&self, len: usize) -> Result<Self::Buffer, Failure>;

    /// Gets the registration of the whole buffer and moves its bytes to `wire`
    /// through the registered pages.
    fn send(&self, buffer: &Self::Buffer, wire: &Wire) -> Result<(), Failure>;

    /// Gets the registration again and gives it back: what is timed.
    fn hit(&self, buffer: &Self::Buffer) -> Result<(), Failure>;

    /// The cache's own counters.
    fn counts(&self) -> Counts;
}
