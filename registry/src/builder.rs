//! How a registry is made.

use crate::backend::{Backend, Unlocked};
use crate::budget::Budget;
use crate::cache::{Cache, Geometry, map_size};
use crate::coarsen::Coarsen;
use crate::error::BuildError;
use crate::owner::{Owner, Owners};
use crate::range::CACHED_LIMIT;
use crate::registry::{Inner, Registry};
use crate::traced::Traced;
use crate::trust::{Mechanism, Trust};
use crate::{clock, limits, membarrier, reaper};
use pinyard_worker::{log, span};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// How the registry hears that a mapping changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Events {
    /// pinyard's hooks; a registry is refused where calls would escape them.
    #[default]
    Hooks,
    /// Only from [`pinyard_hooks::notify_unmapped`] and
    /// [`Registry::invalidate`]. The program vouches that it calls one of them
    /// before *every* change of a mapping that was registered: an allocator that
    /// unmaps behind its back makes registrations stale.
    NotifyOnly,
}

/// Regions without a limit given: half a GiB of address space, of which pages are
/// resident only where they are used.
const DEFAULT_REGIONS: usize = 65_536;
const MOST_REGIONS: usize = 1 << 24;

/// See [`Registry::builder`].
pub struct Builder {
    backend: Option<Box<dyn Backend>>,
    budget: Option<Budget>,
    coarsen: Coarsen,
    max_regions: usize,
    events: Events,
    trust_shared: bool,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder {
            backend: None,
            budget: None,
            coarsen: Coarsen::Never,
            max_regions: DEFAULT_REGIONS,
            events: Events::Hooks,
            trust_shared: false,
        }
    }

    /// Who registers. Required. An `Arc` of a backend is one too.
    pub fn backend(mut self, backend: impl Backend + 'static) -> Builder {
        self.backend = Some(Box::new(backend));
        self
    }

    /// Bytes pinned at most, those being registered or retired included. When
    /// they are used up, regions that are not in use go; when all are in use,
    /// `get` fails. A number of bytes for this registry alone, or a [`Budget`] that
    /// it shares with others.
    ///
    /// Default: a budget that all registries of the process share, half of the
    /// machine's memory or of the cgroup's limit; for backends that lock pages,
    /// RLIMIT_MEMLOCK where that is less and binds. The kernel counts more than the
    /// registry does; where it refuses, what is only cached makes room.
    pub fn budget(mut self, budget: impl Into<Budget>) -> Builder {
        self.budget = Some(budget.into());
        self
    }

    /// How far a registration grows beyond its buffer. Default: not at all.
    pub fn coarsen(mut self, coarsen: Coarsen) -> Builder {
        self.coarsen = coarsen;
        self
    }

    /// Regions at most, likewise; the backend may allow fewer. Default 65,536.
    pub fn max_regions(mut self, regions: usize) -> Builder {
        self.max_regions = regions;
        self
    }

    /// How the registry hears of changes. Default: [`Events::Hooks`].
    pub fn events(mut self, events: Events) -> Builder {
        self.events = events;
        self
    }

    /// Keeps registrations of shared memory for the next `get`. The program vouches
    /// that no other process, and no system call past libc, truncates the file or
    /// drops pages of it. Without this they are made and given back each time.
    pub fn trust_shared_memory(mut self) -> Builder {
        self.trust_shared = true;
        self
    }

    /// Installs the hooks if they are not there yet, and starts the reaper. Where
    /// the entries cannot be patched, userfaultfd takes their place;
    /// [`Registry::serving`] tells. The
    /// environment variable `PINYARD_HOOKS` overrides [`events`](Builder::events);
    /// see [`Mechanism`].
    pub fn build(self) -> Result<Registry, BuildError> {
        let backend = self.backend.ok_or(BuildError::NoBackend)?;
        let _span = span!(debug_span, "registry", backend = backend.name());
        let forced = Mechanism::from_environment().map_err(|value| BuildError::UnknownMechanism { value })?;
        let events = if forced == Some(Mechanism::Notify) { Events::NotifyOnly } else { self.events };
        let mut patches = events == Events::Hooks && forced.is_none_or(Mechanism::patches);
        pinyard_hooks::notice_forks();
        if patches && !pinyard_hooks::verify() {
            let report = pinyard_hooks::install();
            patches = report.is_complete();
            // The kernel itself can tell of nearly as much.
            if !patches && (forced.is_some() || pinyard_hooks::userfaultfd::start().is_err()) {
                return Err(BuildError::HooksIncomplete(Box::new(report)));
            }
        }
        pinyard_trace::start_from_environment().map_err(BuildError::Trace)?;
        let trust = Trust::new(events == Events::Hooks, patches, forced, self.trust_shared)
            .map_err(|why| BuildError::Mechanism { name: forced.map_or("", Mechanism::name), why })?;
        clock::prepare();
        membarrier::prepare();
        let traced = Traced::new(backend.name());
        let of_backend = backend.limits();
        let regions = self.max_regions.min(of_backend.max_regions).clamp(1, MOST_REGIONS);
        let geometry = Geometry {
            regions,
            budget: self.budget.unwrap_or_else(|| limits::default_budget(backend.locks_memory())),
            max_region_bytes: of_backend.max_region_bytes,
        };
        let refused = |errno| BuildError::Map { source: std::io::Error::from_raw_os_error(errno) };
        let map = pinyard_hooks::subscribe_map(map_size(regions, CACHED_LIMIT)).map_err(|errno| {
            errno.map_or(BuildError::TooManyRegistries { limit: pinyard_hooks::MAX_SUBSCRIBERS }, refused)
        })?;
        let cache = Cache::new(map, geometry).map_err(refused)?;
        let inner = Arc::new(Inner {
            owners: Owners::none(),
            cache,
            backend,
            events: if patches { Events::Hooks } else { Events::NotifyOnly },
            coarsen: self.coarsen,
            trust,
            traced,
            forks: pinyard_hooks::fork_generation(),
            changed: parking_lot::Condvar::new(),
            reaper_sleeps: AtomicBool::new(false),
            reaper: parking_lot::Mutex::new(None),
        });
        let member: std::sync::Weak<Inner> = Arc::downgrade(&inner);
        inner.cache.geometry.budget.join(member);
        inner.cache.lock(&mut Unlocked::at_entry()).writer.traced = traced;
        let publisher: std::sync::Weak<Inner> = Arc::downgrade(&inner);
        pinyard_trace::counters::publish(publisher);
        reaper::start(&inner).map_err(|source| BuildError::Thread { source })?;
        log!(
            info,
            backend = inner.backend.name(),
            budget = inner.cache.geometry.budget.bytes(),
            regions,
            patched = patches,
            "a registry was made"
        );
        Ok(Registry { inner: Owner::new(inner) })
    }
}
