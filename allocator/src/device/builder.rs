//! How a device pool is made.

use super::core::{Core, Settings};
use super::leaks::Leaks;
use super::marks::{MarkKind, Words};
use super::pool::DevicePool;
use super::registered::Registered;
use super::slab::Registrar;
use super::watch::{TraceOptions, Watch};
use super::worker;
use crate::config::{Overrides, Pools};
use crate::error::BuildError;
use crate::exit::{self, Heir};
use crate::fork;
use crate::pressure::{Bound, Watermarks};
use crate::source::{DriverToken, Source};
use crate::trace::Traced;
use pinyard_driver::{Counted, Driver};
use pinyard_registry::{Access, Registry};
use pinyard_worker::log;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Makes a [`DevicePool`]: see [`DevicePool::builder`].
pub struct DeviceBuilder {
    pub(super) driver: Arc<Counted>,
    sources: [Arc<dyn Source>; 2],
    registrar: Option<Box<dyn Registrar>>,
    pub(super) marks: MarkKind,
    pub(super) settings: Settings,
    pub(super) poison: bool,
    pub(super) trace: Option<TraceOptions>,
    pub(super) heir: Option<Heir<Leaks>>,
    /// On stderr, when the pool ends or the process does.
    pub(super) tells_leaks: bool,
    pub(super) environment: bool,
    pub(super) trace_file: Option<PathBuf>,
}

impl DeviceBuilder {
    pub(super) fn new(driver: Arc<Counted>, sources: [Arc<dyn Source>; 2]) -> DeviceBuilder {
        let settings = Settings {
            slab_bytes: 256 << 20,
            limit: usize::MAX.into(),
            patience: Duration::from_secs(10),
            stall: Duration::from_secs(1),
            watermarks: None,
            keep_idle: None,
        };
        DeviceBuilder {
            driver,
            sources,
            registrar: None,
            marks: MarkKind::Best,
            settings,
            poison: false,
            trace: None,
            heir: None,
            tells_leaks: false,
            environment: true,
            trace_file: None,
        }
    }

    /// Bytes of a slab at most, but for a longer block's. A pool grows by a twelfth of what the
    /// stream has in use, from the source's granularity up to 64 MiB, and up to this where what
    /// is free would suffice and lies in pieces. Default 256 MiB.
    pub fn slab_bytes(mut self, bytes: usize) -> DeviceBuilder {
        self.settings.slab_bytes = bytes;
        self
    }

    /// Bytes of all slabs at most. Default: what the device has.
    pub fn limit(mut self, bytes: usize) -> DeviceBuilder {
        self.settings.limit = bytes.into();
        self
    }

    /// A part of the device's memory as the limit, above 0 and up to 1.
    pub fn limit_fraction(mut self, fraction: f64) -> Result<DeviceBuilder, BuildError> {
        let total = self.driver.device().total_bytes;
        if !(fraction > 0.0 && fraction <= 1.0) {
            return Err(BuildError::LimitFraction { part: fraction });
        }
        self.settings.limit = ((total as f64 * fraction) as usize).into();
        Ok(self)
    }

    /// Heeds what is left where the memory comes from: the device, as `cuMemGetInfo`
    /// says, or for pinned memory the control group and RLIMIT_MEMLOCK
    /// ([`HostLimits`](crate::HostLimits)). Below the low mark the pool gives back what
    /// is free and grows by what is wanted alone, until the high one; both ends are told
    /// to [`DevicePool::on_pressure`]. The marks limit nothing: an allocation that needs
    /// memory asks for it. Asked once per slab, and while memory is short every 100 ms.
    pub fn watermarks(mut self, low: Bound, high: Bound) -> DeviceBuilder {
        self.settings.watermarks = Some(Watermarks { low, high });
        self
    }

    /// Gives back, each time that this has passed, the slabs that were free since the
    /// last time, streams' own included that did nothing in between. While the pool has
    /// slabs its thread wakes so often; without this it does not. Default: kept.
    pub fn keep_idle(mut self, age: Duration) -> DeviceBuilder {
        self.settings.keep_idle = Some(age.max(Duration::from_millis(1)));
        self
    }

    /// How long an allocation that would fail waits for streams. Default 10 s.
    pub fn patience(mut self, patience: Duration) -> DeviceBuilder {
        self.settings.patience = patience;
        self
    }

