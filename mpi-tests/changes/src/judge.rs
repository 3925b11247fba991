//! What came of a row, judged by the bytes that a device sees.
#![allow(unsafe_code)]

use crate::copy::Copy;
use crate::setup::Setup;
use pinyard_registry::backend::IoUring;
use pinyard_registry::{Access, Events, GetError, MemoryKey, Registry};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;

/// What came of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The change was noticed: the next `get` registered anew.
    Seen,
    /// The registration was kept, and its pages are still the right ones.
    Kept,
    /// The registration was never kept for another `get`, for this reason.
    Uncached(String),
    /// `get` was refused, for this reason.
    Refused(String),
    /// The device saw bytes that are no longer in memory.
    Stale,
    /// This machine cannot do it, for this reason.
    Skipped(String),
    /// The row's process ended badly.
    Broken(String),
}

impl Verdict {
    /// The verdict without its reason.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Seen => "seen",
            Verdict::Kept => "rightly kept",
            Verdict::Uncached(_) => "uncached",
            Verdict::Refused(_) => "refused",
            Verdict::Stale => "STALE",
            Verdict::Skipped(_) => "skipped",
            Verdict::Broken(_) => "BROKEN",
        }
    }

    /// Why, where there is more to say than the word.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Verdict::Uncached(why) | Verdict::Refused(why) | Verdict::Skipped(why) | Verdict::Broken(why) => {
                Some(why)
            }
            Verdict::Seen | Verdict::Kept | Verdict::Stale => None,
        }
    }

    pub(crate) fn from_parts(word: &str, why: &str) -> Option<Verdict> {
        let why = why.to_owned();
        Some(match word {
            "seen" => Verdict::Seen,
            "rightly kept" => Verdict::Kept,
            "uncached" => Verdict::Uncached(why),
            "refused" => Verdict::Refused(why),
            "STALE" => Verdict::Stale,
            "skipped" => Verdict::Skipped(why),
            "BROKEN" => Verdict::Broken(why),
            _ => return None,
        })
    }
}

/// Why a row could not come to its end: `Err` of a row.
pub(crate) type Outcome<T = ()> = Result<T, Verdict>;

/// The failed call and its errno, as the reason for skipping a row.
pub(crate) fn skipped<T>(call: &str) -> Outcome<T> {
    Err(Verdict::Skipped(format!("{call}: {}", std::io::Error::last_os_error())))
}

/// The registry and the device of one row.
pub(crate) struct Judge {
    pub(crate) registry: Registry,
    ring: Arc<IoUring>,
    /// Registrations up to the change.
    registrations: u64,
    /// Why the one before the change was not kept.
    uncached: Option<String>,
    /// A second pinyard, which registers the same pages.
    copy: Option<Copy>,
}

const BEFORE: u8 = 1;
const AFTER: u8 = 2;

impl Judge {
    /// With the second copy that the environment names, if it does.
    pub(crate) fn new(setup: Setup) -> Outcome<Judge> {
        let mut judge = Judge::alone(setup)?;
        judge.copy = Copy::load()?;
        Ok(judge)
    }

    pub(crate) fn alone(setup: Setup) -> Outcome<Judge> {
        // One arena: other threads' heaps would come and go between the row's pages.
        // SAFETY: sets a parameter of this process's malloc.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
        let ring = IoUring::new(16).map_err(|error| Verdict::Skipped(error.to_string()))?;
        let ring = Arc::new(ring);
        let events = if setup == Setup::Deaf { Events::NotifyOnly } else { Events::Hooks };
        let registry = Registry::builder()
            .backend(ring.clone())
            .events(events)
            .build()
            .map_err(|error| Verdict::Refused(error.to_string()))?;
        Ok(Judge { registry, ring, registrations: 0, uncached: None, copy: None })
    }

    /// Registers `len` bytes at `at` and sends the one at `probe` through the
    /// device. Writes `byte` there first.
    fn send(&self, at: usize, len: usize, probe: usize, byte: u8) -> Outcome<u8> {
        write_byte(probe, byte);
        let lease = self
            .registry
            .get((at as *const u8, len), Access::LOCAL_READ)
            .map_err(|error: GetError| Verdict::Refused(error.to_string()))?;
        self.through(lease.key(), probe)
    }

    fn through(&self, key: MemoryKey, at: usize) -> Outcome<u8> {
        let broken = |error: std::io::Error| Verdict::Broken(format!("the pipe: {error}"));
        let (mut reader, writer) = std::io::pipe().map_err(broken)?;
        // SAFETY: the caller holds the lease; nobody writes the byte meanwhile.
        let written = unsafe { self.ring.write_fixed(writer.as_fd(), key, at as *const u8, 1) };
        match written {
            Ok(1) => {}
            other => return Err(Verdict::Broken(format!("write_fixed: {other:?}"))),
        }
        let mut byte = [0];
        reader.read_exact(&mut byte).map_err(broken)?;
        Ok(byte[0])
    }

    /// Before the change: `len` bytes at `at` are registered, and given back to
    /// the cache.
    pub(crate) fn before(&mut self, at: usize, len: usize) -> Outcome {
        self.before_at(at, len, at)
    }

    /// Likewise, where only the byte at `probe` may be written.
    pub(crate) fn before_at(&mut self, at: usize, len: usize, probe: usize) -> Outcome {
        let seen = self.send(at, len, probe, BEFORE)?;
        let stats = self.registry.stats();
        self.registrations = stats.registrations;
        if stats.uncached != 0 {
            let why = self.registry.why_uncached((at as *const u8, len)).ok().flatten();
            self.uncached = Some(why.map_or_else(|| "hooks incomplete".to_owned(), |why| why.to_string()));
        }
        if seen != BEFORE {
            return Err(Verdict::Broken("stale before the change".to_owned()));
        }
        self.copy.as_ref().map_or(Ok(()), |copy| copy.before(at, len, probe))
    }

    /// After the change, where something is mapped again.
    pub(crate) fn after(&self, at: usize, len: usize) -> Outcome<Verdict> {
        self.after_at(at, len, at)
    }

    /// Likewise, where only the byte at `probe` may be written.
    pub(crate) fn after_at(&self, at: usize, len: usize, probe: usize) -> Outcome<Verdict> {
        let seen = self.send(at, len, probe, AFTER)?;
        let registered_anew = self.registry.stats().registrations != self.registrations;
        let verdict = match &self.uncached {
            _ if seen != AFTER => Verdict::Stale,
            Some(why) => Verdict::Uncached(why.clone()),
            None if registered_anew => Verdict::Seen,
            None => Verdict::Kept,
        };
        Ok(match &self.copy {
            Some(copy) => copy.after(at, len, probe, verdict),
            None => verdict,
        })
    }
}

fn write_byte(at: usize, byte: u8) {
    // SAFETY: a row's own memory, mapped and writable when it is judged.
    unsafe { (at as *mut u8).write_volatile(byte) };
}
