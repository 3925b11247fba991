//! Our registry, judged by what the device reads.

use crate::Failure;
use crate::changes::{PAGE, Pages};
use pinyard_registry::backend::IoUring;
use pinyard_registry::{Access, Registry};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For a repair of the entries, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Ours {
    registry: Registry,
    ring: Arc<IoUring>,
}

impl Ours {
    pub(crate) fn start() -> Result<Ours, Failure> {
        let ring = Arc::new(IoUring::new(64).map_err(|error| error.to_string())?);
        let registry =
            Registry::builder().backend(ring.clone()).build().map_err(|error| error.to_string())?;
        Ok(Ours { registry, ring })
    }

    /// The device finds `byte` where the pages start.
    pub(crate) fn expect(&self, pages: &Pages, byte: u8, when: &str) -> Result<(), Failure> {
        let wanted = (pages.at as *const u8, pages.len);
        let lease = self.registry.get(wanted, Access::LOCAL_READ).map_err(|error| error.to_string())?;
        let found = self.through(&lease, pages.at)?;
        if found == byte { Ok(()) } else { Err(format!("ours is stale: {when}: found {found}, not {byte}")) }
    }

    /// Every function's calls are seen, and what is registered is found again: a
    /// cache that refuses to cache is right about every change, too.
    pub(crate) fn expect_hits(&self, pages: &Pages) -> Result<(), Failure> {
        // The reaper may be repairing entries that the neighbour has just patched: until
        // it is done, which nobody waits for, nothing is cached.
        let began = Instant::now();
        while !pinyard_hooks::verify() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let before = self.registry.stats();
        self.expect(pages, 2, "a second get")?;
        self.expect(pages, 2, "a third get")?;
        let after = self.registry.stats();
        if !pinyard_hooks::verify() {
            let (sealed, untouched) = (pinyard_hooks::is_sealed(), pinyard_hooks::untouched());
            let state = format!("text sealed: {sealed}, entries untouched: {untouched}");
            return Err(format!("calls escape ours ({state}):\n{}", self.report()));
        }
        if after.hits == before.hits { Err("ours does not cache any more".to_owned()) } else { Ok(()) }
    }

    #[allow(unsafe_code)]
    fn through(&self, lease: &pinyard_registry::Lease<'_>, at: usize) -> Result<u8, Failure> {
        let (mut reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
        // SAFETY: the lease is held, and nobody writes the page meanwhile.
        let written = unsafe { self.ring.write_fixed(writer.as_fd(), lease.key(), at as *const u8, PAGE) };
        let mut bytes = [0; PAGE];
        match written {
            Ok(PAGE) => reader.read_exact(&mut bytes).map_err(|error| error.to_string())?,
            other => return Err(format!("io_uring wrote {other:?}")),
        }
        Ok(bytes[0])
    }

    pub(crate) fn report(&self) -> String {
        let stats = self.registry.stats();
        let report = pinyard_hooks::report().map_or_else(String::new, |report| report.to_string());
        format!(
            "{report}{} hits, {} registrations, {} uncached",
            stats.hits, stats.registrations, stats.uncached
        )
    }
}