    /// Whether, and onto which streams, the pool lays edges before it grows.
    ///
    /// When streams are far behind the host, what one has freed serves another only if
    /// the other waits for it on the device. A pool that has an eighth more than is in use
    /// rather does that (`cuEventRecord`, `cuStreamWaitEvent`) than grow, but only onto
    /// streams that move: one that has been behind a mark for `stall` is left alone, as is
    /// one that never passed one. Zero: never, streams are tied together only where the
    /// allocation would fail otherwise. Default 1 s: a queue of work may be that long.
    pub fn stall(mut self, stall: Duration) -> DeviceBuilder {
        self.settings.stall = stall;
        self
    }

    /// How streams tell how far they have come.
    pub fn marks(mut self, marks: MarkKind) -> DeviceBuilder {
        self.marks = marks;
        self
    }

    /// Registers each slab, once. Slabs of a source that joins them stay apart then, so
    /// that a block lies in one and has one key.
    pub fn registrar(mut self, registrar: impl Registrar + 'static) -> DeviceBuilder {
        self.registrar = Some(Box::new(registrar));
        self
    }

    /// Registers each slab with `registry`, once, for `access`: a block's key is its
    /// slab's ([`DeviceBuf::key`](crate::device::DeviceBuf::key)), and the registry finds it for whoever asks. The
    /// registry's backend has to know device memory, as verbs does with
    /// [`device_memory`](pinyard_registry::backend::DeviceMemory): it exports the slab as
    /// a dma-buf. In place of [`registrar`](DeviceBuilder::registrar).
    pub fn registry(self, registry: &Registry, access: Access) -> DeviceBuilder {
        self.registrar(Registered::new(registry.clone(), access))
    }

    /// Makes the pool. It has no slab yet.
    pub fn build(self) -> Result<DevicePool, BuildError> {
        const MOST: usize = 1 << 45;
        let heeds = self.environment;
        let environment =
            if heeds { Overrides::from_environment(Pools::Device)? } else { Overrides::default() };
        let DeviceBuilder {
            driver,
            sources,
            registrar,
            marks,
            settings,
            poison,
            trace,
            heir,
            tells_leaks,
            trace_file,
            ..
        } = self.configure(&environment);
        let granularity = sources[0].granularity();
        if !(1..=MOST).contains(&settings.slab_bytes) {
            return Err(BuildError::SlabBytes { bytes: settings.slab_bytes, most: MOST, granularity });
        }
        if settings.limit() < granularity {
            return Err(BuildError::Limit { limit: settings.limit(), granularity });
        }
        if let Some(Watermarks { low, high }) = settings.watermarks {
            let total = driver.device().total_bytes;
            if !(low.is_sound() && high.is_sound() && low.of(total) <= high.of(total)) {
                return Err(BuildError::Watermarks { low, high });
            }
        }
        fork::prepare();
        // A pool that does not heed the environment is not in the process's trace either.
        let process = if heeds {
            pinyard_trace::start_from_environment().map_err(BuildError::Trace)?;
            Traced::new(sources[0].name())
        } else {
            None
        };
        let (source, slab_bytes, limit) = (sources[0].name(), settings.slab_bytes, settings.limit());
        let token = DriverToken::at_entry();
        let words = match marks {
            MarkKind::Best if driver.device().stream_values => match Words::new(&*driver, &token) {
                Err(BuildError::Driver(error)) if !error.is_context_lost() => {
                    log!(warn, %error, "no words for streams to raise: they are marked by events");
                    None
                }
                words => Some(words?),
            },
            _ => None,
        };
        let core = Core::new(
            driver,
            sources,
            registrar,
            settings,
            words,
            Watch::new(poison, process, fork::generation()),
        );
        if let Some(options) = trace {
            core.watch.start(options);
        }
        if heeds {
            let publisher: std::sync::Weak<Core> = Arc::downgrade(&core);
            pinyard_trace::counters::publish(publisher);
        }
        let weak: std::sync::Weak<Core> = Arc::downgrade(&core);
        let _ = core.heirs.set(exit::heirs(heir, tells_leaks, weak));
        if let Some(path) = trace_file {
            let _ = core.trace_file.set(path);
        }
        if let Err(error) = worker::spawn(core.clone()) {
            return Err(BuildError::Thread { reason: error.to_string() });
        }
        log!(info, source, slab_bytes, limit, "a device pool was made");
        Ok(DevicePool::new(core))
    }
}
