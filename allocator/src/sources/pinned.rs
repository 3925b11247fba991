//! Pinned host memory: a mapping of our own on huge pages, on the device's node,
//! touched by several threads, and registered with the driver in pieces.
//!
//! Three to eight times faster to have than `cuMemHostAlloc`, and unlike it on huge
//! pages, unknown to a forked child (`MADV_DONTFORK`), and never on a page of
//! malloc's, which others might register or give back.
#![allow(unsafe_code)]

use super::numa;
use crate::host::{HUGE_PAGE, failed, map, unmap};
use crate::pressure::{HostLimits, Room};
use crate::source::{DriverToken, HostMemory, Segment, Source, SourceError};
use pinyard_driver::Driver;
use pinyard_hooks::sys;
use pinyard_worker::log;
use std::sync::Arc;
use std::thread;

/// Longest single registration: drivers refuse very long ones, and a failure half
/// way costs less.
const PIECE: usize = if cfg!(test) { 4 << 20 } else { 1 << 30 };
/// A thread touches at least this much.
const PER_THREAD: usize = 32 << 20;
const MOST_THREADS: usize = 16;

/// Segments of pinned host memory that the device reaches.
pub struct PinnedSource {
    driver: Arc<dyn Driver>,
    node: Option<u32>,
    threads: usize,
    limits: HostLimits,
}

impl PinnedSource {
    /// On the node nearest to the device, touched by as many threads as the process
    /// may run, 16 at most.
    pub fn new(driver: Arc<dyn Driver>) -> PinnedSource {
        let threads = thread::available_parallelism().map_or(1, |count| count.get().min(MOST_THREADS));
        let node = driver.device().host_node;
        PinnedSource { driver, node, threads, limits: HostLimits::of_process() }
    }

    /// On another node, or on the toucher's if `None`.
    pub fn node(mut self, node: Option<u32>) -> PinnedSource {
        self.node = node;
        self
    }

    /// With this many threads.
    pub fn threads(mut self, threads: usize) -> PinnedSource {
        self.threads = threads.max(1);
        self
    }

    /// What is left of host memory, by other limits than the process's own.
    pub fn limits(mut self, limits: HostLimits) -> PinnedSource {
        self.limits = limits;
        self
    }

    /// Pins all of a mapping; on failure also says where the pieces end that are pinned.
    fn register(&self, segment: Segment, token: &DriverToken) -> Result<(), (SourceError, usize)> {
        for (start, bytes) in pieces(segment) {
            // SAFETY: our own mapping, which stays until `shrink`; nobody has seen it,
            // so nobody takes it for pageable memory.
            let registered = unsafe { self.driver.host_register(pointer(start), bytes, token) };
            if let Err(error) = registered {
                let mut error = SourceError::from(error);
                error.hint = "; see `ulimit -l`, and who else pins memory".to_owned();
                return Err((error, start));
            }
        }
        Ok(())
    }

    /// Unpins the pieces below `end`, all that it can; the first error.
    fn unregister(&self, segment: Segment, end: usize, token: &DriverToken) -> Result<(), SourceError> {
        let mut first = Ok(());
        for (start, _) in pieces(segment).take_while(|&(start, _)| start < end) {
            // SAFETY: registered by `register`; nobody uses it.
            let ended = unsafe { self.driver.host_unregister(pointer(start), token) };
            first = first.and(ended);
        }
        Ok(first?)
    }
}

fn pointer(at: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at)
}

fn pieces(segment: Segment) -> impl Iterator<Item = (usize, usize)> {
    let end = segment.start + segment.bytes;
    (segment.start..end).step_by(PIECE).map(move |start| (start, PIECE.min(end - start)))
}

