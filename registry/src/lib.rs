//! A registration cache: memory stays registered with a device for as long as
//! its mapping stands, and not one `get` longer.
//!
//! ```text
//! hit     Registry::get -> Cache::hit -> Directory::find -> Counts::acquire -> Lease
//! miss    Registry::get -> miss::get -> Locked::begin -> Backend::register (no lock) -> Locked::publish
//! event   hooks mark the region in the map … Locked::tidy -> Locked::kill -> graveyard
//! retire  Locked::graves -> Backend::deregister (no lock) -> Locked::buried
//! reap    reaper: the two lines above, every 25 ms while anything is registered
//! ```
//!
//! What no other cache gives together: hits take no lock and go on while other
//! threads register; a mapping that changes *while* it is being registered is
//! noticed; an allocator may call into the hooks from anywhere.
//!
//! ```
//! use pinyard_registry::{Access, Registry, backend::Mlock};
//!
//! let registry = Registry::builder().backend(Mlock::new()).budget(64 << 20).build()?;
//! let buffer = vec![0u8; 10_000];
//! let lease = registry.get(&buffer, Access::LOCAL_WRITE)?; // registers whole pages
//! assert!(lease.len() >= buffer.len());
//! drop(lease); // the registration stays
//! registry.get(&buffer[100..200], Access::LOCAL_READ)?; // a hit
//! assert_eq!((registry.stats().misses, registry.stats().hits), (1, 1));
//! # Ok::<(), pinyard_registry::Error>(())
//! ```
// Printing panics where the text cannot be written, as on a full disk.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(loom, allow(dead_code))] // the models leave out what calls the kernel

mod access;
mod ahead;
pub mod backend;
mod budget;
mod cache;
mod clock;
mod completion;
mod directory;
mod error;
mod eviction;
mod explain;
mod range;
mod regions;
mod stats;
mod sync;
mod times;
mod traced;

#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod coarsen;
#[cfg(not(loom))]
mod diagnose;
#[cfg(not(loom))]
mod lease;
#[cfg(not(loom))]
mod limits;
#[cfg(not(loom))]
pub mod machine;
#[cfg(not(loom))]
pub mod maps;
#[cfg(not(loom))]
pub mod membarrier;
#[cfg(not(loom))]
mod miss;
#[cfg(not(loom))]
mod of_process;
#[cfg(not(loom))]
mod owner;
#[cfg(not(loom))]
mod reaper;
#[cfg(not(loom))]
mod registry;
#[cfg(not(loom))]
mod room;
#[cfg(not(loom))]
mod shards;
#[cfg(not(loom))]
mod told;
#[cfg(not(loom))]
mod trust;

#[cfg(loom)]
mod models;

pub use access::Access;
pub use backend::MemoryKey;
pub use budget::{Budget, Holding};
pub use error::{BuildError, Error, GetError, Holdings, Memlock, RangeError};
pub use explain::{Explanation, Retirement};
pub use range::{ADDRESS_LIMIT, AsRange, CACHED_LIMIT, PageRange};
pub use stats::Stats;
pub use times::Times;

#[cfg(not(loom))]
pub use builder::{Builder, Events};
#[cfg(not(loom))]
pub use coarsen::Coarsen;
#[cfg(not(loom))]
pub use lease::{Lease, OwnedLease};
#[cfg(not(loom))]
pub use miss::is_in_backend;
#[cfg(not(loom))]
pub use registry::Registry;
#[cfg(not(loom))]
pub use trust::{
    Entries, Mechanism, RawCaller, Serving, Uncached, VARIABLE as MECHANISM_VARIABLE, Watch, raw_callers,
    serving,
};
