//! How a host pool is made.

use crate::classes::{self, LARGEST};
use crate::config::{Overrides, Pools};
use crate::error::BuildError;
use crate::exit::{self, Heir};
use crate::fork;
use crate::leaks::PoolLeaks;
use crate::pool::{Handle, MOST, Pool};
use crate::pressure::{Bound, Told, Watermarks};
use crate::shared::Core;
use crate::slab::Supplier;
use crate::source::{DriverToken, Source};
use crate::trace::Traced;
use pinyard_registry::membarrier;
use pinyard_registry::{Access, Registry};
use pinyard_worker::log;
use std::sync::Arc;
use std::time::Duration;

/// See [`Pool::host`].
pub struct Builder {
    registry: Registry,
    source: Box<dyn Source>,
    slab_bytes: usize,
    limit: Bound,
    access: Access,
    poison: bool,
    patience: Duration,
    fence_thread: bool,
    watermarks: Option<Watermarks>,
    pub(crate) heir: Option<Heir<PoolLeaks>>,
    /// On stderr, when the pool ends or the process does.
    tells_leaks: bool,
    environment: bool,
}

impl Builder {
    pub(crate) fn new(registry: &Registry, source: Box<dyn Source>) -> Builder {
        Builder {
            registry: registry.clone(),
            source,
            slab_bytes: 64 << 20,
            limit: Bound::Bytes(usize::MAX),
            access: Access::LOCAL_WRITE,
            poison: false,
            patience: Duration::from_secs(10),
            fence_thread: true,
            watermarks: None,
            heir: None,
            tells_leaks: false,
            environment: true,
        }
    }

    /// Bytes of a slab, the unit of registration, rounded up to the source's
    /// granularity (2 MiB for host memory). Default 64 MiB. A larger block gets a
    /// slab of its own length.
    pub fn slab_bytes(mut self, bytes: usize) -> Builder {
        self.slab_bytes = bytes;
        self
    }

    /// Bytes of all slabs at most. Default: no limit but the registry's budget.
    pub fn limit(mut self, bytes: usize) -> Builder {
        self.limit = Bound::Bytes(bytes);
        self
    }

    /// A part, above 0 and up to 1, of what there is where the memory comes from, as its
    /// source says ([`HostLimits`](crate::HostLimits)): of the least of what control groups allow
    /// and the machine has, of pinned memory of RLIMIT_MEMLOCK too, where that binds. Refused
    /// ([`BuildError::LimitFraction`]) where the source does not say.
    pub fn limit_fraction(self, fraction: f64) -> Result<Builder, BuildError> {
        let room = self.source.room(&DriverToken::at_entry());
        match room.filter(|_| fraction > 0.0 && fraction <= 1.0) {
            Some(_) => Ok(Builder { limit: Bound::Fraction(fraction), ..self }),
            None => Err(BuildError::LimitFraction { part: fraction }),
        }
    }

    /// Heeds what is left where the memory comes from, as its source says
    /// ([`HostLimits`](crate::HostLimits)). Below the low mark the pool gives back slabs that
    /// are free and grows by what is wanted alone, until the high one; both ends are told to
    /// [`Pool::on_pressure`]. The marks limit nothing: an allocation that needs memory asks for
    /// it. Looked at before each slab but those of [`Pool::warmup`], and by [`Pool::relieve`]. Of a source
    /// that does not say what is left they mean nothing.
    pub fn watermarks(mut self, low: Bound, high: Bound) -> Builder {
        self.watermarks = Some(Watermarks { low, high });
        self
    }

    /// What the slabs are registered for. Default [`Access::LOCAL_WRITE`].
    pub fn access(mut self, access: Access) -> Builder {
        self.access = access;
        self
    }

    /// How long an allocation that would fail waits for deferred blocks whose fences have
    /// not passed. Default 10 s.
    pub fn patience(mut self, patience: Duration) -> Builder {
        self.patience = patience;
        self
    }