// SAFETY: mappings of our own, pinned.
unsafe impl Source for PinnedSource {
    fn name(&self) -> &'static str {
        "pinned"
    }

    fn granularity(&self) -> usize {
        HUGE_PAGE
    }

    fn room(&self, _: &DriverToken) -> Option<Room> {
        self.limits.pinned()
    }

    fn grow(&self, bytes: usize, token: &DriverToken) -> Result<Segment, SourceError> {
        let segment = map(bytes)?;
        let Segment { start, bytes } = segment;
        if let Some(node) = self.node {
            numa::prefer(start, bytes, node);
        }
        // SAFETY: our own mapping; the advice concerns children only.
        let kept = unsafe { sys::madvise(start, bytes, libc::MADV_DONTFORK) };
        let pinned = match kept {
            Ok(()) => {
                numa::touch(start, bytes, self.threads.min(bytes.div_ceil(PER_THREAD)));
                self.register(segment, token)
            }
            Err(errno) => {
                let call = format!("madvise({start:#x}, {bytes}, MADV_DONTFORK)");
                Err((failed(call, errno, ""), start))
            }
        };
        match pinned {
            Ok(()) => Ok(segment),
            Err((error, end)) => {
                if let Err(left) = self.unregister(segment, end, token) {
                    log!(warn, error = %left, bytes, "memory that could not be unpinned stays mapped");
                    return Err(error);
                }
                // SAFETY: nobody has seen it, and nothing of it is pinned.
                unsafe { unmap(segment) }?;
                Err(error)
            }
        }
    }

    /// Memory that the driver does not unpin stays mapped: unmapping it would leave
    /// the device with pages that are somebody else's by then.
    unsafe fn shrink(&self, segment: Segment, token: &DriverToken) -> Result<(), SourceError> {
        self.unregister(segment, segment.start + segment.bytes, token)?;
        // SAFETY: the caller's contract.
        unsafe { unmap(segment) }
    }
}

// SAFETY: as HostSource's.
unsafe impl HostMemory for PinnedSource {}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;
    use pinyard_driver::{Call, Simulated};

    /// A rollback that fails as well: pages that the device knows must not be unmapped.
    #[test]
    fn memory_that_cannot_be_unpinned_stays_mapped() {
        const OUT_OF_MEMORY: i32 = 2;
        let gpu = Arc::new(Simulated::new(1 << 30));
        let (source, token) = (PinnedSource::new(gpu.clone()), DriverToken::at_entry());
        gpu.fail_at(gpu.all_calls() + 1, OUT_OF_MEMORY);
        gpu.fail_next(Call::HostUnregister, 1, OUT_OF_MEMORY);
        // Longer than what else a test has.
        let bytes = 2 * PIECE + 64 * HUGE_PAGE;
        let error = source.grow(bytes, &token).expect_err("the second piece is refused");
        assert!(error.to_string().contains("cuMemHostRegister"), "{error}");
        assert_eq!(gpu.outstanding(), "1 host registrations");
        let maps = pinyard_registry::maps::read().unwrap();
        let writable = pinyard_registry::maps::mappings(&maps).filter(|mapping| mapping.is_writable);
        assert!(writable.map(|mapping| mapping.range.len()).max() >= Some(bytes), "{maps}");
    }

    /// One piece that the driver does not unpin keeps the mapping, and no other pinned.
    #[test]
    fn every_registration_and_its_end_may_fail() {
        let token = DriverToken::at_entry();
        for number in 0.. {
            let gpu = Arc::new(Simulated::new(1 << 30));
            let source = PinnedSource::new(gpu.clone());
            gpu.fail_at(number, 999);
            let grown = source.grow(3 * PIECE, &token);
            // SAFETY: nobody uses it.
            let ended = grown.as_ref().map(|&segment| unsafe { source.shrink(segment, &token) });
            let (left, what) = (gpu.outstanding(), format!("call {number}"));
            match gpu.failed_at() {
                Some(Call::HostRegister) => assert!(grown.is_err() && left.is_empty(), "{what}: {left}"),
                Some(_) => {
                    assert!(matches!(ended, Ok(Err(_))), "{what}: {ended:?}");
                    assert_eq!(left, "1 host registrations", "{what}");
                }
                None => {
                    assert_eq!((number, left.as_str()), (6, ""));
                    break;
                }
            }
            assert_eq!(gpu.offences(), Vec::<String>::new(), "{what}");
            // The source works again.
            let again = source.grow(PIECE, &token).unwrap();
            // SAFETY: nobody uses it.
            unsafe { source.shrink(again, &token) }.unwrap();
            assert_eq!(gpu.outstanding(), left);
        }
    }
}