    /// Whether a thread of the pool's asks the fences of deferred blocks while nobody uses
    /// the pool ([`Poll::any_thread`](crate::Poll::any_thread)). It begins with the first
    /// slab and sleeps while no block is deferred. Default: it does. Without it they are
    /// asked by allocations, [`trim`](Pool::trim) and [`poll_fences`](Pool::poll_fences), until a
    /// request has had to wait ([`Pool::alloc_async`]), which the thread serves.
    pub fn fence_thread(mut self, fence_thread: bool) -> Builder {
        self.fence_thread = fence_thread;
        self
    }

    /// Finds writes to freed memory: it is filled with a pattern, which is looked for when
    /// the memory is used again or given back. For finding faults: every allocation and
    /// free goes over the whole block; see [`Pool::on_misuse`].
    pub fn poison(mut self, poison: bool) -> Builder {
        self.poison = poison;
        self
    }

    /// Has the environment ignored (`PINYARD_HOST_POOL_*`, [`config`](crate::config)), for a
    /// program that must not be told from outside.
    pub fn ignore_environment(mut self) -> Builder {
        self.environment = false;
        self
    }

    /// Changes what is given; the rest stays. What host pools do not have
    /// ([`Setting::host`](crate::config::Setting::host)) changes nothing.
    pub fn configure(mut self, settings: &Overrides) -> Builder {
        self.limit = settings.limit.map_or(self.limit, Bound::from);
        self.slab_bytes = settings.slab_bytes.unwrap_or(self.slab_bytes);
        self.patience = settings.patience.unwrap_or(self.patience);
        self.watermarks = settings.watermarks(self.watermarks);
        self.poison = settings.poison.unwrap_or(self.poison);
        self.tells_leaks = settings.leaks.unwrap_or(self.tells_leaks);
        self
    }

    /// Makes the pool. It has no slab yet: see [`Pool::warmup`].
    pub fn build(self) -> Result<Pool, BuildError> {
        let environment =
            if self.environment { Overrides::from_environment(Pools::Host)? } else { Overrides::default() };
        self.configure(&environment).build_as_told()
    }

    fn build_as_told(self) -> Result<Pool, BuildError> {
        let granularity = self.source.granularity();
        if !(1..=MOST).contains(&self.slab_bytes) {
            return Err(BuildError::SlabBytes { bytes: self.slab_bytes, most: MOST, granularity });
        }
        let room = || self.source.room(&DriverToken::at_entry());
        let limit = match self.limit {
            Bound::Bytes(bytes) => bytes,
            part @ Bound::Fraction(fraction) => {
                part.of(room().ok_or(BuildError::LimitFraction { part: fraction })?.total)
            }
        };
        if limit < granularity {
            return Err(BuildError::Limit { limit, granularity });
        }
        if let Some(Watermarks { low, high }) = self.watermarks {
            let total = room().map_or(usize::MAX, |room| room.total);
            if !(low.is_sound() && high.is_sound() && low.of(total) <= high.of(total)) {
                return Err(BuildError::Watermarks { low, high });
            }
        }
        let slab_bytes = self.slab_bytes.next_multiple_of(granularity);
        // A slab holds several blocks of the largest class.
        let most = (slab_bytes / 8).min(LARGEST);
        let above = classes::class_of(most);
        let largest = if classes::size_of(above) > most { above - 1 } else { above };
        membarrier::prepare();
        fork::prepare();
        let Builder {
            registry,
            source,
            access,
            poison,
            patience,
            fence_thread,
            watermarks,
            heir,
            tells_leaks,
            ..
        } = self;
        let traced = Traced::new(source.name());
        log!(info, source = source.name(), slab_bytes, limit, "a pool was made");
        let supplier = Arc::new(Supplier { registry, source, access });
        let core = Core::new(largest, poison, traced);
        let publisher: std::sync::Weak<Core> = Arc::downgrade(&core);
        pinyard_trace::counters::publish(publisher);
        let weak: std::sync::Weak<Core> = Arc::downgrade(&core);
        let heirs = exit::heirs(heir, tells_leaks, weak);
        let (limit, pressure) = (limit.into(), Told::default());
        let handle =
            Handle { core, supplier, slab_bytes, limit, patience, watermarks, pressure, fence_thread, heirs };
        Ok(Pool { handle: Arc::new(handle) })
    }
}
